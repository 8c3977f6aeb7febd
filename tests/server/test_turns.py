"""A client that sends more packets than the broker carries out at once waits; the others do not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.errors import Overloaded
from penstock.net.connection import Connection
from penstock.server import turns
from penstock.server.turns import WAITING_MAX, Turns
from penstock.wire import words
from penstock.wire.conversation import ClientEnd
from penstock.wire.packets import Decoder, Kind
from served import Served, serve

PINGS = 2_000


def test_principals_take_turns_whatever_the_number_of_their_connections() -> None:
    done: list[str] = []

    def work(name: str, slices: int) -> turns.Work:
        left = [slices]

        def one() -> bool:
            done.append(name)
            left[0] -= 1
            return left[0] > 0

        return one

    async def run() -> None:
        taken = Turns(asyncio.get_running_loop())
        for number in range(3):
            taken.add("many", work(f"many{number}", 2))
        taken.add("one", work("one", 2))
        while taken.are_taken:
            await asyncio.sleep(0)

    asyncio.run(run())
    assert done == ["many0", "one", "many1", "one", "many2", "many0", "many1", "many2"]


def test_an_error_in_one_slice_does_not_end_the_turns_of_others() -> None:
    done: list[str] = []

    def broken() -> bool:
        raise ValueError

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: done.append("error"))
        taken = Turns(loop)
        taken.add("a", broken)
        taken.add("b", lambda: bool(done.append("b")))
        while taken.are_taken:
            await asyncio.sleep(0)
        taken.add("a", lambda: bool(done.append("a")))
        while taken.are_taken:
            await asyncio.sleep(0)

    asyncio.run(run())
    assert done == ["error", "b", "a"]


def test_so_many_connections_of_a_principal_wait() -> None:
    async def run() -> None:
        taken = Turns(asyncio.get_running_loop())
        for _ in range(WAITING_MAX):
            taken.add("a", lambda: False)
        with pytest.raises(Overloaded):
            taken.add("a", lambda: False)
        taken.add("b", lambda: False)

    asyncio.run(run())


def test_others_are_answered_before_a_flood_of_packets_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A slice is one packet.
    monkeypatch.setattr(turns, "SLICE_S", 0.0)

    async def work(here: Served) -> None:
        reader, writer = await asyncio.open_connection(here.place.host, here.place.port)
        end, decoder = ClientEnd(), Decoder(1 << 20)
        writer.write(end.hello("flood", None))
        (welcome,) = decoder.feed(await reader.readexactly(16) + await reader.read(4096))
        assert welcome.kind is Kind.WELCOME
        other = await Connection.to(here.place, SystemClock())
        answered = 0
        writer.write(end.ping(1) * PINGS)
        await writer.drain()
        # The first answers: it is being carried out.
        answered += sum(1 for _ in decoder.feed(await reader.read(64)))
        await other.request(Kind.CALL, words.requests.ListTopics(after=""))
        (session,) = [one for one in here.door.sessions if one.client.startswith("flood")]
        assert session._packets is not None
        while answered < PINGS:
            answered += sum(packet.kind is Kind.PONG for packet in decoder.feed(await reader.read(1 << 16)))
        assert session._packets is None
        writer.close()
        await other.close()

    serve(tmp_path, work)
