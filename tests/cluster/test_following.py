"""Fetching from a leader goes on, whatever happens to the connection, and when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from etcd_support import run
from penstock.clock import SystemClock
from penstock.cluster import following
from penstock.cluster.core.messages import Fetch, Withdraw
from penstock.cluster.following import Following
from penstock.cluster.tally import Tally
from penstock.cluster.words import Answers, CleanedQuery, Fetches, Replicate, decoded
from penstock.errors import ConnectionLost, InvalidInput, PenstockError
from penstock.net.connection import Place
from penstock.wire.packets import Kind, Packet


class Lines:
    """Connections to the leader, each as it is told to be."""

    def __init__(self) -> None:
        self.opens: list[Callable[[], None]] = []
        self.opened = asyncio.Event()
        self.closed = 0
        self.told: asyncio.Queue[Fetches] = asyncio.Queue()
        self.last: Line

    async def to(self, place: Place, clock: object) -> Line:
        await asyncio.sleep(0)
        return Line(self)


class Line:
    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self.is_open = True
        self.ended = asyncio.Event()

    def open_stream(self, kind: Kind, me: Replicate, delivered: Callable[[Packet], None]) -> int:
        if self._lines.opens:
            self._lines.opens.pop(0)()
        self.delivered = delivered
        self._lines.last = self
        self._lines.opened.set()
        return 1

    def tell(self, kind: Kind, correlation: int, word: Fetches) -> None:
        # As it comes out of the network.
        self._lines.told.put_nowait(decoded(msgspec.msgpack.encode(word), Fetches))

    def deliver(self, answers: Answers) -> None:
        self.delivered(Packet(Kind.DELIVER, 1, msgspec.msgpack.encode(answers), memoryview(b"")))

    def lose(self) -> None:
        self.is_open = False
        self.ended.set()

    async def close(self) -> None:
        self._lines.closed += 1


class Here:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.lines = Lines()
        self.broken: asyncio.Queue[PenstockError] = asyncio.Queue()
        self.places: list[Callable[[], None]] = []
        patch.setattr(following, "Connection", self.lines)
        self.following = Following(
            self._place, {}, Replicate("b", "disk", "process"), SystemClock(), Tally(), self.broken.put_nowait
        )

    def _place(self, node: str) -> Place:
        if self.places:
            self.places.pop(0)()
        return Place("127.0.0.1", 1)

    def begin(self) -> None:
        """As a replica does by which the leader is asked first."""
        self.ask("a", 1)

    def ask(self, leader: str, request: int) -> Fetch:
        hosted: Any = type("Hosted", (), {"identity": "p"})
        fetch = Fetch("b", "disk", "process", 5, request, (0, 0), (0, 0))
        self.following.ask(leader, hosted, fetch)
        return fetch


def fails(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def test_a_leader_that_dies_before_the_stream_is_open_is_fetched_from_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        here = Here(monkeypatch)
        here.lines.opens = [fails(ConnectionLost("it is gone"))]
        here.begin()
        await here.lines.opened.wait()
        assert here.lines.closed == 1
        assert here.broken.empty()
        await here.following.close()

    run(main)


def test_a_leader_whose_place_can_not_be_told_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        here = Here(monkeypatch)
        here.places = [fails(InvalidInput("no address"))]
        here.begin()
        await here.lines.opened.wait()
        assert here.broken.empty()
        await here.following.close()

    run(main)


def test_a_bug_in_what_fetches_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        here = Here(monkeypatch)
        here.lines.opens = [fails(ZeroDivisionError("a bug"))]
        here.begin()
        assert isinstance((await here.broken.get()).__cause__, ZeroDivisionError)
        await here.following.close()

    run(main)


def test_a_leader_of_a_build_that_does_not_know_a_query_is_asked_once_by_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        monkeypatch.setattr(following, "_CLEANED_S", 0.001)
        asked: list[object] = []
        monkeypatch.setattr(Line, "tell", lambda self, kind, correlation, word: asked.extend(word.queries))
        here = Here(monkeypatch)
        query = CleanedQuery("p", 1, 10, [])
        assert await here.following.cleaned(query) is None, "nobody leads it"
        here.begin()
        await here.lines.opened.wait()
        await asyncio.sleep(0)
        assert await here.following.cleaned(query) is None
        assert await here.following.cleaned(query) is None
        assert asked == [query]
        await here.following.close()

    run(main)


def test_a_replica_that_follows_a_leader_no_more_says_so_before_the_next_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        here = Here(monkeypatch)
        here.begin()
        assert (await here.lines.told.get()).withdrawn == []
        fetch = here.ask("a", 2)
        here.following.withdraw("p")
        again = here.ask("a", 3)

        told = await here.lines.told.get()
        while not told.fetches:
            told = await here.lines.told.get()

        assert told.fetches == [("p", again)], "not the one that was withdrawn"
        assert told.withdrawn == [("p", Withdraw("b", "disk", "process", 5, fetch.request))]
        here.following.withdraw("p")
        here.following.withdraw("p")
        assert (await here.lines.told.get()).withdrawn == [("p", Withdraw("b", "disk", "process", 5, again.request))]
        assert (await here.lines.told.get()).withdrawn == [], "once"
        await here.following.close()

    run(main)


def test_every_packet_returns_the_time_of_the_last_one_that_came_by_the_same_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        here = Here(monkeypatch)
        here.begin()
        assert (await here.lines.told.get()).echo_us == 0
        here.lines.last.deliver(Answers([], 77))
        assert (await here.lines.told.get()).echo_us == 77

        here.lines.opened.clear()
        here.lines.last.lose()
        await here.lines.opened.wait()

        assert (await here.lines.told.get()).echo_us == 0
        await here.following.close()

    run(main)


def test_packets_of_a_build_without_times_and_withdrawals_are_read_and_its_own_are() -> None:
    """Each side ignores what it does not know."""

    class OldFetches(msgspec.Struct, array_like=True):
        fetches: list[tuple[str, Fetch]]

    class OldAnswers(msgspec.Struct, array_like=True):
        answers: list[Any]

    fetch = Fetch("b", "disk", "process", 5, 1, (0, 0), (0, 0))
    new = Fetches([("p", fetch)], [("p", Withdraw("b", "disk", "process", 5, 1))], 77)
    assert decoded(msgspec.msgpack.encode(new), OldFetches).fetches == [("p", fetch)]
    assert decoded(msgspec.msgpack.encode(OldFetches([("p", fetch)])), Fetches) == Fetches([("p", fetch)], [], 0)
    assert decoded(msgspec.msgpack.encode(Answers([], 77)), OldAnswers).answers == []
    assert decoded(msgspec.msgpack.encode(OldAnswers([])), Answers) == Answers([], 0)
