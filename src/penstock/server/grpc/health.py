"""gRPC's health service. It needs no key, so what its callers can occupy is bounded here.

    requests being read           `READING_MAX` of all connections, each for `PATIENCE_S` at most; others wait
    requests that wait for that   `WAITING_MAX`: further ones are refused
    watches                       `WATCHES_MAX`, and `PEER_WATCHES_MAX` of one connection: one more ends the oldest

The library's own service would read any number of requests of any size at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2

from penstock.errors import ProtocolError
from penstock.server.admission import LimitLog
from penstock.server.grpc.intake import sized

READING_MAX = 2
# A client sends the few bytes along with the call.
PATIENCE_S = 0.1
WAITING_MAX = 128
WATCHES_MAX = 256
PEER_WATCHES_MAX = 4

_Context = grpc.aio.ServicerContext[Any, Any]
_Reply = health_pb2.HealthCheckResponse


class Health:
    """Belongs to the broker's event loop."""

    def __init__(self, services: Collection[str]) -> None:
        """All of them serve until `close`."""
        self._services = services
        self._is_closed = False
        self._reading = asyncio.Semaphore(READING_MAX)
        self._waiting = 0
        # In the order in which they began. The result is the reply that ends one, None if it must make room.
        self._watches: dict[asyncio.Future[_Reply | None], str] = {}
        self._log = LimitLog()

    def handlers(self) -> grpc.GenericRpcHandler:
        """A stream of requests to gRPC, which would read the one of a unary call by itself."""
        coding: Any = {
            "request_deserializer": sized(health_pb2.HealthCheckRequest),
            "response_serializer": _Reply.SerializeToString,
        }
        return grpc.method_handlers_generic_handler(
            health.SERVICE_NAME,
            {
                "Check": grpc.stream_unary_rpc_method_handler(self._check, **coding),
                "Watch": grpc.stream_stream_rpc_method_handler(self._watch, **coding),
            },
        )

    def close(self) -> None:
        self._is_closed = True
        for watch in list(self._watches):
            if not watch.done():
                watch.set_result(_Reply(status=_Reply.NOT_SERVING))

    async def _check(self, requests: Any, context: _Context) -> _Reply:
        service = await self._service(context)
        if service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return self._reply(service)

    async def _watch(self, requests: Any, context: _Context) -> None:
        service = await self._service(context)
        watch: asyncio.Future[_Reply | None] = asyncio.get_running_loop().create_future()
        self._add(watch, context.peer())
        try:
            await context.write(self._reply(service))
            last = await watch if not self._is_closed else self._reply(service)
        finally:
            self._watches.pop(watch, None)
        if last is None:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many watches: the oldest is ended")
        await context.write(last)

    def _reply(self, service: str) -> _Reply:
        if service not in self._services:
            return _Reply(status=_Reply.SERVICE_UNKNOWN)
        return _Reply(status=_Reply.NOT_SERVING if self._is_closed else _Reply.SERVING)

    def _add(self, watch: asyncio.Future[_Reply | None], peer: str) -> None:
        of_peer = [one for one, other in self._watches.items() if other == peer]
        oldest = None
        if len(of_peer) >= PEER_WATCHES_MAX:
            oldest = of_peer[0]
        elif len(self._watches) >= WATCHES_MAX:
            oldest = next(iter(self._watches))
        if oldest is not None:
            self._log.reached(f"health watches: {len(self._watches)}, of one connection {len(of_peer)}: one is ended")
            del self._watches[oldest]
            if not oldest.done():
                oldest.set_result(None)
        self._watches[watch] = peer

    async def _service(self, context: _Context) -> str:
        """The name in the request."""
        if self._waiting >= WAITING_MAX:
            self._log.reached(f"{self._waiting} health requests wait: further ones are refused")
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many health requests")
        self._waiting += 1
        try:
            await self._reading.acquire()
        finally:
            self._waiting -= 1
        reading = asyncio.ensure_future(context.read())
        try:
            await asyncio.wait({reading}, timeout=PATIENCE_S)
            if not reading.done():
                # After a stall of the event loop, the request may be there although the time is over.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            if not reading.done():
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no request within {PATIENCE_S:g} s")
            request: Any = await reading
        except ProtocolError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a HealthCheckRequest")
        finally:
            reading.cancel()
            self._reading.release()
        if request is grpc.aio.EOF:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
        return str(request.request.service)
