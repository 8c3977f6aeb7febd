"""Memory: nothing is kept of partitions that were lost or deleted, and loops over empty sets keep nothing either."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
from pyroaring import BitMap64

from broker_support import clock_of, run
from led_broker import Leading, run_led
from penstock.batch import Batch
from penstock.broker.broker import Broker
from penstock.broker.delivery import Delivery
from penstock.broker.events import Acknowledged, Cursors, Leased, Nacked, Released, Started, pack
from penstock.broker.ids import MessageId
from penstock.broker.partition import Partition
from penstock.broker.tries import Tries
from penstock.errors import NotLeader
from penstock.message import Message, Priority
from penstock.storage.log import Log

SECOND = 1_000_000


def parts_of(partition: Partition) -> list[weakref.ref[object]]:
    groups = partition.groups
    parts = [partition, partition.reading, groups, partition._journal, groups.lanes, groups.delays]
    parts += [groups.state(name) for name in groups.groups]
    return [weakref.ref(part) for part in parts]


async def must_go(parts: Sequence[weakref.ref[object]]) -> None:
    """A thread may still be on its way out of something that it has done for one of them."""
    with suppress(TimeoutError):
        async with asyncio.timeout(60):
            while any(part() is not None for part in parts):
                gc.collect()
                await asyncio.sleep(0)
    assert [part() for part in parts if part() is not None] == []


def assert_nothing_kept(broker: Broker) -> None:
    frames, letters = broker._frames, broker.dead_letters
    assert (frames._size, len(frames._frames), len(frames._starts), len(frames._hashes)) == (0, 0, 0, 0)
    assert (letters._searched, letters._burying) == (set(), {})
    assert not broker.chronicle._followed
    assert not broker.schedules._since
    assert not broker._groups._on_topics or broker.topics


async def use(broker: Broker, name: str, group: str) -> list[weakref.ref[object]]:
    """Everything that could keep something of a partition: many ways to publish, to lease, to answer and to look."""
    topic = broker.topic(name)
    now = clock_of(broker).now_us()
    await topic.publish_batch(Batch.from_messages([Message(b"%d" % n, b"k%d" % n) for n in range(8)], 1), 0)
    await topic.publish(Message(b"high", priority=Priority.HIGH), 0)
    await topic.publish(Message(b"later", deliver_at=now + 3600 * SECOND), 0)
    await broker.join(group, "c", [name], ordering="key")
    polled = await broker.poll(group, "c", [name], count=4)
    on_topic = broker.group(group, name)
    first = polled[0].handed.receipt
    await on_topic.nack(first._replace(offsets=first.offsets[:1]))
    for one in polled[1:]:
        await on_topic.ack(one.handed.receipt)
    await on_topic.lease("d", 1)
    partition = topic.partition(0)
    await broker.trace(MessageId(name, 0, 0))
    await broker.why(MessageId(name, 0, 0), group)
    await broker.state_at(group, name, now)
    _, end = await broker.chronicle.ends(partition)
    await broker.chronicle.read(partition, 0, end, 1 << 20)
    on_topic.lag()
    await broker.tick()
    await broker.maintain()
    await on_topic.lease("e", 1)
    return parts_of(partition)


def test_nothing_is_kept_of_partitions_that_were_lost() -> None:
    async def work(led: Leading) -> None:
        await led.create("t", 1)
        logs = led.lose("t", 0)
        for turn in range(5):
            await led.lead("t", 0, logs)
            parts = await use(led.broker, "t", f"g{turn}")
            await led.broker.join(f"g{turn}", "w", ["t"])
            waiting = asyncio.ensure_future(led.broker.poll(f"g{turn}", "w", ["t"], count=1, wait_us=60 * SECOND))
            await asyncio.sleep(0)
            led.lose("t", 0)
            with suppress(NotLeader):
                await waiting
            del waiting
            await must_go(parts)
            assert_nothing_kept(led.broker)

    run_led(work)


def test_nothing_is_kept_of_topics_that_were_deleted() -> None:
    async def work(broker: Broker) -> None:
        for turn in range(5):
            await broker.create_topic("t", 1)
            await broker.schedules.create("s", "t", "@every 60s", Message(b"s"), timezone="UTC", producer=turn + 1)
            parts = await use(broker, "t", "g")
            group = broker.group("g", "t")
            (handed,) = await group.lease("c", 1)
            await group.reject(handed.receipt, "bad")
            await broker.settle()
            parts += parts_of(broker.topic("t.dlq").partition(0))
            await broker.schedules.delete("s")
            await broker.delete_group("g")
            await broker.delete_topic("t")
            await broker.delete_topic("t.dlq")
            del group, handed
            await must_go(parts)
            assert_nothing_kept(broker)

    run(work)


def test_a_partition_that_is_lost_while_its_history_is_read_is_not_remembered() -> None:
    async def work(led: Leading) -> None:
        (partition,) = await led.create("t", 1)
        await led.broker.topic("t").publish(Message(b"1"), 0)
        reading = asyncio.ensure_future(led.broker.chronicle.read(partition, 0, 1, 1 << 20))
        await asyncio.sleep(0)
        led.lose("t", 0)
        await reading
        assert not led.broker.chronicle._followed

    run_led(work)


# --- empty sets -------------------------------------------------------------------------------------------


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def grows_by(work: Callable[[], None], times: int) -> int:
    """Bytes of memory that each time costs, once everything that is made but once is there."""
    for _ in range(times // 10):
        work()
    before = resident_bytes()
    for _ in range(times):
        work()
    return (resident_bytes() - before) // times


def test_telling_what_happened_keeps_no_memory() -> None:
    tries, one = Tries(is_complete=True), BitMap64([1])

    def happens() -> None:
        tries.leased(1, "c", one)
        list(tries.by_attempt(one))
        tries.answered(1, one)
        tries.given_back(one)
        tries.over(one)

    assert grows_by(happens, 50_000) < 50


def test_leases_and_acknowledgements_beside_a_message_that_waits_keep_no_memory() -> None:
    state = Delivery("g")
    state.apply(Started("g", 0), 0)

    def lease(identity: int, offset: int) -> None:
        state.apply(Leased("g", "c", identity, pack(BitMap64([offset])), Cursors.at(offset + 1), 1 << 40), 0)

    lease(1, 0)
    state.apply(Nacked("g", 1, pack(BitMap64([0])), 0, "busy"), 0)
    numbers = iter(range(1, 1 << 40))

    def happens() -> None:
        offset = next(numbers)
        lease(2, offset)
        state.apply(Released("g", 2, pack(BitMap64([offset]))), 0)
        lease(3, offset)
        state.apply(Acknowledged("g", 3, pack(BitMap64([offset]))), 0)

    assert grows_by(happens, 20_000) < 50


@pytest.mark.parametrize("log", ["messages", "deliveries"])
def test_a_closed_partition_has_no_segment_in_the_cache(log: str) -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        await topic.publish(Message(b"1"))
        kept: Log = getattr(topic.partition(0), log)
        await broker.delete_topic("t")
        cached = broker.directories._cache._opened
        assert not any(segment in cached for segment in kept.segments)

    run(work)
