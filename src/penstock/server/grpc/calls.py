"""A call comes in: who asks, what is answered, and how it is told what went wrong."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from time import monotonic
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from penstock.client.pages import page_of
from penstock.client.requests import PAGE_MAX, Listed, Request
from penstock.errors import Fatal, InternalError, PenstockError
from penstock.server.access import Operation
from penstock.server.admission import UnderWay
from penstock.server.gate import Gate
from penstock.server.grpc import failures
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.grpc.desk import Desk
from penstock.server.grpc.intake import LARGE_REQUESTS, OTHER_REQUESTS, sized
from penstock.server.guard import Guarded
from penstock.server.metrics import Counts
from penstock.server.reply_budget import ReplyAccount

log = logging.getLogger("penstock.grpc")

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]


class Call(NamedTuple):
    """`site` is the broker as whoever calls may see it."""

    desk: Desk
    site: Guarded
    context: Context

    async def write(self, reply: Any) -> None:
        """Returns when the client takes it. TooSlow if it does not take it in time."""
        patience_s = self.site.limits.stuck_us / 1e6
        try:
            async with asyncio.timeout(patience_s):
                await self.context.write(reply)
        except TimeoutError:
            raise failures.TooSlow(f"the client has not taken a reply within {patience_s:g} s") from None


# One request and one reply; one request and many replies; or a stream of both, which reads and writes by itself.
Unary = Callable[[Call, Any], Awaitable[Any]]
Listing = Callable[[Call, Any], AsyncIterator[Any]]
Stream = Callable[[Call], Awaitable[None]]
Methods = Mapping[str, Unary | Listing | Stream]


# Of all connections together; gRPC refuses further ones. One principal has at most half of them, if there are keys.
CALLS_MAX = 10_000
# Services with large requests: none is read of a principal that may do this to nothing.
_NEEDS = {
    method.name: operation
    for service, operation in (("Publisher", Operation.PUBLISH), ("Consumer", Operation.CONSUME))
    for method in pb.DESCRIPTOR.services_by_name[service].methods
}


# Of services with one reply: those whose reply may have megabytes.
_LARGE_REPLIES = ("Poll",)


class _Unevictable:
    """A connection of gRPC: `Call.write` ends a call whose client takes nothing."""

    def evict(self, reason: str) -> None: ...


class Reception:
    def __init__(self, desk: Desk, gate: Gate, counts: Counts, broke: Callable[[PenstockError], None]) -> None:
        self._desk = desk
        self._gate = gate
        self._counts = counts
        self._broke = broke
        # Called with the peer of each call that is admitted.
        self.admitted: Callable[[str], None] = lambda peer: None
        self._calls = UnderWay("calls", CALLS_MAX // 2) if gate.has_keys else None
        # Of connections with calls, by peer and principal, and how many calls.
        self._replies: dict[tuple[str, str], ReplyAccount] = {}
        self._replying: Counter[tuple[str, str]] = Counter()

    def handlers(self, described: ServiceDescriptor, methods: Methods) -> grpc.GenericRpcHandler:
        """For all methods that the proto has of it."""
        assert methods.keys() == set(described.methods_by_name), described.name
        found = {method.name: self._handler(method, methods[method.name]) for method in described.methods}
        return grpc.method_handlers_generic_handler(described.full_name, found)

    def _handler(self, method: MethodDescriptor, act: Any) -> grpc.RpcMethodHandler[Any, Any]:
        """A stream of requests, whatever the method: see `intake`."""
        asked, answered = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        coding: Any = {"request_deserializer": sized(asked), "response_serializer": answered.SerializeToString}
        if method.client_streaming:
            return grpc.stream_stream_rpc_method_handler(self._streaming(method.name, act), **coding)
        if method.name in _LARGE_REPLIES:
            return grpc.stream_stream_rpc_method_handler(self._written(method.name, act), **coding)
        if method.server_streaming:
            return grpc.stream_stream_rpc_method_handler(self._listing(method.name, act), **coding)
        return grpc.stream_unary_rpc_method_handler(self._unary(method.name, act), **coding)

    def _unary(self, kind: str, act: Unary) -> Any:
        limits = LARGE_REQUESTS if kind in _NEEDS else OTHER_REQUESTS

        async def ask(call: Call) -> Any:
            async with call.desk.intake.request(call.context, call.site.principal, limits) as request:
                return await act(call, request)

        async def answer(requests: Any, context: Context) -> Any:
            return await self._carried_out(kind, context, ask)

        return answer

    def _written(self, kind: str, act: Unary) -> Any:
        """For one reply that counts until the client takes it."""

        async def tell(call: Call) -> None:
            async with call.desk.intake.request(call.context, call.site.principal, LARGE_REQUESTS) as request:
                reply = await act(call, request)
            await call.write(reply)

        async def answer(requests: Any, context: Context) -> None:
            await self._carried_out(kind, context, tell)

        return answer

    def _listing(self, kind: str, act: Listing) -> Any:
        async def tell(call: Call) -> None:
            async with call.desk.intake.request(call.context, call.site.principal, OTHER_REQUESTS) as request:
                async for reply in act(call, request):
                    await call.write(reply)

        async def answer(requests: Any, context: Context) -> None:
            await self._carried_out(kind, context, tell)

        return answer

    def _streaming(self, kind: str, act: Stream) -> Any:
        async def answer(requests: Any, context: Context) -> None:
            await self._carried_out(kind, context, act, is_stream=True)

        return answer

    async def _carried_out(
        self, kind: str, context: Context, act: Callable[[Call], Awaitable[T]], *, is_stream: bool = False
    ) -> T:
        """Counted when it is over, which for a stream may be long after it began."""
        began, outcome = monotonic(), "ok"
        failure: failures.Error
        try:
            peer = _peer_of(context)
            site = self._gate.admit(_key_of(context), self._desk.site, peer=peer, is_single=not is_stream)
            if (needs := _NEEDS.get(kind)) is not None:
                site.check_anything(needs)
            # A key without the right is no better than none: its connection may be closed for another.
            if site.has_rights:
                self.admitted(context.peer())
            # gRPC does not tell when a connection ends: it counts while calls are under way on it.
            site.connect(peer)
            try:
                calls = self._calls.one(site.principal) if self._calls else nullcontext()
                with calls, self._memory_of(context.peer(), site):
                    return await act(Call(self._desk, site, context))
            finally:
                site.disconnect(peer)
        except (PenstockError, failures.TooSlow) as error:
            failure, outcome = error, error.code
            if isinstance(error, PenstockError):
                failure = error.without_paths()
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except Exception as error:
            log.exception("a call failed")
            failure = InternalError(f"the broker has a bug ({type(error).__name__}); its log says more")
            outcome = failure.code
        finally:
            self._counts.request("grpc", kind, outcome, monotonic() - began)
        if isinstance(failure, Fatal):
            self._broke(failure)
        code = failures.code_of(type(failure))
        return await context.abort(code, failures.sentence_of(failure), tuple(failures.metadata_of(failure)))

    @contextmanager
    def _memory_of(self, peer: str, site: Guarded) -> Iterator[None]:
        """The account of its connection, as long as it has calls."""
        whose = peer, site.principal
        if whose not in self._replies:
            in_flight_max = self._desk.site.limits.in_flight_bytes_max
            self._replies[whose] = ReplyAccount(self._gate.replies_of(site), _Unevictable(), in_flight_max)
        self._replying[whose] += 1
        site.memory = self._replies[whose].reservation()
        try:
            yield
        finally:
            site.memory.release()
            self._replying[whose] -= 1
            if not self._replying[whose]:
                del self._replying[whose]
                self._replies.pop(whose).close()


class _Paged(Protocol):
    """A request of a listing."""

    after: str
    limit: int


async def page_in(call: Call, request: _Paged, asked: Request[list[T] | Listed[T]]) -> Listed[T]:
    return await page_of(call.site, asked, request.after, request.limit or PAGE_MAX)


def _key_of(context: Context) -> str | None:
    """From `authorization: Bearer KEY`."""
    for name, value in context.invocation_metadata() or ():
        if name == "authorization" and isinstance(value, str):
            scheme, _, key = value.partition(" ")
            return key.strip() if scheme.lower() == "bearer" else None
    return None


def _peer_of(context: Context) -> tuple[str, int] | None:
    """From ipv4:127.0.0.1:50000 or ipv6:%5B::1%5D:50000."""
    host, _, port = unquote(context.peer() or "").partition(":")[2].rpartition(":")
    return (host.strip("[]"), int(port)) if port.isdigit() else None
