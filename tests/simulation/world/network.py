"""A network in memory: TCP as processes see it.

cut(a, b)          nothing from host a arrives at host b; what is sent arrives when that is over
slow(a, b, …)      what host a sends to host b takes longer, also for its size
go_silent(a, b)    nothing arrives any more by the connections that there are between two hosts, and nobody is told
reset_all(a, b)    the connections between two hosts are reset
power_off(a)       a host falls silent: others learn nothing of it, until it is up again and resets what they send
vanish(process)    a process dies, and its host closes its connections
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple
from zlib import crc32

from simulation.world.loop import Process, WorldLoop

_SYN_US = 1_000_000
_LATENCY_US = (30, 400)
# Now and then a segment takes much longer.
_SLOW, _SLOW_US = 0.01, (2_000, 30_000)
# Of bytes that were sent and not read.
_HIGH = 64 * 1024
_READ_MAX = 256 * 1024
_FIN, _RST = "FIN", "RST"
_Sent = bytes | str


class Listener(NamedTuple):
    process: Process
    factory: Callable[[], asyncio.BaseProtocol]


class _Socket(NamedTuple):
    host: str
    port: int

    def getsockname(self) -> tuple[str, int]:
        return self.host, self.port


class Listening:
    """As much of an `asyncio.Server` as is used."""

    def __init__(self, network: Network, host: str, port: int) -> None:
        self.sockets = (_Socket(host, port),)
        self._network = network

    def close(self) -> None:
        self._network.listeners.pop(tuple(self.sockets[0]), None)

    async def wait_closed(self) -> None:
        pass


class Link:
    """From one host to another, if it is slow."""

    def __init__(self, latency_us: int, bytes_per_s: int) -> None:
        self.latency_us = latency_us
        self.bytes_per_s = bytes_per_s
        # When it has carried what was sent so far.
        self.free_us = 0

    def arrives_us(self, now_us: int, size: int) -> int:
        self.free_us = max(self.free_us, now_us) + size * 1_000_000 // self.bytes_per_s
        return self.free_us + self.latency_us


class Network:
    def __init__(self, loop: WorldLoop, seed: str) -> None:
        self.loop = loop
        self.listeners: dict[tuple[str, int], Listener] = {}
        self.rng = Random(f"network {seed}")
        # All that are open, or half-open.
        self.transports: dict[WorldTransport, None] = {}
        self._cuts: dict[tuple[str, str], None] = {}
        self._off: dict[str, None] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._ports = 50_000

    # --- faults ------------------------------------------------------------------------------------------

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def is_on(self, host: str) -> bool:
        return host not in self._off

    def cut(self, source: str, target: str) -> None:
        if source != target:
            self._cuts[source, target] = None

    def mend(self, source: str, target: str) -> None:
        if self._cuts.pop((source, target), self) is None:
            for transport in list(self.transports):
                if transport.process.host == source and transport.peer.process.host == target:
                    transport.retransmit()

    def mend_all(self) -> None:
        for source, target in list(self._cuts):
            self.mend(source, target)

    def slow(self, source: str, target: str, latency_us: int, bytes_per_s: int) -> None:
        self._links[source, target] = Link(latency_us, bytes_per_s)

    def speed_up(self, source: str, target: str) -> None:
        self._links.pop((source, target), None)

    def go_silent(self, one: str, other: str) -> int:
        found = self._between(one, other)
        for transport in found:
            transport.is_lost = transport.peer.is_lost = True
        return len(found)

    def connected(self, process: Process) -> list[str]:
        """To which hosts, by connections that the process has open."""
        return [each.peer.process.host for each in self.transports if each.process is process and not each.is_closing()]

    def _between(self, one: str, other: str) -> list[WorldTransport]:
        return [each for each in self.transports if (each.process.host, each.peer.process.host) == (one, other)]

    def reset_all(self, one: str, other: str) -> int:
        found = self._between(one, other)
        for transport in found:
            transport.reset()
            transport.peer.reset()
        return len(found)

    def power_off(self, host: str) -> None:
        self._off[host] = None
        for place in [place for place in self.listeners if place[0] == host]:
            del self.listeners[place]

    def power_on(self, host: str) -> None:
        del self._off[host]
        for transport in list(self.transports):
            if transport.peer.process.host == host:
                transport.retransmit()

    def vanish(self, process: Process) -> None:
        for place in [place for place, listener in self.listeners.items() if listener.process is process]:
            del self.listeners[place]
        for transport in [transport for transport in self.transports if transport.process is process]:
            # What it had written is in the kernel, and goes on its way.
            transport.send(_FIN)

    def silence(self, process: Process) -> None:
        """Nothing that it has sent and that has not left its host ever will."""
        for transport in self.transports:
            if transport.process is process:
                transport.silence()

    # --- connections -------------------------------------------------------------------------------------

    def latency_us(self, source: str, target: str, size: int = 0) -> int:
        rng = self.rng
        first, last = _SLOW_US if rng.random() < _SLOW else _LATENCY_US
        took_us = int(first + rng.random() * (last - first))
        link = self._links.get((source, target))
        return took_us if link is None else took_us + link.arrives_us(self.loop.now_us, size) - self.loop.now_us

    def listen(self, process: Process, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> Listening:
        if (host, port) in self.listeners:
            raise OSError(98, f"{host}:{port} is in use")
        self.listeners[host, port] = Listener(process, factory)
        return Listening(self, host, port)

    async def connect(
        self, process: Process, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        there_and_back = (process.host, host), (host, process.host)
        while any(self.is_cut(*way) for way in there_and_back) or not self.is_on(host):
            await asyncio.sleep(_SYN_US / 1e6)
        await asyncio.sleep(sum(self.latency_us(*way) for way in there_and_back) / 1e6)
        listener = self.listeners.get((host, port))
        if listener is None:
            raise ConnectionRefusedError(111, f"{host}:{port} refused the connection")
        self._ports += 1
        mine = WorldTransport(self, process, (host, port))
        theirs = WorldTransport(self, listener.process, (process.host, self._ports))
        mine.peer, theirs.peer = theirs, mine
        self.transports |= {mine: None, theirs: None}
        protocol = factory()
        mine.open(protocol)
        protocol.connection_made(mine)
        listener.process.call_later(self.latency_us(process.host, host), theirs.accept, listener.factory)
        return mine, protocol


class WorldTransport(asyncio.Transport):
    """One end of a connection. What it sends is under way until its peer reads it."""

    peer: WorldTransport

    def __init__(self, network: Network, process: Process, peername: tuple[str, int]) -> None:
        super().__init__({"peername": peername})
        self.process = process
        self._network = network
        self._protocol: Any = None
        # In the order in which it was sent: what is under way to the peer.
        self._sent: deque[_Sent] = deque()
        self._sent_bytes = 0
        self._arrives_us = 0
        # What has come and was not read.
        self._came: deque[_Sent] = deque()
        self._high = _HIGH
        self._is_writing_paused = self._is_reading_paused = False
        self._is_closing = self._is_over = self._is_silent = False
        # Nothing arrives at its peer, ever.
        self.is_lost = False

    def open(self, protocol: Any) -> None:
        self._protocol = protocol

    def accept(self, factory: Callable[[], Any]) -> None:
        self.open(factory())
        self._protocol.connection_made(self)
        self._read()

    # --- what its protocol calls -------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if data and not self._is_closing:
            self.send(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self.send(_FIN)
            self.process.call_soon(self._lost, None)

    def abort(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self.send(_RST)
            self.process.call_soon(self._lost, None)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_reading_paused = True

    def resume_reading(self) -> None:
        if self._is_reading_paused:
            self._is_reading_paused = False
            if self._came:
                self.process.call_soon(self._read)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH if high is None else high + _HIGH

    def get_write_buffer_size(self) -> int:
        return max(0, self._sent_bytes - _HIGH)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    # --- the network -------------------------------------------------------------------------------------

    def send(self, what: _Sent) -> None:
        if self._is_silent:
            return
        if isinstance(what, str):
            # Nothing comes after it.
            self._is_silent = True
        else:
            self._sent_bytes += len(what)
            if self._sent_bytes > self._high and not self._is_writing_paused:
                self._is_writing_paused = True
                self._protocol.pause_writing()
        self._sent.append(what)
        self._schedule(len(what))

    def silence(self) -> None:
        self._sent.clear()
        self._is_silent = True

    def _schedule(self, size: int) -> None:
        network = self._network
        latency_us = network.latency_us(self.process.host, self.peer.process.host, size)
        self._arrives_us = max(self._arrives_us, network.loop.now_us + latency_us)
        # In the process of the network: a receiver that is dead or paused still has a kernel.
        network.loop.world.call_later(self._arrives_us - network.loop.now_us, self._arrive)

    def retransmit(self) -> None:
        """What could not arrive."""
        for what in self._sent:
            self._schedule(len(what))

    def _arrive(self) -> None:
        network, peer = self._network, self.peer
        source, target = self.process.host, peer.process.host
        if (
            not self._sent
            or self.is_lost
            or network.is_cut(source, target)
            or not network.is_on(target)
            or not network.is_on(source)
        ):
            # It stays under way. TCP tries again when that is over: see `retransmit`.
            return
        what = self._sent.popleft()
        loop = network.loop
        content = crc32(what if isinstance(what, bytes) else what.encode())
        loop.digest = hash((loop.digest, loop.now_us, self.process.number, peer.process.number, content))
        if peer._is_over or peer.process.is_dead:
            # Its kernel does not know this connection.
            if what != _RST:
                self.process.call_soon(self._lost, ConnectionResetError(104, "Connection reset by peer"))
            return
        peer._came.append(what)
        if peer._protocol is not None:
            peer.process.call_soon(peer._read)

    def _read(self) -> None:
        came = self._came
        while came and not self._is_over:
            what = came[0]
            if isinstance(what, str):
                came.popleft()
                if what == _RST:
                    self._lost(ConnectionResetError(104, "Connection reset by peer"))
                elif not self._protocol.eof_received():
                    self.close()
            elif self._is_reading_paused or self._is_closing:
                if self._is_closing:
                    came.popleft()
                    continue
                return
            else:
                came.popleft()
                pieces = [what]
                size = len(what)
                while came and isinstance(came[0], bytes) and size < _READ_MAX:
                    size += len(came[0])
                    pieces.append(came.popleft())
                self.peer._was_read(size)
                self._protocol.data_received(b"".join(pieces))

    def _was_read(self, size: int) -> None:
        self._sent_bytes -= size
        if self._is_writing_paused and self._sent_bytes <= self._high // 4:
            self._is_writing_paused = False
            if not self._is_over:
                self.process.call_soon(self._protocol.resume_writing)

    def reset(self) -> None:
        """As a firewall would that has forgotten it."""
        self.silence()
        self.process.call_soon(self._lost, ConnectionResetError(104, "Connection reset by peer"))

    def _lost(self, error: Exception | None) -> None:
        if not self._is_over:
            self._is_over = self._is_closing = True
            if not self._sent:
                self._network.transports.pop(self, None)
            self._protocol.connection_lost(error)

    def __hash__(self) -> int:
        # By what is the same in every run.
        return hash((self.process.name, self._extra["peername"]))
