"""How many connections a gRPC server has: it tells nobody but Channelz, gRPC's own view of itself.

That is JSON from its core, the source of the official `grpcio-channelz` service too. A server is known there by a
number, which is the one that has come with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from grpc._cython import cygrpc  # type: ignore[attr-defined]

_get_servers: Callable[[int], bytes] = cygrpc.channelz_get_servers
_get_sockets: Callable[[int, int, int], bytes] = cygrpc.channelz_get_server_sockets


class Connections:
    """Made before the server is; `found` is called once it is there. One server at a time."""

    def __init__(self) -> None:
        self._others = _servers()
        self._server: int | None = None

    def found(self) -> None:
        self._server = next(iter(_servers() - self._others), None)

    def count(self) -> int:
        if self._server is None:
            return 0
        total = first = 0
        while True:
            try:
                page = msgspec.json.decode(_get_sockets(self._server, first, 0))
            except ValueError:
                # The server is gone.
                return total
            sockets = page.get("socketRef", [])
            total += len(sockets)
            if page.get("end") or not sockets:
                return total
            first = int(sockets[-1]["socketId"]) + 1


def _servers() -> set[int]:
    found, first = set[int](), 0
    while True:
        page: dict[str, Any] = msgspec.json.decode(_get_servers(first))
        numbers = [int(server["ref"]["serverId"]) for server in page.get("server", [])]
        found.update(numbers)
        if page.get("end") or not numbers:
            return found
        first = numbers[-1] + 1
