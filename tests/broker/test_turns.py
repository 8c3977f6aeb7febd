"""Walks and scans of principals take turns, and the broker's own wait for one slice at the most."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise

import pytest

from broker_support import broker_on, clock_of
from penstock.broker.turns import BROKER, PRINCIPAL, acting_for
from penstock.broker.work import SLICE_ROWS, Work
from penstock.message import Message
from penstock.testing import MemoryFiles

Rows = Callable[[str, int], Iterator[int]]


def recording() -> tuple[list[str], Rows]:
    """Names, in the order of the slices, and rows that are recorded under a name."""
    order: list[str] = []

    def rows(name: str, slices: int) -> Iterator[int]:
        for number in range(slices * SLICE_ROWS):
            if number % SLICE_ROWS == 0:
                order.append(name)
            yield number

    return order, rows


async def begun(work: Work, how: str, principal: str, rows: Iterator[int]) -> asyncio.Task[list[int]]:
    with acting_for(principal):
        return asyncio.create_task(getattr(work, how)(rows))


def between(order: list[str], name: str) -> list[int]:
    """Slices of others between two slices of this one."""
    places = [at for at, one in enumerate(order) if one == name]
    return [after - before - 1 for before, after in pairwise(places)]


@pytest.mark.parametrize("how", ["walk", "scan"])
def test_one_request_waits_for_one_slice_of_each_other_principal(how: str) -> None:
    async def main() -> None:
        order, rows = recording()
        with ThreadPoolExecutor(1) as readers:
            work = Work(readers)
            many = [await begun(work, how, "many", rows("many", 20)) for _ in range(50)]
            third = await begun(work, how, "third", rows("third", 20))
            one = await begun(work, how, "one", rows("one", 5))
            assert len(await one) == 5 * SLICE_ROWS
            await asyncio.gather(third, *many)
        # Each of the others had a turn, and no more.
        assert order.index("one") <= 3
        assert between(order, "one") == [2, 2, 2, 2]

    asyncio.run(main())


@pytest.mark.parametrize("how", ["walk", "scan"])
def test_the_broker_waits_for_one_slice_whatever_the_number_of_principals(how: str) -> None:
    async def main() -> None:
        order, rows = recording()
        with ThreadPoolExecutor(1) as readers:
            work = Work(readers)
            others = [await begun(work, how, f"p{number}", rows(f"p{number}", 3)) for number in range(100)]
            own = await begun(work, how, BROKER, rows("own", 5))
            await own
            await asyncio.gather(*others)
        assert order.index("own") == 1
        # Others get on as well.
        assert between(order, "own") == [1, 1, 1, 1]

    asyncio.run(main())


@pytest.mark.parametrize("how", ["walk", "scan"])
def test_a_cancelled_request_takes_no_more_turns(how: str) -> None:
    async def main() -> None:
        order, rows = recording()
        with ThreadPoolExecutor(1) as readers:
            work = Work(readers)
            gone = [await begun(work, how, "gone", rows("gone", 50)) for _ in range(50)]
            while not order:
                await asyncio.sleep(0)
            for task in gone:
                task.cancel()
            await asyncio.wait(gone)
            # The slice that is under way ends.
            await work.on_a_reading_thread(lambda: None)
            before = len(order)
            assert await getattr(work, how)(rows("one", 3))
        assert order[before:] == ["one"] * 3

    asyncio.run(main())


def test_a_request_that_is_cancelled_when_its_turn_has_come_passes_it_on() -> None:
    async def main() -> None:
        order, rows = recording()
        with ThreadPoolExecutor(1) as executor:
            work = Work(executor)
            async with work._walking:
                first = await begun(work, "walk", "a", rows("first", 1))
                second = await begun(work, "walk", "b", rows("second", 1))
                await asyncio.sleep(0)
            # The turn is given to the first, which does not run again.
            first.cancel()
            with suppress(asyncio.CancelledError):
                await first
            await second
        assert order == ["second"]

    asyncio.run(main())


def test_what_a_request_leads_to_in_the_background_is_the_brokers() -> None:
    async def main() -> None:
        principals: list[str] = []

        async def note() -> None:
            principals.append(PRINCIPAL.get())

        with ThreadPoolExecutor(1) as executor:
            work = Work(executor)
            with acting_for("client"):
                await work.in_background(note())
                await note()
        assert principals == [BROKER, "client"]

    asyncio.run(main())


def test_a_delayed_message_is_not_late_beside_many_listings() -> None:
    async def main() -> None:
        order, rows = recording()
        async with broker_on(MemoryFiles()) as broker:
            topic = await broker.create_topic("t", 3 * SLICE_ROWS)
            last = topic.count - 1
            await topic.publish(Message(b"x", deliver_at=clock_of(broker).now_us() + 1), last)
            clock_of(broker).advance_us(1_000_000)
            listings = [
                await begun(broker._work, "walk", f"p{number % 10}", rows("listing", 1_000)) for number in range(200)
            ]
            while not order:
                await asyncio.sleep(0)
            before = len(order)
            await broker.tick()
            assert not topic.partition(last).groups.delays.pending
            # The tick has three or four slices.
            assert len(order) - before <= 4
            for listing in listings:
                listing.cancel()
            await asyncio.wait(listings)

    asyncio.run(main())
