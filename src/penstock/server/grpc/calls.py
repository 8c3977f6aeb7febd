"""A call comes in: who asks, what is answered, and how it is told what went wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from time import monotonic
from typing import Any, NamedTuple, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from penstock.errors import Fatal, InternalError, PenstockError
from penstock.server.gate import Gate
from penstock.server.grpc import failures
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.grpc.desk import Desk
from penstock.server.grpc.intake import sized
from penstock.server.guard import Guarded
from penstock.server.metrics import Counts

log = logging.getLogger("penstock.grpc")

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]


class Call(NamedTuple):
    """`site` is the broker as whoever calls may see it."""

    desk: Desk
    site: Guarded
    context: Context


# One request and one reply; one request and many replies; or a stream of both, which reads and writes by itself.
Unary = Callable[[Call, Any], Awaitable[Any]]
Listing = Callable[[Call, Any], AsyncIterator[Any]]
Stream = Callable[[Call], Awaitable[None]]
Methods = Mapping[str, Unary | Listing | Stream]


class Reception:
    def __init__(self, desk: Desk, gate: Gate, counts: Counts, broke: Callable[[PenstockError], None]) -> None:
        self._desk = desk
        self._gate = gate
        self._counts = counts
        self._broke = broke

    def handlers(self, service: str, methods: Methods) -> grpc.GenericRpcHandler:
        """For all methods that the proto has of it."""
        described = pb.DESCRIPTOR.services_by_name[service]
        assert methods.keys() == set(described.methods_by_name), service
        found = {method.name: self._handler(method, methods[method.name]) for method in described.methods}
        return grpc.method_handlers_generic_handler(described.full_name, found)

    def _handler(self, method: MethodDescriptor, act: Any) -> grpc.RpcMethodHandler[Any, Any]:
        """A stream of requests, whatever the method: see `intake`."""
        asked, answered = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        coding: Any = {"request_deserializer": sized(asked), "response_serializer": answered.SerializeToString}
        if method.client_streaming:
            return grpc.stream_stream_rpc_method_handler(self._streaming(method.name, act), **coding)
        if method.server_streaming:
            return grpc.stream_stream_rpc_method_handler(self._listing(method.name, act), **coding)
        return grpc.stream_unary_rpc_method_handler(self._unary(method.name, act), **coding)

    def _unary(self, kind: str, act: Unary) -> Any:
        async def ask(call: Call) -> Any:
            async with call.desk.intake.request(call.context) as request:
                return await act(call, request)

        async def answer(requests: Any, context: Context) -> Any:
            return await self._carried_out(kind, context, ask)

        return answer

    def _listing(self, kind: str, act: Listing) -> Any:
        async def tell(call: Call) -> None:
            async with call.desk.intake.request(call.context) as request:
                async for reply in act(call, request):
                    await call.context.write(reply)

        async def answer(requests: Any, context: Context) -> None:
            await self._carried_out(kind, context, tell)

        return answer

    def _streaming(self, kind: str, act: Stream) -> Any:
        async def answer(requests: Any, context: Context) -> None:
            await self._carried_out(kind, context, act)

        return answer

    async def _carried_out(self, kind: str, context: Context, act: Callable[[Call], Awaitable[T]]) -> T:
        """Counted when it is over, which for a stream may be long after it began."""
        began, outcome = monotonic(), "ok"
        failure: failures.Error
        try:
            return await act(Call(self._desk, self._gate.admit(_key_of(context), self._desk.site), context))
        except (PenstockError, failures.TooSlow) as error:
            failure, outcome = error, error.code
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


def _key_of(context: Context) -> str | None:
    """From `authorization: Bearer KEY`."""
    for name, value in context.invocation_metadata() or ():
        if name == "authorization" and isinstance(value, str):
            scheme, _, key = value.partition(" ")
            return key.strip() if scheme.lower() == "bearer" else None
    return None
