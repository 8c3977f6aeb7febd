"""What the benchmarks measure other brokers with. The brokers themselves are in test_benchmarks_run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
NOW_NS = 1_000_000_000_000
BATCH = [b"a", b"b", b"c"]


@pytest.fixture
def closed_loop(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return import_module("peers.closed_loop")


@pytest.fixture
def arrivals(monkeypatch: pytest.MonkeyPatch) -> Any:
    """At a time that stands still."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = import_module("peers.arrivals")
    stopped = SimpleNamespace(monotonic=lambda: NOW_NS / 1e9, monotonic_ns=lambda: NOW_NS)
    monkeypatch.setattr(module, "time", stopped)
    return module


def test_each_client_publishes_the_batch_at_least_once_and_only_whole_batches_count(closed_loop: Any) -> None:
    published: list[Sequence[bytes]] = []

    @contextmanager
    def connected() -> Iterator[Callable[[Sequence[bytes]], object]]:
        yield published.append

    found = closed_loop.in_threads(2, BATCH, 0, connected)

    assert found.messages == 6
    assert len(found.each_s) == 2
    # One message first, to begin with, which does not count.
    assert sorted(map(len, published)) == [1, 1, 3, 3]


def test_tasks_count_as_threads_do(closed_loop: Any) -> None:
    published: list[Sequence[bytes]] = []

    async def publish(batch: Sequence[bytes]) -> None:
        published.append(batch)

    found = asyncio.run(closed_loop.in_tasks(BATCH, 0, [publish, publish]))

    assert found.messages == 6
    assert sorted(map(len, published)) == [1, 1, 3, 3]


def test_a_client_that_fails_at_first_ends_all_with_its_own_error(closed_loop: Any) -> None:
    turns = iter(range(2))

    @contextmanager
    def connected() -> Iterator[Callable[[Sequence[bytes]], object]]:
        if next(turns):
            raise ConnectionRefusedError("nobody is there")
        yield lambda batch: None

    with pytest.raises(ConnectionRefusedError, match="nobody is there"):
        closed_loop.in_threads(2, BATCH, 0, connected)


def test_arrivals_are_over_when_all_are_here(arrivals: Any) -> None:
    waiting = arrivals.Arrivals(2)
    waiting.add(b"%020d" % NOW_NS)
    assert not waiting.is_over

    waiting.add(b"%020d" % NOW_NS)

    assert waiting.is_over
    assert not waiting.is_late
    first, second = waiting.seconds()
    assert 0 <= first <= second


def test_arrivals_are_over_as_soon_as_one_is_late(arrivals: Any) -> None:
    waiting = arrivals.Arrivals(2)

    waiting.add(b"%020d" % (NOW_NS - 2 * arrivals.LATE_NS_MAX))

    assert waiting.is_over
    assert waiting.is_late


@pytest.mark.parametrize("arrived", [0, 1, 3])
def test_messages_that_are_missing_or_came_twice_are_no_result(arrivals: Any, arrived: int) -> None:
    waiting = arrivals.Arrivals(2)
    for _ in range(arrived):
        waiting.add(b"%020d" % NOW_NS)

    with pytest.raises(AssertionError, match="missing, or came twice"):
        waiting.seconds()


class Process:
    """One that is over when it has been started, with the exit code that it is made for."""

    exitcode_then = 0

    def __init__(self, target: object, args: object) -> None:
        self.exitcode: int | None = None

    def start(self) -> None:
        self.exitcode = self.exitcode_then

    def join(self) -> None:
        assert self.exitcode is not None

    def is_alive(self) -> bool:
        return False


class Broken(Process):
    exitcode_then = 1


class Slow:
    """Delivers at once what it is asked for, up to a rate; above it, everything is late."""

    name = "Slow"

    def __init__(self, rate_max: int) -> None:
        self._rate_max = rate_max

    def create(self, address: str, topic: str) -> None: ...

    def produce(self, address: str, topic: str, rate: int, count: int) -> None: ...

    def consume(self, address: str, topic: str, waiting: Any, ready: Callable[[], None]) -> None:
        ready()
        late_ns = 2_000_000_000 if waiting.count > self._rate_max else 0
        while not waiting.is_over:
            waiting.add(b"%020d" % (NOW_NS - late_ns))


def test_the_rate_goes_down_until_the_pace_is_kept(arrivals: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "PROCESSES", SimpleNamespace(Process=Process))

    assert arrivals.under_way(Slow(10_000), "", 10_000, 1).rate == 10_000
    assert arrivals.under_way(Slow(1_500), "", 10_000, 1).rate == 1_000
    assert arrivals.under_way(Slow(10_000), "", 500, 1).rate == 500
    with pytest.raises(RuntimeError, match="Slow does not keep the pace"):
        arrivals.under_way(Slow(1), "", 10_000, 1)


def test_a_producer_that_breaks_down_is_no_result(arrivals: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "PROCESSES", SimpleNamespace(Process=Broken))

    with pytest.raises(AssertionError, match="producer of Slow broke down"):
        arrivals.under_way(Slow(10_000), "", 10_000, 1)
