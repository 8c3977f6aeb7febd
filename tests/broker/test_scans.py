"""Long reads: on a thread of their own, in slices, and never longer than what was there when they began."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from broker_support import ack_all, broker_on, group_on
from penstock.broker.broker import Broker
from penstock.broker.dead_letters import DeadLetters
from penstock.broker.group import Group
from penstock.broker.ids import MessageId
from penstock.broker.partition import Partition
from penstock.broker.work import SLICE_ROWS, Work
from penstock.message import Message
from penstock.storage.log import Log
from penstock.testing import MemoryFiles

LETTERS = 300


class Counting(ThreadPoolExecutor):
    """Counts its jobs."""

    jobs = 0

    def submit(self, *args: Any, **named: Any) -> Future[Any]:
        self.jobs += 1
        return super().submit(*args, **named)


async def rejecting(broker: Broker, count: int) -> Group:
    await broker.create_topic("t", 1)
    group = await group_on(broker, "g", "t")
    for number in range(count):
        await broker.topic("t").publish(Message(b"%d" % number))
    await reject(group, count)
    return group


async def reject(group: Group, count: int) -> None:
    for receipt, _ in await group.lease("c", count):
        await group.reject(receipt, "bad")


def run(work: Callable[[Broker], Awaitable[None]]) -> None:
    async def main() -> None:
        with ThreadPoolExecutor(1, "reader") as readers:
            async with broker_on(MemoryFiles(), readers=readers) as broker:
                await work(broker)

    asyncio.run(main())


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_redrive_lets_the_event_loop_go_on_after_each_page(dry_run: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    turns, letters = 0, Counter[int]()
    fate = DeadLetters._fate

    async def counted(*args: Any) -> str:
        letters[turns] += 1
        return await fate(*args)

    monkeypatch.setattr(DeadLetters, "_fate", counted)

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def work(broker: Broker) -> None:
        await rejecting(broker, LETTERS)
        await broker.settle()
        counting = asyncio.create_task(count_turns())
        done = await broker.dead_letters.redrive("t", dry_run=dry_run)
        counting.cancel()
        assert len(done.in_place) == sum(letters.values()) == LETTERS
        assert max(letters.values()) <= SLICE_ROWS

    run(work)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_redrive_whose_caller_is_cancelled_finishes_the_letter_under_way_and_a_dry_run_ends_at_once(
    dry_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, going_on, fates = asyncio.Event(), asyncio.Event(), 0
    fate = DeadLetters._fate

    async def held(*args: Any) -> str:
        nonlocal fates
        begun.set()
        await going_on.wait()
        fates += 1
        return await fate(*args)

    monkeypatch.setattr(DeadLetters, "_fate", held)

    async def work(broker: Broker) -> None:
        await rejecting(broker, 5)
        await broker.settle()
        caller = asyncio.create_task(broker.dead_letters.redrive("t", dry_run=dry_run))
        await begun.wait()
        caller.cancel()
        with suppress(asyncio.CancelledError):
            await caller
        going_on.set()
        # Waits for the redrive to end.
        left = await broker.dead_letters.discard("t")
        assert (fates, left) == ((0, 5) if dry_run else (1, 4))

    run(work)


def test_a_dry_run_that_is_cancelled_while_it_publishes_letters_publishes_them_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They died a moment ago, and nothing else has published them."""
    begun, going_on = asyncio.Event(), asyncio.Event()

    async def work(broker: Broker) -> None:
        group = await rejecting(broker, 1)
        await broker.settle()
        publish = Partition.publish

        async def slow(partition: Partition, item: Any) -> Any:
            await going_on.wait()
            return await publish(partition, item)

        async def held(partition: Partition, item: Any) -> Any:
            begun.set()
            return await asyncio.shield(asyncio.ensure_future(slow(partition, item)))

        broker.topic("t").partition(0).groups.mourn = lambda group: None
        await broker.topic("t").publish(Message(b"late"))
        await reject(group, 1)
        monkeypatch.setattr(Partition, "publish", held)
        caller = asyncio.create_task(broker.dead_letters.redrive("t", dry_run=True))
        await begun.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        going_on.set()
        assert len((await broker.dead_letters.redrive("t", dry_run=True)).in_place) == 2
        assert len(list(broker.dead_letters.letters("t", with_settled=True))) == 2

    run(work)


def test_long_reads_are_done_by_the_reading_thread_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    names: set[str] = set()
    read = Log.read

    def noted(*args: Any, **named: Any) -> Any:
        names.add(threading.current_thread().name.split("_")[0])
        return read(*args, **named)

    async def work(broker: Broker) -> None:
        group = await rejecting(broker, LETTERS)
        await broker.topic("t").publish(Message(b"last"))
        await ack_all(group, await group.lease("c", 1))
        await broker.settle()
        monkeypatch.setattr(Log, "read", noted)
        identity = MessageId("t", 0, LETTERS)
        for request in (
            lambda: broker.trace(identity),
            lambda: broker.why(identity, "g"),
            lambda: broker.state_at("g", "t", broker._clock.now_us()),
            lambda: broker.dead_letters.redrive("t", dry_run=True),
            lambda: broker.dead_letters.redrive("t"),
        ):
            await request()  # type: ignore[no-untyped-call]
            assert names == {"reader"}
        await reject(group, LETTERS)
        await broker.settle()
        names.clear()
        assert await broker.dead_letters.discard("t") == LETTERS
        assert names == {"reader"}

    run(work)


def test_letters_of_a_page_are_settled_by_one_event() -> None:
    async def work(broker: Broker) -> None:
        await rejecting(broker, LETTERS)
        await broker.settle()
        log = broker.topic("t.dlq").partition(0).deliveries
        before = log.end_offset
        assert await broker.dead_letters.discard("t") == LETTERS
        assert log.end_offset - before == 1

    run(work)


def test_scans_take_turns_and_a_cancelled_one_reads_no_further() -> None:
    async def main() -> None:
        read = Counter[str]()

        def rows(name: str) -> Iterator[int | None]:
            for number in range(10 * SLICE_ROWS):
                read[name] += 1
                yield number if number % SLICE_ROWS == 0 else None

        with Counting(1) as readers:
            work = Work(readers)
            first = asyncio.create_task(work.scan(rows("first")))
            assert await work.scan(rows("second")) == [SLICE_ROWS * number for number in range(10)]
            # One slice of the one, one slice of the other.
            assert read["first"] > 0
            await first
            cancelled = asyncio.create_task(work.scan(rows("cancelled")))
            while not read["cancelled"]:
                await asyncio.sleep(0)
            cancelled.cancel()
            with suppress(asyncio.CancelledError):
                await cancelled
            # Behind the slice that was under way.
            await work.on_a_reading_thread(lambda: None)
            before = read["cancelled"]
            await work.on_a_reading_thread(lambda: None)
            assert read["cancelled"] == before < 10 * SLICE_ROWS

    asyncio.run(main())


def test_walks_share_one_slice_of_each_turn_of_the_event_loop() -> None:
    async def main() -> None:
        turn, walked = 0, Counter[int]()

        async def count_turns() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        def rows() -> Iterator[int | None]:
            for number in range(5 * SLICE_ROWS):
                walked[turn] += 1
                yield number

        with Counting(1) as readers:
            work = Work(readers)
            counting = asyncio.create_task(count_turns())
            found = await asyncio.gather(*[work.walk(rows()) for _ in range(20)])
            counting.cancel()
        assert all(some == list(range(5 * SLICE_ROWS)) for some in found)
        assert max(walked.values()) <= SLICE_ROWS

    asyncio.run(main())
