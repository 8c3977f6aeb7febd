"""Faults that the state machine of `test_model.py` has found, each as small as it can be."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from pyroaring import BitMap64

from broker_support import ack_all, clock_of, group_on, run, values
from penstock.batch import Batch
from penstock.broker import scheduled
from penstock.broker.assignor import Part
from penstock.broker.broker import Broker
from penstock.broker.dead_letters import Where
from penstock.broker.group import Group, Receipt
from penstock.broker.ids import MessageId
from penstock.broker.partition import Partition
from penstock.broker.settings import GroupSettings, TopicSettings
from penstock.errors import DiskFull
from penstock.message import Message
from penstock.testing import MemoryDisk, MemoryFiles
from support import SMALL_SEGMENTS

SECOND, HOUR = 1_000_000, 3_600_000_000
PLAIN = GroupSettings(backoff_jitter=0)
KEYED = GroupSettings(ordering="key", backoff_jitter=0)

Work = Callable[[Broker], Awaitable[None]]


async def group_with(broker: Broker, *messages: Message, settings: GroupSettings = PLAIN) -> Group:
    """A group on a topic of one partition with these messages."""
    await broker.create_topic("t", 1)
    group = await group_on(broker, "g", "t", settings)
    await group.start()
    await publish(broker, *messages)
    return group


async def publish(broker: Broker, *messages: Message) -> None:
    for message in messages:
        await broker.topic("t").publish(message)


async def lease_one(group: Group, consumer: str = "c", count: int = 10) -> Receipt:
    """All that was leased is of one lane."""
    (handed,) = await group.lease(consumer, count)
    return handed.receipt


def keyed(word: str, priority: int = 0) -> Message:
    """The letter is the key."""
    return Message(word.encode(), key=word[:1].encode(), priority=priority)


def parked_keys(group: Group) -> list[tuple[bytes | None, int]]:
    return [(parked.key, parked.parked.offset) for parked in group.parked()]


def run_and_restart(before: Work, after: Work) -> None:
    disk = MemoryDisk()
    run(before, MemoryFiles(disk))
    run(after, MemoryFiles(disk))


def run_and_kill(before: Work, after: Work, **options: object) -> None:
    """`after` begins with the disk as it was when `before` was through."""
    disk = MemoryDisk()
    killed: list[MemoryDisk] = []

    async def until_killed(broker: Broker) -> None:
        await before(broker)
        killed.append(disk.after_kill())

    run(until_killed, MemoryFiles(disk), **options)
    run(after, MemoryFiles(killed[0]), **options)


def test_redriving_a_letter_of_one_key_leaves_the_other_keys_parked() -> None:
    async def work(broker: Broker) -> None:
        group = await group_with(broker, *map(keyed, ("a1", "b1", "a2", "b2")), settings=KEYED)
        await group.reject(await lease_one(group, count=2), "bad")
        await broker.settle()
        assert parked_keys(group) == [(b"a", 0), (b"b", 1)]
        await broker.dead_letters.redrive("t", Where(key=b"a"))
        assert parked_keys(group) == [(b"b", 1)]
        assert values(await group.lease("c", 10)) == [b"a1", b"a2"]

    run(work)


def test_what_was_due_when_it_was_published_is_not_delayed_after_a_crash() -> None:
    async def before(broker: Broker) -> None:
        group = await group_with(broker, Message(b"now", deliver_at=clock_of(broker).now_us()))
        await ack_all(group, await group.lease("c", 1))

    async def after(broker: Broker) -> None:
        assert list(scheduled.scheduled(broker.topic("t"))) == []
        group = broker.group("g", "t")
        await group.seek("latest")
        assert await group.lease("c", 1) == []

    run_and_kill(before, after)


def test_a_delay_that_is_over_is_not_recalled_from_a_merged_frame() -> None:
    async def before(broker: Broker) -> None:
        clock, filling = clock_of(broker), Message(b"x" * 1000)
        group = await group_with(broker, Message(b"later", deliver_at=clock.now_us() + HOUR))
        await scheduled.reschedule(broker.topic("t"), MessageId("t", 0, 0), 0, clock)
        await ack_all(group, await group.lease("c", 1))
        # What comes behind the snapshot shares a frame with what it covers.
        (partition,) = broker.topic("t").partitions
        await partition.groups.snapshot()
        await publish(broker, *[filling] * 8)
        await broker.maintain()
        assert next(iter(partition.messages.frames(0))).count > 1

    async def after(broker: Broker) -> None:
        assert list(scheduled.scheduled(broker.topic("t"))) == []
        group = broker.group("g", "t")
        await group.seek("latest")
        clock_of(broker).advance_us(HOUR)
        assert await group.lease("c", 1) == []

    run_and_kill(before, after, log_settings=SMALL_SEGMENTS)


def test_a_group_gets_over_messages_of_another_lane_that_retention_has_deleted() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1, TopicSettings(retention_age_us=10 * SECOND))
        group = await group_on(broker, "g", "t", PLAIN)
        await group.start()
        await publish(broker, Message(b"x" * 1000, priority=-1), *[Message(b"x" * 1000)] * 9)
        await ack_all(group, await group.lease("c", 9))
        clock_of(broker).advance_us(100 * SECOND)
        await publish(broker, *[Message(b"x" * 1000)] * 5)
        await broker.maintain()
        (partition,) = topic.partitions
        assert partition.messages.start_offset > 1
        while handed := await group.lease("c", 10):
            await ack_all(group, handed)
        assert group.lag() == [0]
        partition.groups.state("g").check((partition.groups.lanes.high, partition.groups.lanes.low))

    run(work, log_settings=SMALL_SEGMENTS)


def test_failures_are_told_in_the_order_of_the_attempts_though_the_clock_was_set_back() -> None:
    def reasons(broker: Broker) -> list[str]:
        return [failure.reason for failure in broker.topic("t").partition(0).groups.state("g").failures[0]]

    async def before(broker: Broker) -> None:
        group = await group_with(broker, Message(b"1"))
        await group.nack(await lease_one(group), reason="first", delay_us=0)
        receipt = await lease_one(group)
        clock_of(broker).advance_us(-10)
        await group.nack(receipt, reason="second", delay_us=0)
        assert reasons(broker) == ["first", "second"]

    async def after(broker: Broker) -> None:
        assert reasons(broker) == ["first", "second"]

    run_and_restart(before, after)


def test_each_dead_letter_tells_its_own_attempts_though_they_died_together() -> None:
    async def work(broker: Broker) -> None:
        group = await group_with(broker, Message(b"twice"))
        await group.nack(await lease_one(group), delay_us=0)
        await publish(broker, Message(b"once"))
        await group.reject(await lease_one(group), "bad")
        await broker.settle()
        obituaries = [letter.obituary for letter in broker.dead_letters.letters("t")]
        assert [(one.offset, one.attempts) for one in obituaries] == [(0, 2), (1, 1)]
        assert [[failure.attempt for failure in one.failures] for one in obituaries] == [[1, 2], [1]]

    run(work)


def test_who_leaves_right_after_a_restart_leaves_nothing_behind() -> None:
    async def before(broker: Broker) -> None:
        await group_with(broker, Message(b"1"))
        await broker.join("g", "old", ["t"], session_us=45 * SECOND)

    async def after(broker: Broker) -> None:
        broker.leave("g", "old")
        await broker.join("g", "new", ["t"], session_us=45 * SECOND)
        members = broker.consumers.of("g")
        assert members is not None
        assert members.owner(Part("t", 0)) == "new"
        assert values([polled.handed for polled in await broker.poll("g", "new", ["t"])]) == [b"1"]

    run_and_restart(before, after)


def test_a_redriven_message_waits_while_its_key_is_leased() -> None:
    async def work(broker: Broker) -> None:
        group = await group_with(broker, keyed("a1"), keyed("a2"), settings=KEYED.changed(on_poison="skip"))
        await group.reject(await lease_one(group, count=1), "bad")
        await broker.settle()
        held = await group.lease("x", 1)
        assert values(held) == [b"a2"]
        await broker.dead_letters.redrive("t")
        assert await group.lease("y", 10) == []
        await ack_all(group, held)
        assert values(await group.lease("y", 10)) == [b"a1"]

    run(work)


def test_a_key_that_is_leased_stays_so_when_another_of_its_messages_becomes_due_after_a_restart() -> None:
    async def before(broker: Broker) -> None:
        group = await group_with(broker, keyed("a1"), keyed("a2"), settings=KEYED)
        receipt = await lease_one(group, "x")
        await group.nack(receipt._replace(offsets=BitMap64([1])))

    async def after(broker: Broker) -> None:
        clock_of(broker).advance_us(2 * SECOND)
        group = broker.group("g", "t")
        assert await group.lease("y", 10) == []
        (lease,) = broker.topic("t").partition(0).groups.state("g").leases.values()
        assert (lease.consumer, list(lease.offsets)) == ("x", [0])

    run_and_restart(before, after)


def test_of_a_key_that_is_free_again_the_high_message_goes_first() -> None:
    async def work(broker: Broker) -> None:
        group = await group_with(broker, keyed("a1"), settings=KEYED)
        held = await group.lease("x", 1)
        await publish(broker, keyed("a2"), keyed("a3", priority=1))
        assert await group.lease("y", 10) == []
        await ack_all(group, held)
        assert values(await group.lease("y", 1)) == [b"a3"]

    run(work)


def test_no_normal_message_goes_ahead_of_high_ones_that_a_lease_by_key_did_not_look_at() -> None:
    async def work(broker: Broker) -> None:
        group = await group_with(broker, keyed("a", priority=1), keyed("b", priority=1), settings=KEYED)
        await group.release(await lease_one(group))
        await publish(broker, *(keyed(word, priority=1) for word in "cdef"), *map(keyed, "ghij"))
        got: list[bytes | None] = []
        while len(got) < 6:
            got += values(await group.lease("x", 4))
        assert got[:6] == [b"a", b"b", b"c", b"d", b"e", b"f"]

    run(work)


def test_a_key_goes_on_when_everything_in_its_queue_has_expired() -> None:
    async def work(broker: Broker) -> None:
        clock = clock_of(broker)
        group = await group_with(broker, keyed("a0"), settings=KEYED)
        held = await group.lease("x", 1)
        soon = clock.now_us() + SECOND
        await publish(broker, *(Message(value, key=b"a", expires_at=soon) for value in (b"a1", b"a2")))
        assert await group.lease("y", 10) == []
        await ack_all(group, held)
        clock.advance_us(2 * SECOND)
        await publish(broker, keyed("a3"))
        assert values(await group.lease("y", 10)) == [b"a3"]

    run(work)


def test_what_was_given_back_does_not_overtake_delayed_messages_of_its_key_that_are_due() -> None:
    async def work(broker: Broker) -> None:
        clock = clock_of(broker)
        soon = clock.now_us() + SECOND
        delayed = [Message(value, key=b"a", deliver_at=soon) for value in (b"a0", b"a1")]
        group = await group_with(broker, *delayed, keyed("a2"), settings=KEYED)
        receipt = await lease_one(group)
        clock.advance_us(SECOND)
        assert await group.lease("y", 10) == []
        await group.release(receipt)
        assert values(await group.lease("y", 2)) in ([b"a0"], [b"a0", b"a1"])

    run(work)


def test_what_was_given_back_does_not_overtake_redriven_messages_of_its_key() -> None:
    async def work(broker: Broker) -> None:
        group = await group_with(broker, *map(keyed, ("a0", "a1", "a2")), settings=KEYED.changed(on_poison="skip"))
        await group.reject(await lease_one(group, count=2), "bad")
        await broker.settle()
        receipt = await lease_one(group)
        await broker.dead_letters.redrive("t")
        assert await group.lease("y", 10) == []
        await group.release(receipt)
        assert values(await group.lease("y", 2)) in ([b"a0"], [b"a0", b"a1"])

    run(work)


def test_the_lane_of_a_leased_message_that_retention_has_deleted_is_known_after_a_crash() -> None:
    receipts: list[Receipt] = []

    async def before(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1, TopicSettings(retention_age_us=SECOND))
        group = await group_on(broker, "g", "t", PLAIN)
        await group.start()
        await publish(broker, Message(b"high", priority=1))
        receipts.append(await lease_one(group, count=1))
        clock_of(broker).advance_us(2 * SECOND)
        await broker.maintain()
        assert topic.partition(0).messages.start_offset == 1
        await topic.partition(0).groups.flushed()

    async def after(broker: Broker) -> None:
        group = broker.group("g", "t")
        await publish(broker, Message(b"normal"))
        await ack_all(group, await group.lease("c", 10))
        await group.ack(receipts[0])
        assert group.lag() == [0]

    run_and_kill(before, after)


def test_a_message_that_dies_again_after_retention_has_deleted_it_is_another_dead_letter() -> None:
    async def work(broker: Broker) -> None:
        await broker.create_topic("t", 1, TopicSettings(retention_age_us=SECOND))
        group = await group_on(broker, "g", "t", PLAIN)
        await publish(broker, Message(b"bad"))
        await group.reject(await lease_one(group), "first")
        await broker.settle()
        await broker.dead_letters.redrive("t")
        receipt = await lease_one(group)
        clock_of(broker).advance_us(2 * SECOND)
        await broker.maintain()
        await group.reject(receipt, "second")
        await broker.settle()
        letters = list(broker.dead_letters.letters("t", with_settled=True))
        assert len({letter.obituary.identity for letter in letters}) == 2

    run(work)


def test_a_parked_key_with_messages_that_were_given_back_hides_nothing_from_small_leases() -> None:
    """One that came back waits in the queue, one behind it was the next to be leased when the key was parked."""

    async def work(broker: Broker) -> None:
        group = await group_with(broker, *[Message(b"x" * 1000, b"a")] * 3, settings=KEYED)
        first = await group.lease("x", 2)
        assert await group.lease("y", 1) == []
        await group.release(first[0].receipt)
        await group.reject(await lease_one(group, count=1), "bad")
        await publish(broker, keyed("b"))
        assert values(await group.lease("x", 1, 1500)) == [b"b"]

    run(work)


@pytest.mark.parametrize("cleanup", ["delete", "compact"])
@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_key_stays_busy_over_a_restart_though_its_message_is_due_for_deletion(cleanup: str, is_waiting: bool) -> None:
    """Without the message, nobody knows its key any more. The other messages of its segment go all the same."""
    disk = MemoryDisk()
    receipts: list[Receipt] = []

    async def before(broker: Broker) -> None:
        settings = TopicSettings(retention_age_us=HOUR, cleanup=cleanup)
        topic = await broker.create_topic("t", 1, settings)
        group = await group_on(broker, "g", "t", KEYED.changed(visibility_us=5 * HOUR))
        await publish(broker, keyed("a1"), *(keyed("b") for _ in range(20)))
        receipts.append(await lease_one(group, count=1))
        if is_waiting:
            await group.nack(receipts[0], delay_us=5 * HOUR)
        topic.partition(0).messages.roll()
        clock_of(broker).advance_us(2 * HOUR)
        await publish(broker, keyed("a2"), keyed("b"))
        topic.partition(0).messages.roll()
        await broker.maintain()
        there = [stored.message.value for stored in topic.partition(0).reading.messages(BitMap64(range(99)))]
        assert there == [b"a1", b"a2", b"b"]

    async def after(broker: Broker) -> None:
        group = broker.group("g", "t")
        assert b"a2" not in values(await group.lease("d", 100))
        if is_waiting:
            clock_of(broker).advance_us(5 * HOUR)
            handed = await group.lease("d", 100)
            assert values(handed)[:1] == [b"a1"]
        else:
            await group.ack(receipts[0])
            assert values(await group.lease("d", 100)) == [b"a2"]

    run(before, MemoryFiles(disk))
    run(after, MemoryFiles(disk))


@pytest.mark.parametrize("cleanup", ["delete", "compact"])
def test_nobody_leases_what_was_deleted_from_a_frame_that_another_group_has_read(cleanup: str) -> None:
    """A start could not tell its key any more, and would hand out the next one of it."""

    async def before(broker: Broker) -> None:
        clock = clock_of(broker)
        topic = await broker.create_topic("t", 1, TopicSettings(retention_age_us=HOUR, cleanup=cleanup))
        kept = Message(b"next week", deliver_at=clock.now_us() + 168 * HOUR)
        await topic.publish_batch(Batch.from_messages([keyed("a1"), *map(keyed, "bbb"), kept], clock.now_us()))
        for name in ("other", "g"):
            await (await group_on(broker, name, "t", KEYED.changed(visibility_us=24 * HOUR))).start()
        other = broker.group("other", "t")
        await ack_all(other, await other.lease("c", 10))
        topic.partition(0).messages.roll()
        clock.advance_us(2 * HOUR)
        await publish(broker, keyed("a2"))
        topic.partition(0).messages.roll()
        await broker.maintain()
        there = [stored.message.value for stored in topic.partition(0).reading.messages(BitMap64(range(99)))]
        assert there[-1:] == [b"a2"]
        assert b"a1" not in there
        group = broker.group("g", "t")
        leased = values(await group.lease("c", 1)) + values(await group.lease("c", 10))
        assert b"a1" not in leased
        assert b"a2" in leased
        await topic.partition(0).groups.flushed()

    async def after(broker: Broker) -> None:
        assert b"a2" not in values(await broker.group("g", "t").lease("d", 10))

    run_and_kill(before, after)


def test_maintenance_that_fails_half_way_leaves_nothing_that_is_gone_to_be_leased(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(broker: Broker) -> None:
        clock = clock_of(broker)
        topic = await broker.create_topic("t", 1, TopicSettings(retention_age_us=HOUR))
        kept = Message(b"next week", deliver_at=clock.now_us() + 168 * HOUR)
        await topic.publish_batch(Batch.from_messages([*map(keyed, "abcd"), kept], clock.now_us()))
        group = await group_on(broker, "g", "t", KEYED)
        await ack_all(group, await group.lease("c", 1))
        clock.advance_us(2 * HOUR)

        def full(*args: object) -> None:
            raise DiskFull("no space left")

        monkeypatch.setattr(Partition, "_shorten_deliveries", full)
        await broker.maintain()
        assert await group.lease("c", 10) == []

    run(work)


@pytest.mark.parametrize("is_given_back", [False, True])
def test_what_a_group_by_key_has_abandoned_does_not_hold_up_retention(is_given_back: bool) -> None:
    """Nobody asks for what is due again. What is not due yet stays, since its key is busy."""

    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1, TopicSettings(retention_age_us=HOUR))
        group = await group_on(broker, "g", "t", KEYED.changed(visibility_us=3 * HOUR))
        await publish(broker, *map(keyed, "abc"))
        receipt = await lease_one(group)
        if is_given_back:
            await group.nack(receipt, delay_us=3 * HOUR)
        for start in (0, 3):
            clock_of(broker).advance_us(2 * HOUR)
            await broker.tick()
            await broker.maintain()
            assert topic.partition(0).messages.start_offset == start
        assert await group.lease("c", 10) == []
        assert group.lag() == [0]

    run(work)
