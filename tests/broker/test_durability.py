"""Topics that are synced at an interval: when they are, what is told before, and what must not rely on that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest
from pyroaring import BitMap64

from broker_files import Inline, PathFiles
from broker_support import broker_on, clock_of, group_on, rows, values
from penstock.broker.broker import Broker
from penstock.broker.partition import Partition
from penstock.broker.settings import GroupSettings, TopicSettings
from penstock.errors import DiskFull, Fatal, InvalidSetting, SyncFailed
from penstock.message import Message
from penstock.server.metrics_broker import of_broker
from penstock.storage.files import Files
from penstock.testing import Fault, FaultyFiles, MemoryDisk, MemoryFiles, Operation

SECOND_US = 1_000_000
INTERVAL = TopicSettings(durability="interval", sync_interval_us=2 * SECOND_US)


class StandingLoop(asyncio.SelectorEventLoop):
    """Its time is what a test says it is."""

    now = 0.0

    def time(self) -> float:
        return self.now


def run(work: Callable[[Broker, StandingLoop], Awaitable[None]], files: Files | None = None, **options: Any) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, StandingLoop)
        async with broker_on(files or MemoryFiles(), executor=Inline(), **options) as broker:
            await work(broker, loop)

    with asyncio.Runner(loop_factory=StandingLoop) as runner:
        runner.run(main())


async def passes(loop: StandingLoop, seconds: float) -> None:
    loop.now += seconds
    for _ in range(5):
        await asyncio.sleep(0)


def unsynced(partition: Partition) -> int:
    return partition.messages.end_offset - partition.messages.synced_offset


async def interval_topic(broker: Broker, settings: TopicSettings = INTERVAL) -> Partition:
    return (await broker.create_topic("t", 1, settings)).partition(0)


def test_a_publish_is_told_when_it_is_written_and_synced_when_the_interval_is_over() -> None:
    async def work(broker: Broker, loop: StandingLoop) -> None:
        partition = await interval_topic(broker)
        await broker.topic("t").publish(Message(b"a"))
        assert unsynced(partition) == 1
        await passes(loop, 1.9)
        await broker.topic("t").publish(Message(b"b"))
        assert unsynced(partition) == 2
        await passes(loop, 0.2)
        assert unsynced(partition) == 0, "the first one has waited for its time, and takes the second with it"
        await broker.topic("t").publish(Message(b"c"))
        await passes(loop, 1.9)
        assert unsynced(partition) == 1
        await passes(loop, 0.2)
        assert unsynced(partition) == 0

    run(work)


def test_nothing_is_synced_while_nothing_is_published() -> None:
    syncs = 0

    def before(operation: Operation) -> None:
        nonlocal syncs
        syncs += operation.kind == "sync"

    async def work(broker: Broker, loop: StandingLoop) -> None:
        nonlocal syncs
        await interval_topic(broker)
        await broker.topic("t").publish(Message(b"a"))
        await passes(loop, 3)
        syncs = 0
        await passes(loop, 100)
        assert syncs == 0

    run(work, FaultyFiles(MemoryFiles(), before))


def test_a_group_gets_what_is_not_synced_yet_and_its_answers_are_on_disk_when_told() -> None:
    disk = MemoryDisk()

    async def work(broker: Broker, loop: StandingLoop) -> None:
        partition = await interval_topic(broker)
        await broker.topic("t").publish(Message(b"a"))
        group = await group_on(broker, "g", "t")
        handed = await group.lease("c", 10)
        assert values(handed) == [b"a"]
        await group.ack(handed[0].receipt)
        assert unsynced(partition) == 1
        assert partition.deliveries.synced_offset == partition.deliveries.end_offset

    run(work, MemoryFiles(disk))


def test_a_clean_stop_and_the_end_of_a_topic_sync_what_is_left() -> None:
    disk = MemoryDisk()

    async def work(broker: Broker, loop: StandingLoop) -> None:
        await interval_topic(broker)
        await broker.topic("t").publish(Message(b"a"))
        await broker.create_topic("gone", 1, INTERVAL)
        await broker.topic("gone").publish(Message(b"x"))
        await broker.delete_topic("gone")
        await passes(loop, 3)

    async def again(broker: Broker, loop: StandingLoop) -> None:
        partition = broker.topic("t").partition(0)
        assert partition.messages.end_offset == 1, "no hole"
        assert partition.reading.message(0).message.value == b"a"
        assert broker.topic("t").settings == INTERVAL
        assert partition.messages.sync_within_us == 2 * SECOND_US

    run(work, MemoryFiles(disk))
    run(again, MemoryFiles(disk))


def test_the_setting_of_a_live_topic_changes_both_ways_and_what_was_written_is_on_disk_then() -> None:
    async def work(broker: Broker, loop: StandingLoop) -> None:
        topic = await broker.create_topic("t", 2, INTERVAL)
        for number in range(2):
            await topic.publish(Message(b"a"), number)
        await broker.change_topic("t", partitions=3, settings=TopicSettings())
        assert [unsynced(partition) for partition in topic.partitions] == [0, 0, 0]
        for number in range(3):
            await topic.publish(Message(b"b"), number)
        assert [unsynced(partition) for partition in topic.partitions] == [0, 0, 0]
        await broker.change_topic("t", partitions=4, settings=INTERVAL)
        for number in range(4):
            await topic.publish(Message(b"c"), number)
        assert [unsynced(partition) for partition in topic.partitions] == [1, 1, 1, 1]
        await broker.change_topic("t", partitions=5)
        await topic.publish(Message(b"d"), 4)
        assert unsynced(topic.partition(4)) == 1, "a partition that is added is as the others are"

    run(work)


def test_a_shorter_interval_holds_for_what_is_published_after_it_was_set() -> None:
    async def work(broker: Broker, loop: StandingLoop) -> None:
        partition = await interval_topic(broker, INTERVAL.changed(sync_interval_us=100 * SECOND_US))
        await broker.topic("t").publish(Message(b"a"))
        await broker.change_topic("t", settings=INTERVAL)
        await broker.topic("t").publish(Message(b"b"))
        await passes(loop, 2.1)
        assert unsynced(partition) == 0

    run(work)


def broken_syncs(state: dict[str, bool]) -> Callable[[Operation], Fault | None]:
    def before(operation: Operation) -> Fault | None:
        is_it = operation.kind == "sync" and operation.name.endswith(".log")
        return Fault(SyncFailed("EIO", file=operation.name)) if state["broken"] and is_it else None

    return before


def test_a_sync_that_fails_in_the_background_stops_the_broker() -> None:
    state = {"broken": False}

    async def work(broker: Broker, loop: StandingLoop) -> None:
        await interval_topic(broker)
        await broker.topic("t").publish(Message(b"a"))
        state["broken"] = True
        await passes(loop, 3)
        state["broken"] = False
        assert isinstance(broker.failure, SyncFailed)
        with pytest.raises(Fatal):
            await broker.tick()
        with pytest.raises(SyncFailed):
            await broker.topic("t").publish(Message(b"b"))

    run(work, FaultyFiles(MemoryFiles(), broken_syncs(state)))


def test_a_sync_that_fails_at_a_change_stops_the_broker() -> None:
    state = {"broken": False}

    async def work(broker: Broker, loop: StandingLoop) -> None:
        await interval_topic(broker)
        await broker.topic("t").publish(Message(b"a"))
        state["broken"] = True
        with pytest.raises(SyncFailed):
            await broker.change_topic("t", settings=TopicSettings())
        state["broken"] = False
        assert isinstance(broker.failure, SyncFailed)

    run(work, FaultyFiles(MemoryFiles(), broken_syncs(state)))


# --- after a crash ------------------------------------------------------------------------------------------


def killed_with(count: int, acknowledged: int) -> MemoryDisk:
    """What a kill leaves of a topic with so many messages, of which group g is done with the first ones."""
    disk = MemoryDisk()
    killed: list[MemoryDisk] = []

    async def work(broker: Broker, loop: StandingLoop) -> None:
        await interval_topic(broker)
        for number in range(count):
            await broker.topic("t").publish(Message(b"%d" % number))
        group = await group_on(broker, "g", "t")
        for handed in await group.lease("c", acknowledged) if acknowledged else ():
            await group.ack(handed.receipt)
        await group.start()
        killed.append(disk.after_kill())

    run(work, MemoryFiles(disk))
    return killed[0]


@pytest.mark.parametrize("acknowledged", [0, 1, 3])
def test_offsets_that_a_crash_has_left_without_messages_are_no_lag(acknowledged: int) -> None:
    disk = killed_with(3, acknowledged)
    left = 3 - acknowledged

    async def looks_on(broker: Broker, loop: StandingLoop) -> None:
        assert broker.topic("t").partition(0).messages.end_offset > 1_000
        assert broker.group("g", "t").lag() == [left]
        assert await lag_in_metrics(broker) == left
        assert (await group_on(broker, "new", "t")).lag() == [3], "nor of a group that has not begun"
        await broker.delete_group("new")

    async def goes_on(broker: Broker, loop: StandingLoop) -> None:
        await looks_on(broker, loop)
        group = broker.group("g", "t")
        await broker.topic("t").publish(Message(b"new"))
        assert group.lag() == [left + 1]
        got: list[bytes | None] = []
        while handed := await group.lease("c", 10):
            got += values(handed)
            for one in handed:
                await group.ack(one.receipt)
        assert got == [*(b"%d" % number for number in range(acknowledged, 3)), b"new"]
        assert group.lag() == [0]

    run(looks_on, MemoryFiles(disk))
    run(looks_on, MemoryFiles(disk))
    # Killed again, with nothing written in between.
    run(goes_on, MemoryFiles(disk.after_kill()))


async def lag_in_metrics(broker: Broker) -> float:
    (family,) = [family for family in await of_broker(broker) if family.name == "penstock_group_lag"]
    (sample,) = [sample for sample in family.samples if sample.labels["group"] == "g"]
    return sample.value


def test_lag_after_a_power_loss_is_what_is_there_and_not_done() -> None:
    """Also if messages that are lost had been acknowledged before others that are not, or are still leased."""
    disk = MemoryDisk()
    states: list[MemoryDisk] = []

    async def before(broker: Broker, loop: StandingLoop) -> None:
        await interval_topic(broker)
        group = await group_on(broker, "g", "t")
        await group.start()
        for number in range(6):
            await broker.topic("t").publish(Message(b"%d" % number))
        (handed,) = await group.lease("c", 5)
        await group.ack(handed.receipt._replace(offsets=BitMap64([1, 3])))
        states.extend(disk.after_power_loss(Random(seed)) for seed in range(30))

    run(before, MemoryFiles(disk))
    lags = set()
    for state in states:

        async def after(broker: Broker, loop: StandingLoop) -> None:
            messages = broker.topic("t").partition(0).messages
            there = [offset for frame in messages.frames(0) for offset in range(frame.base_offset, frame.next_offset)]
            assert broker.group("g", "t").lag() == [len(set(there) - {1, 3})]
            lags.add(len(there))

        run(after, MemoryFiles(state))
    assert len(lags) > 2


def test_on_a_disk_that_is_full_after_a_crash_groups_go_on_and_so_do_publishers_once_there_is_room() -> None:
    disk = killed_with(3, 1)
    is_full = is_starting = True

    def before(kind: str, path: str) -> Fault | None:
        """Later on there is some room for what is small: the last of it is kept from publishers."""
        is_hit = is_full and kind in ("write", "create") and (is_starting or "/messages/" in path)
        return Fault(DiskFull("no space left")) if is_hit else None

    async def work(broker: Broker, loop: StandingLoop) -> None:
        nonlocal is_full, is_starting
        is_starting = False
        topic, group = broker.topic("t"), broker.group("g", "t")
        end = topic.partition(0).messages.end_offset
        assert group.lag() == [2]
        handed = await group.lease("c", 10)
        assert values(handed) == [b"1", b"2"]
        await group.ack(handed[0].receipt)
        assert group.lag() == [0]
        with pytest.raises(DiskFull):
            await topic.publish(Message(b"refused"))
        assert await group.lease("c", 10) == []
        is_full = False
        assert (await topic.publish(Message(b"new"))).offset == end
        assert group.lag() == [1]
        handed = await group.lease("c", 10)
        assert values(handed) == [b"new"]
        await group.ack(handed[0].receipt)
        await passes(loop, 3)
        assert unsynced(topic.partition(0)) == 0

    async def again(broker: Broker, loop: StandingLoop) -> None:
        assert broker.group("g", "t").lag() == [0]
        assert [frame.count for frame in broker.topic("t").partition(0).messages.frames(0)] == [1, 1, 1, 1]

    run(work, PathFiles(MemoryFiles(disk), before))
    run(again, MemoryFiles(disk))


# --- what relies on a message -------------------------------------------------------------------------------


def test_an_occurrence_of_a_schedule_is_on_disk_before_the_catalog_counts_it() -> None:
    async def work(broker: Broker, loop: StandingLoop) -> None:
        partition = await interval_topic(broker)
        await broker.schedules.create("daily", "t", "0 3 * * *", Message(b"x"), timezone="UTC", producer=5)
        assert broker.schedules.get("daily").published == 1
        assert unsynced(partition) == 0

    run(work)


def test_a_redriven_copy_is_on_disk_before_its_letter_is_settled() -> None:
    async def work(broker: Broker, loop: StandingLoop) -> None:
        partition = await interval_topic(broker)
        await broker.topic("t").publish(Message(b"a"))
        group = await group_on(broker, "g", "t", GroupSettings(max_retries=0))
        (row,) = rows(await group.lease("c", 1))
        await group.reject(row[0], "bad")
        await broker.settle()
        # Its group is gone: a copy is made.
        await broker.delete_group("g")
        clock_of(broker).advance_us(1)
        done = await broker.dead_letters.redrive("t")
        assert len(done.copied) == 1
        assert partition.messages.end_offset == 2
        assert unsynced(partition) == 0

    run(work)


def test_dead_letters_are_on_disk_when_told_whatever_their_topic_is() -> None:
    async def work(broker: Broker, loop: StandingLoop) -> None:
        await interval_topic(broker)
        await broker.topic("t").publish(Message(b"a"))
        group = await group_on(broker, "g", "t", GroupSettings(max_retries=0))
        (row,) = rows(await group.lease("c", 1))
        await group.reject(row[0], "bad")
        await broker.settle()
        assert broker.topic("t.dlq").settings.durability == "fsync"
        assert unsynced(broker.topic("t.dlq").partition(0)) == 0
        settings = INTERVAL.changed(dead_letters=False)
        with pytest.raises(InvalidSetting, match="durability is fsync") as refused:
            await broker.change_topic("t.dlq", settings=settings)
        assert refused.value.details["setting"] == "durability"
        with pytest.raises(InvalidSetting, match="durability is fsync"):
            await broker.create_topic("other.dlq", 1, settings)
        assert broker.topic("t.dlq").settings.durability == "fsync"

    run(work)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"durability": "never"}, "durability"),
        ({"durability": None}, "durability"),
        ({"durability": True}, "durability"),
        ({"durability": "interval", "sync_interval_us": 0}, "sync_interval_us is 1000 to 600000000, not 0"),
        ({"durability": "interval", "sync_interval_us": 601 * SECOND_US}, "sync_interval_us is 1000 to"),
        ({"durability": "interval", "sync_interval_us": "1s"}, "sync_interval_us"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSetting, match=said):
        TopicSettings(**given)
    with pytest.raises(InvalidSetting):
        TopicSettings().changed(**given)
