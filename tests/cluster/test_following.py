"""Fetching from a leader goes on, whatever happens to the connection, and when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from etcd_support import run
from penstock.clock import SystemClock
from penstock.cluster import following
from penstock.cluster.following import Following
from penstock.cluster.tally import Tally
from penstock.cluster.words import Replicate
from penstock.errors import ConnectionLost, InvalidInput, PenstockError
from penstock.net.connection import Place


class Lines:
    """Connections to the leader, each as it is told to be."""

    def __init__(self) -> None:
        self.opens: list[Callable[[], None]] = []
        self.opened = asyncio.Event()
        self.closed = 0

    async def to(self, place: Place, clock: object) -> Line:
        await asyncio.sleep(0)
        return Line(self)


class Line:
    is_open = True

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self.ended = asyncio.Event()

    def open_stream(self, *_: object) -> int:
        if self._lines.opens:
            self._lines.opens.pop(0)()
        self._lines.opened.set()
        return 1

    def tell(self, *_: object) -> None:
        pass

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
        hosted: Any = type("Hosted", (), {"identity": "p"})
        fetch: Any = None
        self.following.ask("a", hosted, fetch)


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
