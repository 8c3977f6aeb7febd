"""gRPC on a port: its limits, what happens every second, and a graceful end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from penstock.errors import PenstockError
from penstock.limits import MIB
from penstock.server.gate import Gate
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.grpc.calls import Reception
from penstock.server.grpc.connections import Connections
from penstock.server.grpc.desk import Desk
from penstock.server.grpc.table import SERVICES
from penstock.server.metrics import Counts
from penstock.server.site import Site

CALLS_MAX = 10_000
STREAMS_MAX = 1_000
GRACE_S = 5.0
_ROUND_S = 1.0
# What gRPC's options can be.
_INT_MAX = (1 << 31) - 1
_NAMES = [pb.DESCRIPTOR.services_by_name[name].full_name for name in SERVICES]


class GrpcDoor:
    """Belongs to the broker's event loop."""

    def __init__(
        self,
        site: Site,
        gate: Gate,
        *,
        counts: Counts | None = None,
        broke: Callable[[PenstockError], None] = lambda error: None,
    ) -> None:
        """`broke` hears of an error after which the broker must not go on."""
        self._desk = Desk(site)
        self.counts = counts or Counts()
        self._reception = Reception(self._desk, gate, self.counts, broke)
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None
        self._rounds: asyncio.Task[None] | None = None

    async def open(self, host: str, port: int, tls: grpc.ServerCredentials | None = None) -> int:
        """The port that it listens on. OSError if it can't."""
        connections = Connections()
        server = grpc.aio.server(options=_options(self._desk.site), maximum_concurrent_rpcs=CALLS_MAX)
        connections.found()
        self.counts.connected["grpc"] = connections.count
        for name, methods in SERVICES.items():
            server.add_generic_rpc_handlers((self._reception.handlers(name, methods),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection([*_NAMES, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            chosen = server.add_insecure_port(address) if tls is None else server.add_secure_port(address, tls)
        except RuntimeError as error:
            raise OSError(f"gRPC can't listen on {address}: it is in use, or none of this machine's") from error
        for name in ("", *_NAMES):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        await server.start()
        self._server = server
        self._rounds = asyncio.get_running_loop().create_task(self._go_round())
        return chosen

    async def _go_round(self) -> None:
        while True:
            await asyncio.sleep(_ROUND_S)
            self._desk.members.keep_alive()

    async def close(self) -> None:
        """Answers what was asked, ends polls and streams, and closes."""
        await self._health.enter_graceful_shutdown()
        self._desk.end()
        if self._rounds is not None:
            self._rounds.cancel()
        if self._server is not None:
            await self._server.stop(GRACE_S)
        await self._desk.settled()


def _options(site: Site) -> list[tuple[str, int]]:
    """Who sends more pings than allowed, or takes none, is let go; so is who does nothing for long.

    Keys come with each call, so there are no strangers among connections: what is bounded of those who have none is the
    handshake, and that nothing of a call is read before it is known whose it is.
    """
    limits = site.limits
    return [
        # A batch as large as a frame, with what the proto adds to each message.
        ("grpc.max_receive_message_length", limits.frame_bytes_max + MIB),
        # What is compressed would be unpacked before it is known who sends it: refused.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.max_concurrent_streams", STREAMS_MAX),
        ("grpc.max_allowed_incoming_connections", min(limits.connections_max, _INT_MAX)),
        ("grpc.server_handshake_timeout_ms", _ms(limits.handshake_us)),
        ("grpc.max_connection_idle_ms", _ms(limits.idle_us)),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        # Counts connections, among other things.
        ("grpc.enable_channelz", 1),
        # A port that is taken is an error, not shared.
        ("grpc.so_reuseport", 0),
    ]


def _ms(us: int) -> int:
    """At least one: none would be no limit."""
    return min(max(us // 1_000, 1), _INT_MAX)
