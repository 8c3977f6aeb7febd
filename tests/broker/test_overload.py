"""More than the disk, a queue or one look can take, and parts that fail: the rest keeps its time, order and bounds."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from broker_files import PathFiles, hold_deliveries, hold_messages, run_inline, turns
from broker_support import ack_all, clock_of, group_on, values
from penstock.batch import Batch
from penstock.broker import deliveries, ledger
from penstock.broker.broker import Broker, Polled
from penstock.broker.group import Group, Receipt
from penstock.broker.settings import GroupSettings, TopicSettings
from penstock.broker.topic import Topic
from penstock.errors import DiskFull, InvalidMessage, LogCorrupt, Overloaded, SequenceTooOld
from penstock.frame import Frame, Producer
from penstock.message import Message
from penstock.storage import commit
from penstock.testing import Fault, MemoryDisk, MemoryFiles

SECOND, HOUR = 1_000_000, 3_600_000_000
SETTINGS = GroupSettings(backoff_initial_us=0, backoff_max_us=0, backoff_jitter=0)
KEYED = SETTINGS.changed(ordering="key")


async def group_with(broker: Broker, *messages: Message, settings: GroupSettings = SETTINGS) -> Group:
    """A group on a topic of one partition with these messages."""
    topic = await broker.create_topic("t", 1)
    group = await group_on(broker, "g", "t", settings)
    await group.start()
    await publish(topic, *messages)
    return group


async def publish(topic: Topic, *messages: Message) -> None:
    for message in messages:
        await topic.publish(message)


async def lease_one(group: Group, count: int = 1) -> Receipt:
    (handed,) = await group.lease("c", count)
    return handed.receipt


def keyed(word: str, priority: int = 0) -> Message:
    """The letter is the key."""
    return Message(word.encode(), key=word[:1].encode(), priority=priority)


# --- a disk that is too slow, or too fast ----------------------------------------------------------------


def test_a_delay_that_is_over_while_too_much_waits_for_the_disk_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(broker: Broker) -> None:
        group = await group_with(broker, Message(b"later", deliver_at=clock_of(broker).now_us() + HOUR))
        other = await group_on(broker, "other", "t", SETTINGS)
        await other.start()
        executor = hold_deliveries(broker, group.topic.partition(0))
        writing = asyncio.create_task(other.seek("latest"))
        await turns()
        clock_of(broker).advance_us(HOUR)
        with monkeypatch.context() as patch:
            patch.setattr(commit, "WAITING_BYTES_MAX", 1)
            await broker.tick()
            assert list(group.topic.partition(0).groups.delays.pending) == [0]
        executor.go_on()
        await writing
        await broker.tick()
        assert values(await group.lease("c", 1)) == [b"later"]

    run_inline(work)


@pytest.mark.parametrize("is_frame", [False, True])
def test_a_message_that_is_due_already_is_delivered_though_too_much_waits_for_the_disk(
    is_frame: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so is all that comes after it."""

    async def work(broker: Broker) -> None:
        group = await group_with(broker)
        other = await group_on(broker, "other", "t", SETTINGS)
        await other.start()
        executor = hold_deliveries(broker, group.topic.partition(0))
        writing = asyncio.create_task(other.seek("latest"))
        await turns()
        message = Message(b"due", deliver_at=clock_of(broker).now_us())
        with monkeypatch.context() as patch:
            patch.setattr(commit, "WAITING_BYTES_MAX", 1)
            patch.setattr(ledger, "HELD_BACK_MAX", 0)
            for _ in range(2):
                if is_frame:
                    await group.topic.publish_frame(Frame.of(Batch.from_messages([message], 1)), 0)
                else:
                    await publish(group.topic, message)
        executor.go_on()
        await writing
        await publish(group.topic, Message(b"after it"))
        await broker.tick()
        assert values(await group.lease("c", 10)) == [b"due", b"due", b"after it"]

    run_inline(work)


def test_an_ack_that_is_written_succeeds_though_there_is_no_room_for_a_snapshot_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(broker: Broker) -> None:
        group = await group_with(broker, Message(b"1"))
        handed = await group.lease("c", 1)
        await group.topic.partition(0).groups.flushed()
        executor = hold_deliveries(broker, group.topic.partition(0))
        with monkeypatch.context() as patch:
            patch.setattr(commit, "WAITING_BYTES_MAX", 1)
            patch.setattr(deliveries, "SNAPSHOT_EVERY_BYTES", 0)
            acking = asyncio.create_task(ack_all(group, handed))
            await turns()
        executor.go_on()
        await acking

    run_inline(work)


def test_a_group_is_deleted_though_too_much_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog does not have it any more then: nobody could delete it a second time."""

    async def work(broker: Broker) -> None:
        group = await group_with(broker, Message(b"1"))
        await ack_all(group, await group.lease("c", 1))
        other = await group_on(broker, "other", "t", SETTINGS)
        await other.start()
        executor = hold_deliveries(broker, group.topic.partition(0))
        writing = asyncio.create_task(other.seek("latest"))
        await turns()
        monkeypatch.setattr(commit, "WAITING_BYTES_MAX", 1)
        deleting = asyncio.create_task(broker.delete_group("g"))
        await turns()
        executor.go_on()
        await writing
        await deleting
        again = await group_on(broker, "g", "t", SETTINGS)
        assert values(await again.lease("c", 1)) == [b"1"]

    run_inline(work)


def test_a_delayed_message_is_not_leased_early_however_fast_the_disk_is() -> None:
    async def work(broker: Broker) -> None:
        group = await group_with(broker)
        later = Message(b"later", deliver_at=clock_of(broker).now_us() + HOUR)
        publishing = asyncio.create_task(group.topic.publish(later))
        await turns(2)
        assert group.topic.partition(0).messages.synced_offset == 1
        assert not publishing.done()
        assert await group.lease("c", 1) == []
        await publishing
        assert await group.lease("c", 1) == []

    run_inline(work)


def test_a_batch_that_failed_is_not_stored_behind_the_one_that_followed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is that one stored twice."""
    faults: list[Fault] = []

    def before(kind: str, path: str) -> Fault | None:
        return faults.pop() if faults and kind == "write" and "/messages/" in path else None

    def batch(sequence: int, value: bytes) -> Frame:
        return Frame.of(Batch.from_messages([Message(value)], 1), producer=Producer(7, 0, sequence))

    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        executor = hold_messages(broker, topic.partition(0))
        # Each of them is written alone.
        monkeypatch.setattr(commit, "GROUP_BYTES_MAX", 1)
        # It is tried with room behind it, and without.
        faults.extend([Fault(DiskFull("no space left"))] * 2)
        publishing = [asyncio.create_task(topic.publish_frame(batch(i, b"%d" % i), 0)) for i in range(2)]
        await turns()
        executor.go_on()
        failed, stored = await asyncio.gather(*publishing, return_exceptions=True)
        assert isinstance(failed, DiskFull)
        with pytest.raises(SequenceTooOld):
            await topic.publish_frame(batch(0, b"0"), 0)
        assert await topic.publish_frame(batch(1, b"1"), 0) == stored
        assert topic.partition(0).messages.end_offset == 1

    run_inline(work, PathFiles(MemoryFiles(), before))


# --- many that can't be leased ---------------------------------------------------------------------------


def test_a_lease_of_one_message_gets_over_thousands_of_expired_ones_in_a_few_rows() -> None:
    async def work(broker: Broker) -> None:
        group = await group_with(broker)
        short = Message(b"x", expires_at=clock_of(broker).now_us() + 1)
        await group.topic.publish_batch(Batch.from_messages([short] * 5000, 1))
        await publish(group.topic, Message(b"fresh"))
        clock_of(broker).advance_us(10)
        (partition,) = group.topic.partitions
        before = partition.deliveries.end_offset
        assert values(await group.lease("c", 1)) == [b"fresh"]
        await partition.groups.flushed()
        assert partition.deliveries.end_offset - before < 20

    run_inline(work)


def test_a_lease_of_one_message_gets_over_thousands_of_a_busy_key_in_a_few_rows() -> None:
    async def work(broker: Broker) -> None:
        group = await group_with(broker, settings=KEYED)
        await group.topic.publish_batch(Batch.from_messages([keyed("a")] * 5000, 1))
        await publish(group.topic, keyed("b"))
        (partition,) = group.topic.partitions
        await group.lease("c", 1)
        before = partition.deliveries.end_offset
        assert values(await group.lease("c", 1)) == [b"b"]
        await partition.groups.flushed()
        assert partition.deliveries.end_offset - before < 20

    run_inline(work)


def test_fresh_messages_do_not_overtake_those_of_their_key_that_wait() -> None:
    async def work(broker: Broker) -> None:
        group = await group_with(broker, *map(keyed, "abcde"), settings=KEYED)
        held = await group.lease("c", 5)
        await publish(group.topic, *(keyed(f"a{i:02}") for i in range(40)), *map(keyed, "bbccddee"))
        assert await group.lease("c", 100) == []
        await publish(group.topic, *(keyed(f"a{i:02}") for i in range(40, 50)))
        await ack_all(group, held)
        got: list[bytes | None] = []
        while handed := await group.lease("c", 100):
            got += [value for value in values(handed) if value is not None and value.startswith(b"a")]
            await ack_all(group, handed)
        assert got == [b"a%02d" % i for i in range(50)]

    run_inline(work)


def test_fresh_high_messages_do_not_overtake_high_ones_of_their_key_that_wait() -> None:
    async def work(broker: Broker) -> None:
        group = await group_with(broker, keyed("a"), settings=KEYED)
        held = await group.lease("c", 1)
        await publish(group.topic, keyed("a low", -1), keyed("a normal"), keyed("a high 1", 1), keyed("a high 2", 1))
        assert await group.lease("c", 10) == []
        await publish(group.topic, keyed("a high 3", 1))
        await ack_all(group, held)
        got: list[bytes | None] = []
        while handed := await group.lease("c", 1):
            got += values(handed)
            await ack_all(group, handed)
        assert got == [b"a high 1", b"a high 2", b"a high 3", b"a normal", b"a low"]

    run_inline(work)


# --- what is remembered ----------------------------------------------------------------------------------


def test_deadlines_of_leases_that_are_over_do_not_pile_up() -> None:
    async def work(broker: Broker) -> None:
        group = await group_with(broker, *[Message(b"x")] * 301)
        await group.lease("stuck", 1)
        for _ in range(300):
            clock_of(broker).advance_us(1)
            await group.ack(await lease_one(group))
        state = group.topic.partition(0).groups.state("g")
        assert len(state.leases) == 1
        assert len(state._deadlines) < 100

    run_inline(work)


def test_of_a_message_that_fails_for_ever_the_last_failures_are_kept() -> None:
    async def work(broker: Broker) -> None:
        group = await group_with(broker, Message(b"x"), settings=SETTINGS.changed(max_retries=1000))
        for number in range(100):
            await group.nack(await lease_one(group), reason=str(number))
        failures = group.topic.partition(0).groups.state("g").failures[0]
        assert len(failures) < 30
        assert [failure.reason for failure in failures[-3:]] == ["97", "98", "99"]

    run_inline(work)


def test_the_dead_are_forgotten_once_retention_has_deleted_them() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1, TopicSettings(retention_age_us=HOUR))
        group = await group_on(broker, "g", "t", SETTINGS)
        await publish(topic, *[Message(b"x")] * 5)
        await group.reject(await lease_one(group, 5), "bad")
        await broker.settle()
        state = topic.partition(0).groups.state("g")
        assert len(state.dead) == 5
        clock_of(broker).advance_us(2 * HOUR)
        await broker.maintain()
        assert (topic.partition(0).messages.start_offset, len(state.dead)) == (5, 0)

    run_inline(work)


# --- one of many fails -----------------------------------------------------------------------------------


def test_a_damaged_partition_does_not_take_the_others_with_it() -> None:
    disk = MemoryDisk()

    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 2)
        await topic.publish(Message(b"healthy", key=b"a"), 0)
        await topic.publish(Message(b"x" * 300, key=b"b"), 1)
        damage(disk, topic.record.partitions[1])
        await broker.join("g", "c", ["t"], ordering="key", visibility_us=SECOND, max_retries=0)
        polled: list[Polled] = []
        errors = 0
        for _ in range(4):
            try:
                polled += await broker.poll("g", "c", ["t"])
            except LogCorrupt:
                errors += 1
        assert values([one.handed for one in polled]) == [b"healthy"]
        assert errors >= 2, "whoever asks hears of the damage"
        await ack_all(broker.group("g", "t"), [one.handed for one in polled])
        assert broker.group("g", "t").lag() == [0, 1]

    run_inline(work, MemoryFiles(disk))


def test_an_overloaded_partition_does_not_eat_what_is_leased_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 2)
        for number, value in enumerate((b"waits", b"healthy")):
            await topic.publish(Message(value), number)
        group = await group_on(broker, "g", "t", SETTINGS)
        await group.start()

        def refuse(*args: object) -> None:
            raise Overloaded("too much is waiting")

        monkeypatch.setattr(topic.partition(0).groups._ledger, "note", refuse)
        got: list[bytes | None] = []
        for _ in range(4):
            with suppress(Overloaded):
                got += values(await group.lease("c", 10))
        assert got == [b"healthy"]

    run_inline(work)


def test_a_damaged_partition_with_high_messages_does_not_starve_the_others() -> None:
    disk = MemoryDisk()

    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 2)
        await topic.publish(Message(b"healthy", key=b"a"), 0)
        await topic.publish(Message(b"x" * 300, key=b"b", priority=1), 1)
        damage(disk, topic.record.partitions[1])
        await broker.join("g", "c", ["t"], ordering="key")
        assert await polled_in_spite_of_damage(broker, "t") == [b"healthy"]

    run_inline(work, MemoryFiles(disk))


def test_a_damaged_topic_does_not_starve_the_others_of_its_consumer() -> None:
    disk = MemoryDisk()

    async def work(broker: Broker) -> None:
        for name, value in {"damaged": b"x" * 300, "healthy": b"healthy"}.items():
            await (await broker.create_topic(name, 1)).publish(Message(value, key=b"k"))
        damage(disk, broker.topic("damaged").record.partitions[0])
        await broker.join("g", "c", ["damaged", "healthy"], ordering="key")
        assert await polled_in_spite_of_damage(broker, "damaged", "healthy") == [b"healthy"]

    run_inline(work, MemoryFiles(disk))


async def polled_in_spite_of_damage(broker: Broker, *topics: str) -> list[bytes | None]:
    polled: list[Polled] = []
    for _ in range(4):
        with suppress(LogCorrupt):
            polled += await broker.poll("g", "c", topics)
    return values([one.handed for one in polled])


def damage(disk: MemoryDisk, partition: str) -> None:
    """The last frame of its messages."""
    files = disk.directories["partitions"].directories[partition].directories["messages"].names
    (name,) = [name for name in files if name.endswith(".log")]
    contents = files[name].current
    contents[len(contents.rstrip(b"\0")) - 12] ^= 1


def test_a_schedule_whose_message_can_not_be_published_does_not_stop_the_others() -> None:
    async def work(broker: Broker) -> None:
        for number, (name, cron) in enumerate({"daily": "0 0 * * *", "often": "*/5 * * * *"}.items(), start=1):
            await broker.create_topic(name, 1)
            await broker.schedules.create(name, name, cron, Message(b"x"), timezone="UTC", producer=number)
        await broker.change_topic("daily", settings=TopicSettings(max_delay_us=HOUR))
        for _ in range(24):
            clock_of(broker).advance_us(HOUR)
            await broker.tick()
        assert broker.schedules.get("often").published == 25
        assert broker.schedules.get("daily").published == 1
        assert isinstance(broker.schedules.failures["daily"], InvalidMessage)
        await broker.change_topic("daily", settings=TopicSettings())
        await broker.tick()
        assert broker.schedules.get("daily").published == 2
        assert broker.schedules.failures == {}

    run_inline(work)


def test_a_schedule_whose_first_message_can_not_be_published_is_not_there() -> None:
    async def work(broker: Broker) -> None:
        await broker.create_topic("t", 1, TopicSettings(max_delay_us=HOUR))
        with pytest.raises(InvalidMessage):
            await broker.schedules.create("s", "t", "0 0 1 1 *", Message(b"x"), timezone="UTC", producer=1)
        assert broker.schedules.list() == []

    run_inline(work)
