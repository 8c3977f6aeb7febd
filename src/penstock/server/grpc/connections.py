"""The connections of a gRPC server, found among the descriptors of this process.

gRPC accepts connections on threads of its own and gives no access to them: it has no bound on connections without a
key, and it can't close one. Here each pass over the descriptors finds the sockets that are connected to the listener's
port. A connection counts as a stranger until one of its calls came with a key, and is closed by shutting its socket
down, which to gRPC looks as if the client had done so.

Between two passes, gRPC's own bound (`grpc.max_allowed_incoming_connections`) holds.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from stat import S_ISSOCK
from time import monotonic

from penstock.server.admission import LimitLog, Strangers

PASS_INTERVAL_S = 0.2
# Of one processor, for passes.
_SHARE_MAX = 0.02
# Descriptors that are looked at without a break: the event loop has other work.
_CHUNK = 256


class Connection:
    """One socket. `peer` is what gRPC calls the other end."""

    def __init__(self, descriptor: int, inode: int, peer: str) -> None:
        self._descriptor = descriptor
        self._inode = inode
        self.peer = peer

    def evict(self, reason: str) -> None:
        """gRPC has no way to give the reason. It sees the end of the stream and closes."""
        with suppress(OSError):
            if os.fstat(self._descriptor).st_ino == self._inode:
                with _borrowed(self._descriptor) as found:
                    found.shutdown(socket.SHUT_RDWR)


class Connections:
    """Belongs to the broker's event loop."""

    def __init__(self, host: str, port: int, strangers: Strangers, connections_max: int) -> None:
        self._port = port
        hosts = {str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        # Another listener may have this port at another address. None: this one has all addresses.
        self._hosts = None if hosts & {"0.0.0.0", "::"} else hosts
        self._strangers = strangers
        self._connections_max = connections_max
        # By inode: a descriptor's number is used again, an inode's as long as it is open is not.
        self._found: dict[int, Connection] = {}
        self._others: set[int] = set()
        self._by_peer: dict[str, Connection] = {}
        # Of calls with a key, until a pass has found their connection.
        self._authenticated: set[str] = set()
        self._log = LimitLog()

    @property
    def count(self) -> int:
        """As of the last pass."""
        return len(self._found)

    def authenticate(self, peer: str) -> None:
        """A call of this connection came with a key."""
        if peer not in self._authenticated:
            self._authenticated.add(peer)
            if (found := self._by_peer.get(peer)) is not None:
                self._strangers.discard(found)

    async def run(self) -> None:
        while True:
            began = monotonic()
            await self.scan()
            await asyncio.sleep(max(PASS_INTERVAL_S, (monotonic() - began) / _SHARE_MAX))

    async def scan(self) -> None:
        """One pass over all descriptors."""
        authenticated = self._authenticated.copy()
        seen = set[int]()
        for turn, name in enumerate(os.listdir("/dev/fd")):
            if turn % _CHUNK == _CHUNK - 1:
                await asyncio.sleep(0)
            # It may have been closed by now; so was the one by which the directory was read.
            with suppress(OSError):
                self._look(int(name), seen)
        for inode in self._found.keys() - seen:
            gone = self._found.pop(inode)
            self._strangers.discard(gone)
            if self._by_peer.get(gone.peer) is gone:
                del self._by_peer[gone.peer]
                self._authenticated.discard(gone.peer)
        self._others &= seen
        # A call that came before this pass began, and whose connection it has not found.
        self._authenticated -= authenticated - self._by_peer.keys()
        if len(self._found) >= self._connections_max:
            self._log.reached(f"the gRPC listener has {len(self._found)} connections: it closes new ones")

    def _look(self, descriptor: int, seen: set[int]) -> None:
        status = os.fstat(descriptor)
        inode = status.st_ino
        if not S_ISSOCK(status.st_mode):
            return
        seen.add(inode)
        if inode in self._found or inode in self._others:
            return
        peer = _peer(descriptor, self._port, self._hosts)
        if peer is None:
            self._others.add(inode)
            return
        found = self._found[inode] = self._by_peer[peer] = Connection(descriptor, inode, peer)
        if peer not in self._authenticated:
            self._strangers.add(found)


def _peer(descriptor: int, port: int, hosts: set[str] | None) -> str | None:
    """The other end of a socket that is connected to our port, as gRPC writes it."""
    with _borrowed(descriptor) as found:
        if found.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        ours = found.getsockname()
        if ours[1] != port or not (hosts is None or ours[0].removeprefix("::ffff:") in hosts):
            return None
        try:
            host, other, *_ = found.getpeername()
        except OSError:
            # The listener itself, or a connection that was reset.
            return None
    mapped = host.removeprefix("::ffff:")
    return f"ipv4:{mapped}:{other}" if "." in mapped else f"ipv6:%5B{host}%5D:{other}"


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """A socket of gRPC's, which is not closed here."""
    found = socket.socket(fileno=descriptor)
    try:
        yield found
    finally:
        found.detach()
