"""What a connection does when it is not to be, or not any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.client.requests import ListTopics
from penstock.clock import SystemClock
from penstock.errors import ConnectionLost
from penstock.limits import DEFAULT_LIMITS
from penstock.net.connection import Connection, Place
from penstock.wire.conversation import BrokerEnd
from penstock.wire.packets import Kind, Packet
from penstock.wire.words import Leave
from served import Served, serve


class Wire:
    """The transport of a connection to a broker that says WELCOME at once. Closed as uvloop's are: it raises."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        self._broker = BrokerEnd(DEFAULT_LIMITS)
        self.is_closed = False

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        self.is_closed = True

    def write(self, data: bytes) -> None:
        if self.is_closed:
            raise RuntimeError("unable to perform operation; the handler is closed")
        for packet in self._broker.receive(data):
            if packet.kind is Kind.HELLO:
                self._broker.greeted(packet)
                asyncio.get_running_loop().call_soon(
                    self._protocol.data_received, self._broker.welcome("x", 0, 1_000, "")
                )


def test_a_connection_whose_caller_gave_up_writes_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        failures: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda loop, context: failures.append(context))
        made: list[Connection] = []

        async def create_connection(make: Callable[[], Connection], *where: object, **how: object) -> object:
            protocol = make()
            made.append(protocol)
            wire = Wire(protocol)
            protocol.connection_made(wire)  # type: ignore[arg-type]
            try:
                while protocol._beat is None:
                    await asyncio.sleep(0)
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                # Without a word to the protocol.
                wire.is_closed = True
                raise
            return wire, protocol

        monkeypatch.setattr(loop, "create_connection", create_connection)
        connecting = asyncio.ensure_future(Connection.to(Place("nowhere", 1), SystemClock()))
        while not made or made[0]._beat is None:
            await asyncio.sleep(0)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        beat = made[0]._beat
        assert not made[0].is_open
        # Until its time has come: it is due a third of a millisecond after WELCOME.
        while not beat.cancelled() and loop.time() <= beat.when() + 0.01:
            await asyncio.sleep(0)
        assert not failures

    asyncio.run(work())


def test_a_request_to_a_connection_that_closes_hears_that_it_is_lost(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        connection = await Connection.to(here.place, SystemClock())
        assert connection._transport is not None
        connection._transport.abort()
        # In the same turn: nobody was told yet that the connection is lost.
        assert connection.is_open
        with pytest.raises(ConnectionLost):
            await connection.request(Kind.LEAVE, Leave("g", "c"))
        await connection.close()

    serve(tmp_path, work)


def test_nothing_is_kept_of_a_reply_that_comes_while_its_caller_gives_up(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        connection = await Connection.to(here.place, SystemClock())
        asking = asyncio.ensure_future(connection.request(Kind.CALL, ListTopics()))
        while not connection._under_way:
            await asyncio.sleep(0)
        (correlation,) = connection._under_way
        asking.cancel()
        # Before the caller runs again.
        connection._take_reply(Packet(Kind.REPLY, correlation, b"", memoryview(b"x" * 1000)))
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert (connection._missed, connection._late, connection._under_way) == ({}, {}, {})
        await connection.close()

    serve(tmp_path, work)


@pytest.mark.parametrize("code", ["stopping", "silent", "handshake_timeout"])
def test_a_broker_that_says_goodbye_before_it_welcomes_is_one_that_is_lost(code: str) -> None:
    async def work() -> None:
        async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(BrokerEnd(DEFAULT_LIMITS).goodbye(code, "not now"))
            writer.close()

        server = await asyncio.start_server(leave, "127.0.0.1", 0)
        async with server:
            host, port = server.sockets[0].getsockname()[:2]
            with pytest.raises(ConnectionLost, match="not now"):
                await Connection.to(Place(host, port), SystemClock())

    asyncio.run(work())
