"""A crash between two rows, a snapshot cut short, a log that was shortened: what the next start makes of it."""

from __future__ import annotations

import asyncio

import pytest
from pyroaring import BitMap64

from broker_files import Moments, hold_deliveries, inline_of, run_inline, turns
from broker_support import ack_all, clock_of, group_on, values
from penstock.batch import Batch
from penstock.broker import scheduled, snapshot
from penstock.broker.broker import Broker
from penstock.broker.catalog import Catalog
from penstock.broker.deliveries import Deliveries
from penstock.broker.group import Group, Receipt
from penstock.broker.ids import MessageId
from penstock.broker.settings import GroupSettings, TopicSettings
from penstock.errors import AlreadyExists, NotFound, Overloaded
from penstock.frame import Frame, Producer
from penstock.message import Message
from penstock.testing import MemoryDisk, MemoryFiles
from support import SMALL_SEGMENTS

SECOND, HOUR = 1_000_000, 3_600_000_000
SETTINGS = GroupSettings(visibility_us=SECOND, backoff_initial_us=SECOND, backoff_jitter=0)
KEYED = SETTINGS.changed(ordering="key")


async def group_with(broker: Broker, *messages: Message, settings: GroupSettings = SETTINGS) -> Group:
    """A group on a topic of one partition with these messages."""
    topic = await broker.create_topic("t", 1)
    group = await group_on(broker, "g", "t", settings)
    await group.start()
    for message in messages:
        await topic.publish(message)
    return group


async def lease_one(group: Group, count: int = 10) -> Receipt:
    (handed,) = await group.lease("c", count)
    return handed.receipt


async def everything(broker: Broker, group: str = "g") -> list[bytes | None]:
    """What the group gets once the leases and waits of an earlier life are over."""
    got: list[bytes | None] = []
    on_topic = broker.group(group, "t")
    for _ in range(3):
        handed = await on_topic.lease("later", 100)
        got += values(handed)
        await ack_all(on_topic, handed)
        clock_of(broker).advance_us(10 * SECOND)
    return got


# --- rows that belong together ---------------------------------------------------------------------------


def test_what_was_leased_from_around_a_delayed_message_comes_again_wherever_the_crash_was() -> None:
    moments = Moments()

    async def before(broker: Broker) -> None:
        later = Message(b"later", deliver_at=clock_of(broker).now_us() + HOUR)
        group = await group_with(broker, Message(b"1"), later, Message(b"2"))
        with moments.kept():
            assert values(await group.lease("c", 10)) == [b"1", b"2"]
            await group.topic.partition(0).groups.flushed()

    async def after(broker: Broker) -> None:
        assert await everything(broker) == [b"1", b"2"]
        assert broker.group("g", "t").lag() == [1]

    run_inline(before, moments.files)
    moments.run_each(after)


def test_a_redriven_message_comes_again_with_its_key_wherever_the_crash_was() -> None:
    moments = Moments()

    async def before(broker: Broker) -> None:
        group = await group_with(broker, Message(b"1", key=b"k"), Message(b"2", key=b"k"), settings=KEYED)
        await group.reject(await lease_one(group, 1), "bad")
        await broker.settle()
        assert len(group.parked()) == 1
        with moments.kept():
            await broker.dead_letters.redrive("t")

    async def after(broker: Broker) -> None:
        await broker.dead_letters.redrive("t")
        assert broker.group("g", "t").parked() == []
        assert await everything(broker) == [b"1", b"2"]
        assert list(broker.dead_letters.letters("t")) == []

    run_inline(before, moments.files)
    moments.run_each(after)


def test_a_replay_that_a_crash_cut_short_is_whole_or_can_be_begun_again() -> None:
    moments = Moments()

    async def before(broker: Broker) -> None:
        await group_with(broker, Message(b"1"), Message(b"2"), Message(b"3"))
        with moments.kept():
            await broker.replay("t", "again", offsets={0: (0, 2)})

    async def after(broker: Broker) -> None:
        if "again" not in [record.name for record in broker.groups] or not broker.group_topics("again"):
            await broker.replay("t", "again", offsets={0: (0, 2)})
        assert await everything(broker, "again") == [b"1", b"2"]

    run_inline(before, moments.files)
    moments.run_each(after)


@pytest.mark.parametrize("delays", [False, True])
def test_a_replay_of_many_partitions_that_a_crash_cut_short_is_of_all_of_them_or_of_none(delays: bool) -> None:
    moments = Moments()
    offsets = {0: (0, 1), 1: (0, 1), 2: (0, 1)}
    seen: set[bool] = set()

    async def before(broker: Broker) -> None:
        topic = await broker.create_topic("t", 4)
        for number in range(4):
            await topic.publish(Message(b"old", deliver_at=clock_of(broker).now_us() + SECOND), number)
            await topic.publish(Message(b"new"), number)
        clock_of(broker).advance_us(SECOND)
        await broker.tick()
        with moments.kept():
            await broker.replay("t", "again", offsets=offsets, delays=delays)

    async def after(broker: Broker) -> None:
        is_there = "again" in [record.name for record in broker.groups]
        seen.add(is_there)
        if is_there and delays:
            assert await broker.group("again", "t").lease("early", 10) == []
        clock_of(broker).advance_us(SECOND)
        await broker.tick()
        if is_there:
            with pytest.raises(AlreadyExists):
                await broker.replay("t", "again", offsets=offsets)
        else:
            await broker.replay("t", "again", offsets=offsets)
        assert await everything(broker, "again") == [b"old"] * 3

    run_inline(before, moments.files)
    moments.run_each(after)
    assert seen == {False, True}


def test_a_replay_that_fails_leaves_nothing_behind_and_can_be_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 2)
        for number in range(2):
            await topic.publish(Message(b"old"), number)

        def refuse(item: object) -> None:
            raise Overloaded("too much is waiting")

        with monkeypatch.context() as patch:
            patch.setattr(topic.partition(1).groups._ledger.journal, "write", refuse)
            with pytest.raises(Overloaded):
                await broker.replay("t", "again", from_us=0)
        assert broker.groups == []
        assert await broker.replay("t", "again", from_us=0) == 2
        assert await everything(broker, "again") == [b"old"] * 2

    run_inline(work)


def test_a_replay_that_fails_leaves_the_group_that_was_there_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 2)
        for number in range(2):
            await topic.publish(Message(b"old"), number)
        record = await broker.create_group("again", GroupSettings().changed(lanes="none", is_replay=True))

        def refuse(item: object) -> None:
            raise Overloaded("too much is waiting")

        with monkeypatch.context() as patch:
            patch.setattr(topic.partition(1).groups._ledger.journal, "write", refuse)
            with pytest.raises(Overloaded):
                await broker.replay("t", "again", from_us=0)
        assert broker.groups == [record]
        assert broker.group_topics("again") == []
        assert await broker.replay("t", "again", from_us=0) == 2
        assert await everything(broker, "again") == [b"old"] * 2

    run_inline(work)


@pytest.mark.parametrize("ordering", ["none", "key", "partition"])
def test_a_group_may_be_asked_for_messages_while_its_replay_is_on_its_way(ordering: str) -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        for value in (b"1", b"2"):
            await topic.publish(Message(value, b"k"))
        await broker.create_group("again", GroupSettings().changed(lanes="none", is_replay=True, ordering=ordering))
        inline_of(broker).hold(Catalog.put_group)
        replaying = asyncio.create_task(broker.replay("t", "again", from_us=0, ordering=ordering))
        await turns()
        # Nothing is known yet of what it is of.
        assert await broker.group("again", "t").lease("c", 10) == []
        inline_of(broker).go_on()
        executor = hold_deliveries(broker, topic.partition(0))
        await turns()
        handed = await broker.group("again", "t").lease("c", 10)
        executor.go_on()
        assert await replaying == 2
        assert values(handed) == [b"1", b"2"]
        await ack_all(broker.group("again", "t"), handed)
        assert broker.group("again", "t").lag() == [0]

    run_inline(work)


def test_a_replay_that_a_start_can_not_finish_is_finished_when_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    killed: list[MemoryDisk] = []

    async def before(broker: Broker) -> None:
        await group_with(broker, Message(b"1"), Message(b"2"))
        executor = hold_deliveries(broker, broker.topic("t").partition(0))
        replaying = asyncio.create_task(broker.replay("t", "again", from_us=0))
        await turns()
        assert executor.is_holding
        killed.append(disk.after_kill())
        executor.go_on()
        await replaying

    async def refuse(*args: object) -> None:
        raise Overloaded("too much is waiting")

    async def after(broker: Broker) -> None:
        monkeypatch.undo()
        assert broker.group_topics("again") == []
        await broker.tick()
        await broker.join("again", "c", ["t"])
        assert await everything(broker, "again") == [b"1", b"2"]

    run_inline(before, MemoryFiles(disk))
    monkeypatch.setattr(Deliveries, "record", refuse)
    run_inline(after, MemoryFiles(killed[0]))


def test_a_replay_does_not_begin_again_in_another_topic_of_the_same_name() -> None:
    moments = Moments()

    async def before(broker: Broker) -> None:
        await group_with(broker, Message(b"1"))
        await broker.replay("t", "again", from_us=0)
        await broker.delete_topic("t")
        topic = await broker.create_topic("t", 1)
        with moments.kept():
            await topic.publish(Message(b"2"))

    async def after(broker: Broker) -> None:
        assert broker.group_topics("again") == []
        assert await everything(broker, "again") == []

    run_inline(before, moments.files)
    moments.run_each(after)


def test_a_replay_gets_nothing_of_partitions_that_are_added_later() -> None:
    async def work(broker: Broker) -> None:
        await group_with(broker, Message(b"old"))
        await broker.replay("t", "again", offsets={0: (0, 1)})
        topic = await broker.change_topic("t", partitions=2)
        await topic.publish(Message(b"new"), 1)
        assert await everything(broker, "again") == [b"old"]

    run_inline(work)


def test_a_group_misses_nothing_in_new_partitions_wherever_the_crash_was() -> None:
    moments = Moments()

    async def before(broker: Broker) -> None:
        await group_with(broker, settings=SETTINGS.changed(start="latest"))
        with moments.kept():
            await broker.change_topic("t", partitions=2)

    async def after(broker: Broker) -> None:
        topic, group = broker.topic("t"), broker.group("g", "t")
        for number in range(len(topic.partitions)):
            await topic.publish(Message(b"new"), number)
        assert group.lag() == [1] * len(topic.partitions)
        assert await everything(broker) == [b"new"] * len(topic.partitions)

    run_inline(before, moments.files)
    moments.run_each(after)


# --- dead letters and their rows -------------------------------------------------------------------------


def test_no_dead_letter_is_written_ahead_of_the_row_that_gives_its_message_up() -> None:
    disk = MemoryDisk()
    killed: list[MemoryDisk] = []

    async def before(broker: Broker) -> None:
        group = await group_with(broker, Message(b"1"), settings=SETTINGS.changed(max_retries=0))
        (graves,) = (await broker.create_topic("t.dlq", 1)).partitions
        await group.lease("c", 1)
        await group.topic.partition(0).groups.flushed()
        clock_of(broker).advance_us(2 * SECOND)
        disk_of_rows = hold_deliveries(broker, group.topic.partition(0))
        for _ in range(2):
            await broker.tick()
            await turns()
        assert disk_of_rows.is_holding
        assert graves.messages.end_offset == 0
        killed.append(disk.after_kill())
        disk_of_rows.go_on()
        await broker.settle()
        assert graves.messages.end_offset == 1

    async def after(broker: Broker) -> None:
        for _ in range(3):
            clock_of(broker).advance_us(2 * SECOND)
            await broker.tick()
            await broker.settle()
        assert len(list(broker.dead_letters.letters("t"))) == 1

    run_inline(before, MemoryFiles(disk))
    run_inline(after, MemoryFiles(killed[0]))


def test_a_message_that_was_given_up_can_be_redriven_wherever_the_crash_was() -> None:
    moments = Moments()

    async def before(broker: Broker) -> None:
        group = await group_with(broker, Message(b"1"))
        receipt = await lease_one(group)
        with moments.kept():
            await group.reject(receipt, "bad")
            await broker.settle()

    async def after(broker: Broker) -> None:
        await broker.dead_letters.redrive("t")
        await broker.settle()
        assert list(broker.dead_letters.letters("t")) == []
        assert await everything(broker) == [b"1"]

    run_inline(before, moments.files)
    moments.run_each(after)


# --- snapshots -------------------------------------------------------------------------------------------


def test_the_last_snapshot_stays_though_a_new_segment_begins_right_behind_it() -> None:
    disk = MemoryDisk()
    held: list[Receipt] = []
    killed: list[MemoryDisk] = []

    async def first(broker: Broker) -> None:
        await broker.create_topic("t", 1, TopicSettings(retention_age_us=HOUR))
        group = await group_on(broker, "g", "t", SETTINGS.changed(visibility_us=100 * HOUR))
        await broker.topic("t").publish(Message(b"1"))
        held.append(await lease_one(group))

    async def second(broker: Broker) -> None:
        (partition,) = broker.topic("t").partitions
        clock_of(broker).advance_us(25 * HOUR)
        await broker.group("g", "t").extend(held[0])
        assert len(partition.deliveries.segments) == 2
        await broker.maintain()
        killed.append(disk.after_kill())

    async def third(broker: Broker) -> None:
        await broker.group("g", "t").ack(held[0])

    run_inline(first, MemoryFiles(disk))
    run_inline(second, MemoryFiles(disk))
    run_inline(third, MemoryFiles(killed[0]))


def test_where_a_group_is_outlives_the_messages_it_has_read() -> None:
    disk = MemoryDisk()
    killed: list[MemoryDisk] = []

    async def first(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1, TopicSettings(retention_age_us=HOUR))
        for name in ("g", "other"):
            await (await group_on(broker, name, "t", SETTINGS.changed(start="latest"))).start()
        await topic.publish(Message(b"old"))
        await ack_all(broker.group("g", "t"), await broker.group("g", "t").lease("c", 1))

    async def second(broker: Broker) -> None:
        clock_of(broker).advance_us(25 * HOUR)
        await broker.group("other", "t").seek("earliest")
        await broker.maintain()
        await broker.topic("t").publish(Message(b"new"))
        killed.append(disk.after_kill())

    async def third(broker: Broker) -> None:
        assert values(await broker.group("g", "t").lease("c", 10)) == [b"new"]

    run_inline(first, MemoryFiles(disk))
    run_inline(second, MemoryFiles(disk))
    run_inline(third, MemoryFiles(killed[0]))


def test_a_snapshot_that_a_crash_cut_short_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next start, and by whoever asks for the state between it and the next whole one."""
    monkeypatch.setattr(snapshot, "_PIECE_BYTES", 40)
    monkeypatch.setattr(snapshot, "_PIECES_IN_A_FRAME", 2)
    moments = Moments()

    async def before(broker: Broker) -> None:
        group = await group_with(broker, *[Message(b"x")] * 10)
        receipt = await lease_one(group)
        for offset in (1, 3, 5):
            await group.nack(receipt._replace(offsets=BitMap64([offset])), reason="bad")
        await group.ack(receipt._replace(offsets=BitMap64([0, 2, 4])))
        with moments.kept():
            await group.topic.partition(0).groups.snapshot()

    async def after(broker: Broker) -> None:
        clock, groups = clock_of(broker), broker.topic("t").partition(0).groups
        then = clock.now_us()
        clock.advance_us(1)
        await groups.snapshot()
        await broker.group("g", "t").seek("latest")
        (state,) = await broker.state_at("g", "t", then)
        assert list(state.unacknowledged) == [1, 3, 5, 6, 7, 8, 9]

    run_inline(before, moments.files)
    moments.run_each(after)


def test_a_cancelled_message_is_not_recalled_from_a_merged_frame() -> None:
    disk = MemoryDisk()
    killed: list[MemoryDisk] = []

    async def before(broker: Broker) -> None:
        later = clock_of(broker).now_us() + HOUR
        group = await group_with(broker, Message(b"never", deliver_at=later))
        await scheduled.cancel(group.topic, MessageId("t", 0, 0))
        (partition,) = group.topic.partitions
        # What comes behind the snapshot shares a frame with what it covers.
        await partition.groups.snapshot()
        await group.topic.publish(Message(b"later", deliver_at=later))
        partition.messages.roll()
        await broker.maintain()
        assert next(iter(partition.messages.frames(0))).count == 2
        killed.append(disk.after_kill())

    async def after(broker: Broker) -> None:
        assert [one.message.value for one in scheduled.scheduled(broker.topic("t"))] == [b"later"]
        clock_of(broker).advance_us(HOUR)
        assert await everything(broker) == [b"later"]

    run_inline(before, MemoryFiles(disk))
    run_inline(after, MemoryFiles(killed[0]))


# --- producers -------------------------------------------------------------------------------------------


def batch(sequence: int, *messages: Message) -> Frame:
    return Frame.of(Batch.from_messages(list(messages), 1), producer=Producer(7, 0, sequence))


def test_a_broker_opens_though_compaction_has_removed_a_batch_of_a_producer() -> None:
    disk = MemoryDisk()

    async def before(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1, TopicSettings(cleanup="compact"))
        for sequence, key in enumerate((b"a", b"b", b"c", b"b")):
            # Too large to be merged.
            await topic.publish_frame(batch(sequence, Message(b"x" * 10_000, key=key)), 0)
        topic.partition(0).messages.roll()
        await broker.maintain()
        with pytest.raises(NotFound):
            broker.message(MessageId("t", 0, 1))

    async def after(broker: Broker) -> None:
        topic = broker.topic("t")
        again = await topic.publish_frame(batch(3, Message(b"x" * 10_000, key=b"b")), 0)
        following = await topic.publish_frame(batch(4, Message(b"new", key=b"d")), 0)
        assert (again.offset, following.offset) == (3, 4)

    run_inline(before, MemoryFiles(disk))
    run_inline(after, MemoryFiles(disk))


def test_a_broker_opens_though_retention_has_left_only_a_delayed_batch_of_a_producer() -> None:
    disk = MemoryDisk()

    async def before(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1, TopicSettings(retention_age_us=SECOND))
        later = clock_of(broker).now_us() + HOUR
        for sequence in range(5):
            message = Message(b"x" * 10_000, deliver_at=later if sequence == 1 else 0)
            await topic.publish_frame(batch(sequence, message), 0)
        clock_of(broker).advance_us(10 * SECOND)
        await broker.maintain()
        await topic.publish_frame(batch(5, Message(b"new")), 0)
        kept = topic.partition(0).reading.messages(BitMap64(range(6)))
        assert [stored.offset for stored in kept] == [1, 5]

    async def after(broker: Broker) -> None:
        topic = broker.topic("t")
        again = await topic.publish_frame(batch(5, Message(b"new")), 0)
        following = await topic.publish_frame(batch(6, Message(b"newer")), 0)
        assert (again.offset, following.offset) == (5, 6)

    run_inline(before, MemoryFiles(disk))
    run_inline(after, MemoryFiles(disk))


# --- what is told of the past ----------------------------------------------------------------------------


def test_the_state_before_what_the_log_still_tells_is_not_found() -> None:
    async def work(broker: Broker) -> None:
        await broker.create_topic("t", 1, TopicSettings(retention_age_us=HOUR))
        group = await group_on(broker, "g", "t", SETTINGS.changed(visibility_us=100 * HOUR))
        for _ in range(60):
            await group.topic.publish(Message(b"x" * 100))
        (partition,) = group.topic.partitions
        receipt = await lease_one(group, 60)
        times = []
        for offset in range(60):
            await group.ack(receipt._replace(offsets=BitMap64([offset])))
            clock_of(broker).advance_us(60 * SECOND)
            times.append(clock_of(broker).now_us())
            if offset in (30, 59):
                await partition.groups.snapshot()
        clock_of(broker).advance_us(2 * HOUR)
        await broker.maintain()
        await broker.topic("t").publish(Message(b"y"))
        await broker.maintain()
        assert partition.deliveries.start_offset > 30
        for then in times[:-1]:
            with pytest.raises(NotFound):
                await broker.state_at("g", "t", then)
        (now,) = await broker.state_at("g", "t", clock_of(broker).now_us())
        assert (now.floor, list(now.unacknowledged)) == (60, [60])

    run_inline(work, log_settings=SMALL_SEGMENTS)


def test_the_story_of_a_message_is_whole_though_the_clock_was_set_back() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        await topic.publish(Message(b"1"))
        clock_of(broker).advance_us(-HOUR)
        group = await group_on(broker, "g", "t", SETTINGS)
        await ack_all(group, await group.lease("c", 1))
        identity = MessageId("t", 0, 0)
        assert [step.what for step in (await broker.trace(identity)).steps][1:-1] == ["DELIVERED", "ACKNOWLEDGED"]
        assert (await broker.why(identity, "g")).code == "acknowledged"

    run_inline(work)


def test_the_story_of_a_message_is_whole_though_the_clock_was_set_back_for_a_while() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        await topic.publish(Message(b"1"))
        clock_of(broker).advance_us(-HOUR)
        group = await group_on(broker, "g", "t", SETTINGS)
        await ack_all(group, await group.lease("c", 1))
        clock_of(broker).advance_us(2 * HOUR)
        await topic.publish(Message(b"2"))
        await ack_all(group, await group.lease("c", 1))
        steps = (await broker.trace(MessageId("t", 0, 0))).steps
        assert [step.what for step in steps][1:-1] == ["DELIVERED", "ACKNOWLEDGED"]

    run_inline(work)


def test_a_group_that_was_moved_back_gets_its_messages_for_the_first_time_again() -> None:
    async def work(broker: Broker) -> None:
        group = await group_with(broker, Message(b"1"))
        await group.lease("c", 1)
        await group.seek("earliest")
        receipt = await lease_one(group)
        steps = (await broker.trace(MessageId("t", 0, 0))).steps
        assert [(step.what, step.attempt) for step in steps if step.group == "g"] == [
            ("DELIVERED", 1),
            ("GROUP_MOVED", None),
            ("DELIVERED", group.attempt(receipt, 0)),
        ]

    run_inline(work)
