"""gRPC on a port: its limits, what happens every second, and a graceful end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from penstock.errors import PenstockError
from penstock.limits import KIB, MIB
from penstock.server.gate import Gate
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.grpc.calls import CALLS_MAX, Methods, Reception
from penstock.server.grpc.connections import Connections
from penstock.server.grpc.desk import Desk
from penstock.server.grpc.health import Health
from penstock.server.grpc.reflection import DESCRIBED, methods_of
from penstock.server.grpc.table import SERVICES
from penstock.server.metrics import Counts
from penstock.server.site import Site

STREAMS_MAX = 1_000
GRACE_S = 5.0
# What a client may send of each call before the broker reads its request. gRPC's default is 4 MiB.
_UNREAD_BYTES_MAX = 16 * KIB
_ROUND_S = 1.0
# What gRPC's options can be.
_INT_MAX = (1 << 31) - 1
_NAMES = [pb.DESCRIPTOR.services_by_name[name].full_name for name in SERVICES]
_ALL_NAMES = [*_NAMES, health.SERVICE_NAME, reflection.SERVICE_NAME]


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
        self._health = Health(("", *_NAMES))
        self._strangers = gate.strangers
        self._server: grpc.aio.Server | None = None
        self._rounds: list[asyncio.Task[None]] = []

    async def open(self, host: str, port: int, tls: grpc.ServerCredentials | None = None) -> int:
        """The port that it listens on. OSError if it can't."""
        server = grpc.aio.server(options=_options(self._desk.site), maximum_concurrent_rpcs=CALLS_MAX)
        services: list[tuple[Any, Methods]] = [
            (pb.DESCRIPTOR.services_by_name[name], methods) for name, methods in SERVICES.items()
        ]
        services.append((DESCRIBED, methods_of(_ALL_NAMES)))
        for described, methods in services:
            server.add_generic_rpc_handlers((self._reception.handlers(described, methods),))
        server.add_generic_rpc_handlers((self._health.handlers(),))
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            chosen = server.add_insecure_port(address) if tls is None else server.add_secure_port(address, tls)
        except RuntimeError as error:
            raise OSError(f"gRPC can't listen on {address}: it is in use, or none of this machine's") from error
        connections = Connections(host, chosen, self._strangers, self._desk.site.limits.connections_max)
        self.counts.connected["grpc"] = lambda: connections.count
        self._reception.admitted = connections.authenticate
        await server.start()
        self._server = server
        loop = asyncio.get_running_loop()
        self._rounds = [loop.create_task(work) for work in (self._go_round(), connections.run())]
        return chosen

    async def _go_round(self) -> None:
        while True:
            await asyncio.sleep(_ROUND_S)
            self._desk.members.keep_alive()

    async def close(self) -> None:
        """Answers what was asked, ends polls and streams, and closes."""
        self._health.close()
        self._desk.end()
        for rounds in self._rounds:
            rounds.cancel()
        if self._server is not None:
            await self._server.stop(GRACE_S)
        await self._desk.settled()


def _options(site: Site) -> list[tuple[str, int]]:
    """Who sends more pings than allowed, or takes none, is let go; so is who does nothing for long.

    Nothing of a call is read before it is known whose it is, but for health checks: see `Health`. Connections without a
    key are bounded by `Connections`.
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
        ("grpc.http2.lookahead_bytes", _UNREAD_BYTES_MAX),
        # It would make that larger as it sees fit.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.enable_channelz", 0),
        # A port that is taken is an error, not shared.
        ("grpc.so_reuseport", 0),
    ]


def _ms(us: int) -> int:
    """At least one: none would be no limit."""
    return min(max(us // 1_000, 1), _INT_MAX)
