"""Changes that whoever asked for them gives up waiting for, and changes that meet others half-way."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from broker_files import hold_deliveries, hold_messages, inline_of, run_inline, turns
from broker_support import ack_all, clock_of, group_on, values
from penstock.broker import scheduled
from penstock.broker.broker import Broker
from penstock.broker.catalog import Catalog, ScheduleRecord
from penstock.broker.settings import GroupSettings, TopicSettings
from penstock.errors import AlreadyExists, TopicNotFound
from penstock.message import Message
from penstock.testing import MemoryDisk, MemoryFiles
from support import SMALL_SEGMENTS

HOUR = 3_600_000_000
SETTINGS = GroupSettings(backoff_jitter=0)


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Whoever waited has hung up."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


# --- the catalog -----------------------------------------------------------------------------------------


def test_a_topic_is_not_lost_because_the_creation_of_another_was_given_up() -> None:
    disk = MemoryDisk()

    async def before(broker: Broker) -> None:
        executor = inline_of(broker)
        executor.hold()
        first = asyncio.create_task(broker.create_topic("first", 1))
        await turns()
        assert executor.is_holding
        await cancelled(first)
        second = asyncio.create_task(broker.create_topic("second", 1))
        await turns()
        # The second one is not even begun: on another thread it could overtake the first, which would undo it.
        assert len(executor._held_back) == 1
        executor.go_on()
        await (await second).publish(Message(b"precious"))

    async def after(broker: Broker) -> None:
        assert [topic.name for topic in broker.topics] == ["first", "second"]
        assert broker.topic("second").partition(0).messages.end_offset == 1

    run_inline(before, MemoryFiles(disk))
    run_inline(after, MemoryFiles(disk))


def test_a_topic_grows_to_its_end_though_nobody_waits_for_it() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        inline_of(broker).hold()
        growing = asyncio.create_task(broker.change_topic("t", partitions=3))
        await turns()
        await cancelled(growing)
        inline_of(broker).go_on()
        assert len((await broker.change_topic("t", partitions=4)).partitions) == 4
        assert len(broker.topics[0].partitions) == 4
        await topic.publish(Message(b"x"), 2)

    run_inline(work)


def test_a_topic_is_deleted_to_its_end_though_nobody_waits_for_it() -> None:
    async def work(broker: Broker) -> None:
        await broker.create_topic("t", 1)
        await (await group_on(broker, "g", "t")).start()
        inline_of(broker).hold()
        deleting = asyncio.create_task(broker.delete_topic("t"))
        await turns()
        await cancelled(deleting)
        inline_of(broker).go_on()
        new = await broker.create_topic("t", 1)
        await new.publish(Message(b"new"))
        assert broker.group("g", "t").topic is new
        assert values(await broker.group("g", "t").lease("c", 1)) == [b"new"]

    run_inline(work)


def test_a_group_is_deleted_to_its_end_though_nobody_waits_for_it() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 3)
        group = await group_on(broker, "g", "t")
        for number in range(3):
            await topic.publish(Message(b"x"), number)
        await ack_all(group, await group.lease("c", 10))
        executor = hold_deliveries(broker, topic.partition(0))
        deleting = asyncio.create_task(broker.delete_group("g"))
        await turns()
        assert broker.groups == []
        await cancelled(deleting)
        executor.go_on()
        new = await group_on(broker, "g", "t")
        assert values(await new.lease("c", 10)) == [b"x"] * 3

    run_inline(work)


def test_joining_while_one_of_the_topics_is_deleted_says_that_it_is_gone() -> None:
    async def work(broker: Broker) -> None:
        await broker.create_topic("deleted", 1)
        slow = await broker.create_topic("slow", 1)
        await broker.create_group("g")
        executor = hold_deliveries(broker, slow.partition(0))
        joining = asyncio.create_task(broker.join("g", "c", ["deleted", "slow"]))
        await turns()
        assert executor.is_holding
        await broker.delete_topic("deleted")
        executor.go_on()
        with pytest.raises(TopicNotFound):
            await joining
        await broker.tick()

    run_inline(work)


def test_a_group_that_starts_while_its_topic_grows_misses_nothing() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        await broker.create_group("g", SETTINGS.changed(start="latest"))
        inline_of(broker).hold(Catalog.change_topic)
        growing = asyncio.create_task(broker.change_topic("t", partitions=2))
        await turns()
        assert inline_of(broker).is_holding
        await broker.join("g", "c", ["t"])
        inline_of(broker).go_on()
        await growing
        await topic.publish(Message(b"new"), 1)
        assert values([polled.handed for polled in await broker.poll("g", "c", ["t"])]) == [b"new"]

    run_inline(work)


def test_a_replay_that_was_given_up_half_way_brings_nothing_it_was_not_asked_for() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 2)
        for number in range(2):
            await topic.publish(Message(b"old"), number)
            await topic.publish(Message(b"new"), number)
        executor = hold_deliveries(broker, topic.partition(0))
        replaying = asyncio.create_task(broker.replay("t", "again", offsets={0: (0, 1), 1: (0, 1)}))
        await turns()
        await cancelled(replaying)
        executor.go_on()
        await turns()
        assert b"new" not in values(await broker.group("again", "t").lease("c", 10))

    run_inline(work)


# --- maintenance -----------------------------------------------------------------------------------------


def test_a_topic_that_is_deleted_meanwhile_keeps_no_other_from_its_maintenance() -> None:
    async def work(broker: Broker) -> None:
        for name in ("deleted", "kept"):
            topic = await broker.create_topic(name, 1, TopicSettings(retention_age_us=HOUR))
            await topic.publish(Message(b"old"))
        clock_of(broker).advance_us(2 * HOUR)
        inline_of(broker).hold(broker.topic("deleted").partition(0).maintain)
        maintaining = asyncio.create_task(broker.maintain())
        await turns()
        assert inline_of(broker).is_holding
        await broker.delete_topic("deleted")
        inline_of(broker).go_on()
        await maintaining
        assert broker.topic("kept").partition(0).messages.start_offset == 1

    run_inline(work)


def test_a_delayed_message_that_comes_while_maintenance_waits_for_a_thread_is_not_deleted() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1, TopicSettings(retention_bytes=5000))
        inline_of(broker).hold(topic.partition(0).maintain)
        maintaining = asyncio.create_task(broker.maintain())
        await turns()
        await topic.publish(Message(b"later", deliver_at=clock_of(broker).now_us() + HOUR))
        for _ in range(12):
            await topic.publish(Message(b"x" * 1000))
        inline_of(broker).go_on()
        await maintaining
        clock_of(broker).advance_us(HOUR)
        group = await group_on(broker, "g", "t", SETTINGS)
        assert b"later" in values(await group.lease("c", 100))

    run_inline(work, log_settings=SMALL_SEGMENTS)


def test_a_lease_of_messages_that_retention_deletes_at_that_moment_gets_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        for _ in range(3):
            await topic.publish(Message(b"x"))
        group = await group_on(broker, "g", "t", SETTINGS)
        await group.start()
        log = topic.partition(0).messages
        read = log.read

        def read_too_late(*args: Any, **kwargs: Any) -> Any:
            monkeypatch.undo()
            log.roll()
            log.delete_prefix(3)
            return read(*args, **kwargs)

        monkeypatch.setattr(log, "read", read_too_late)
        assert await group.lease("c", 3) == []
        assert group.lag() == [0]

    run_inline(work)


# --- schedules -------------------------------------------------------------------------------------------


async def create_schedule(broker: Broker, value: bytes) -> ScheduleRecord:
    return await broker.schedules.create(
        "s", "t", "*/5 * * * *", Message(value), timezone="UTC", producer=int.from_bytes(value, "big")
    )


def test_of_two_who_create_a_schedule_at_the_same_time_one_is_told_that_it_is_there() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        inline_of(broker).hold()
        creating = [asyncio.create_task(create_schedule(broker, value)) for value in (b"1", b"2")]
        await turns()
        inline_of(broker).go_on()
        first, second = await asyncio.gather(*creating, return_exceptions=True)
        assert isinstance(first, ScheduleRecord)
        assert isinstance(second, AlreadyExists)
        assert [one.message.value for one in broker.schedules.list()] == [b"1"]
        assert [one.message.value for one in scheduled.scheduled(topic)] == [b"1"]

    run_inline(work)


def test_nothing_comes_of_a_schedule_that_is_deleted_while_its_next_message_is_on_its_way() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        await create_schedule(broker, b"1")
        clock_of(broker).advance_us(HOUR)
        executor = hold_messages(broker, topic.partition(0))
        ticking = asyncio.create_task(broker.tick())
        await turns()
        assert executor.is_holding
        deleting = asyncio.create_task(broker.schedules.delete("s"))
        await turns()
        executor.go_on()
        await asyncio.gather(ticking, deleting)
        assert broker.schedules.list() == []
        assert list(scheduled.scheduled(topic)) == []

    run_inline(work)
