"""Topics and publishing, through the broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broker_support import run
from penstock.batch import Batch
from penstock.broker.broker import Broker
from penstock.broker.partition import Partition
from penstock.broker.settings import make_settings
from penstock.broker.topic import Topic
from penstock.codec import LZ4
from penstock.errors import (
    AlreadyExists,
    BatchTooLarge,
    DirectoryLocked,
    DiskFull,
    InvalidMessage,
    InvalidName,
    LogClosed,
    LogCorrupt,
    PartitionNotFound,
    SequenceGap,
    TopicNotFound,
)
from penstock.frame import Frame, Producer
from penstock.limits import Limits
from penstock.message import Message
from penstock.partitioner import partition_of
from penstock.storage.files import DiskFiles
from penstock.storage.merge import merge_small_frames
from penstock.testing import Fault, FaultyFiles, ManualClock, MemoryDisk, MemoryFiles, Operation
from support import frame_of, rows_of


def values_in(partition: Partition) -> list[bytes | None]:
    return [row.value for row in rows_of(partition.messages)]


def values_of(topic: Topic) -> list[list[bytes | None]]:
    return [values_in(partition) for partition in topic.partitions]


# --- topics -------------------------------------------------------------------------------------------------


def test_topics_and_their_messages_survive_a_restart(tmp_path: Path) -> None:
    async def first(broker: Broker) -> None:
        topic = await broker.create_topic("orders", 3, make_settings(cleanup="compact"))
        for i in range(20):
            await topic.publish(Message(b"%d" % i, key=b"k%d" % i))

    async def second(broker: Broker) -> None:
        topic = broker.topic("orders")
        assert topic.record.settings.cleanup == "compact"
        expected = [[b"%d" % i for i in range(20) if partition_of(b"k%d" % i, 3) == p] for p in range(3)]
        assert values_of(topic) == expected

    run(first, DiskFiles(tmp_path))
    run(second, DiskFiles(tmp_path))


def test_a_topic_that_is_not_there_is_said_to_be_missing() -> None:
    async def work(broker: Broker) -> None:
        with pytest.raises(TopicNotFound):
            broker.topic("nowhere")
        with pytest.raises(InvalidName):
            broker.topic("../../etc/passwd")
        with pytest.raises(TopicNotFound):
            await broker.delete_topic("nowhere")

    run(work)


def test_a_topic_is_created_once_also_when_two_try_at_the_same_time() -> None:
    async def work(broker: Broker) -> None:
        outcomes = await asyncio.gather(*[broker.create_topic("a") for _ in range(3)], return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [Topic, AlreadyExists, AlreadyExists]

    run(work)


def test_partitions_are_added_while_messages_stay_where_they_are() -> None:
    disk = MemoryDisk()

    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1)
        await topic.publish(Message(b"1", key=b"k"))
        await broker.change_topic("a", partitions=3)
        assert len(topic.partitions) == 3
        await topic.publish(Message(b"2", key=b"k"))
        assert values_in(topic.partitions[0])[0] == b"1"
        assert b"2" in values_in(topic.partitions[partition_of(b"k", 3)])

    async def again(broker: Broker) -> None:
        assert len(broker.topic("a").partitions) == 3

    run(work, MemoryFiles(disk))
    run(again, MemoryFiles(disk))


def test_a_deleted_topic_leaves_nothing_and_its_name_is_free(tmp_path: Path) -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("a", 2)
        await topic.publish(Message(b"old"))
        await broker.delete_topic("a")
        assert list((tmp_path / "partitions").iterdir()) == []
        with pytest.raises(LogClosed):
            await topic.publish(Message(b"late"))
        again = await broker.create_topic("a", 2)
        assert values_of(again) == [[], []]

    run(work, DiskFiles(tmp_path))


def test_a_deletion_that_was_cut_short_is_finished_at_the_next_start() -> None:
    disk = MemoryDisk()
    state = {"broken": False}

    def before(operation: Operation) -> Fault | None:
        is_hit = state["broken"] and operation.kind == "remove directory"
        return Fault(DiskFull("no space left")) if is_hit else None

    async def work(broker: Broker) -> None:
        await broker.create_topic("a", 2)
        await broker.create_topic("b", 1)
        state["broken"] = True
        with pytest.raises(DiskFull):
            await broker.delete_topic("a")
        with pytest.raises(TopicNotFound):
            broker.topic("a")

    async def again(broker: Broker) -> None:
        assert [topic.name for topic in broker.topics] == ["b"]
        assert len(disk.directories["partitions"].directories) == 1

    run(work, FaultyFiles(MemoryFiles(disk), before))
    run(again, MemoryFiles(disk))


def test_a_data_directory_has_one_broker(tmp_path: Path) -> None:
    async def work(broker: Broker) -> None:
        with ThreadPoolExecutor(1) as executor, pytest.raises(DirectoryLocked):
            await Broker.open(DiskFiles(tmp_path), clock=ManualClock(), executor=executor)

    run(work, DiskFiles(tmp_path))


def test_a_broker_that_is_refused_gives_everything_back() -> None:
    disk = MemoryDisk()

    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("a", 3)
        for partition in range(3):
            await topic.publish(Message(b"x"), partition)

    run(work, MemoryFiles(disk))
    third = list(disk.directories["partitions"].directories.values())[2].directories["messages"]
    third.names["00000000000000000000.log"].current[100] ^= 1
    for name in [name for name in third.names if name.endswith("index")]:
        del third.names[name]
    for _ in range(2):
        with pytest.raises(LogCorrupt):
            run(work, MemoryFiles(disk))


# --- publish ------------------------------------------------------------------------------------------------


def test_a_published_message_is_known_by_topic_partition_and_offset() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("orders", 4)
        published = await topic.publish(Message(b"v", key=b"k"))
        number = partition_of(b"k", 4)
        assert published.id == f"orders:{number}:0"
        assert topic.partitions[number].messages.synced_offset == 1

    run(work)


def test_messages_without_a_key_are_spread() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("a", 4)
        for _ in range(40):
            await topic.publish(Message(b"v"))
        assert [len(values) for values in values_of(topic)] == [10, 10, 10, 10]
        for _ in range(4):
            await topic.publish_batch(Batch.from_columns([b"v"] * 5, now_us=1))
        assert [len(values) for values in values_of(topic)] == [15, 15, 15, 15]

    run(work)


def test_a_partition_can_be_chosen() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("a", 4)
        await topic.publish(Message(b"one", key=b"k"), 2)
        await topic.publish_batch(Batch.from_columns([b"two", b"three"], keys=[b"a", b"b"], now_us=1), 2)
        assert values_of(topic) == [[], [], [b"one", b"two", b"three"], []]
        for wrong in (-1, 4, "2", 2.0):
            with pytest.raises(PartitionNotFound):
                await topic.publish(Message(b"x"), wrong)  # type: ignore[arg-type]
            with pytest.raises(PartitionNotFound):
                await topic.publish_batch(Batch.from_columns([b"x"], now_us=1), wrong)  # type: ignore[arg-type]

    run(work)


def test_a_batch_is_split_by_key_and_every_row_knows_where_it_went() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("a", 5)
        keys = [b"k%d" % (i % 17) for i in range(300)]
        for turn in range(2):
            values = [b"%d-%d" % (turn, i) for i in range(300)]
            published = await topic.publish_batch(Batch.from_columns(values, keys=keys, now_us=1), codec=LZ4)
            assert published.partitions.tolist() == [partition_of(key, 5) for key in keys]
            for value, partition, offset in zip(values, published.partitions, published.offsets, strict=True):
                assert values_in(topic.partitions[partition])[offset] == value
        assert sum(len(values) for values in values_of(topic)) == 600

    run(work)


def test_messages_of_a_key_keep_their_order_through_any_mixture_of_calls() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("a", 3)
        calls = []
        for i in range(0, 60, 3):
            calls.append(topic.publish(Message(b"%d" % i, key=b"k")))
            batch = Batch.from_columns([b"%d" % (i + 1), b"%d" % (i + 2)], keys=[b"k", b"k"], now_us=1)
            calls.append(topic.publish_batch(batch))  # type: ignore[arg-type]
        await asyncio.gather(*calls)
        assert values_in(topic.partitions[partition_of(b"k", 3)]) == [b"%d" % i for i in range(60)]

    run(work)


def test_messages_published_at_the_same_time_are_written_together() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1)
        await asyncio.gather(*[topic.publish(Message(b"%d" % i)) for i in range(500)])
        log = topic.partitions[0].messages
        assert values_of(topic) == [[b"%d" % i for i in range(500)]]
        assert len(log.read(0, bytes_max=1 << 20)) < 100

    run(work)


def test_what_can_not_be_stored_is_refused_and_nothing_else_suffers() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1)
        with pytest.raises(InvalidMessage):
            await topic.publish(Message(b"x", timestamp=-1))
        with pytest.raises(BatchTooLarge):
            await topic.publish(Message(b"x" * 101))
        with pytest.raises(BatchTooLarge):
            await topic.publish_batch(Batch.from_columns([b"x" * 200, b"ok"], now_us=1))
        with pytest.raises(BatchTooLarge):
            await topic.publish_batch(Batch.from_columns([b"x"] * 11, now_us=1))
        await topic.publish(Message(b"good"))
        assert values_of(topic) == [[b"good"]]

    run(work, limits=Limits(message_bytes_max=100, batch_messages_max=10))


def test_a_full_disk_in_one_partition_is_told_and_the_others_are_written() -> None:
    state: dict[str, str | None] = {"full": None}

    def before(operation: Operation) -> Fault | None:
        is_hit = state["full"] is not None and operation.kind == "write" and operation.name.endswith(".log")
        return Fault(DiskFull("no space left")) if is_hit else None

    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("a", 2)
        keys = [b"a", b"b", b"c", b"d"]
        assert len({partition_of(key, 2) for key in keys}) == 2
        state["full"] = "yes"
        with pytest.raises(DiskFull):
            await topic.publish_batch(Batch.from_columns(keys, keys=keys, now_us=1))
        state["full"] = None
        published = await topic.publish_batch(Batch.from_columns(keys, keys=keys, now_us=1))
        for key, partition, offset in zip(keys, published.partitions, published.offsets, strict=True):
            assert values_in(topic.partitions[partition])[offset] == key

    run(work, FaultyFiles(MemoryFiles(), before))


# --- idempotent producers -----------------------------------------------------------------------------------


def numbered(sequence: int, *values: bytes, epoch: int = 0) -> Frame:
    return Frame.of(Batch.from_columns(list(values), now_us=1), producer=Producer(7, epoch, sequence))


def test_a_frame_that_is_sent_again_is_not_stored_again() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1)
        first = await topic.publish_frame(numbered(0, b"a", b"b"), 0)
        second = await topic.publish_frame(numbered(2, b"c"), 0)
        assert await topic.publish_frame(numbered(0, b"a", b"b"), 0) == first
        assert await topic.publish_frame(numbered(2, b"c"), 0) == second
        assert values_of(topic) == [[b"a", b"b", b"c"]]

    run(work)


def test_a_frame_sent_again_while_it_is_being_written_is_not_stored_twice() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1)
        outcomes = await asyncio.gather(*[topic.publish_frame(numbered(0, b"a"), 0) for _ in range(5)])
        assert {outcome.offset for outcome in outcomes} == {0}
        assert values_of(topic) == [[b"a"]]

    run(work)


@pytest.mark.parametrize("ending", ["closed", "killed", "merged"])
def test_producers_are_known_again_after_a_restart(ending: str) -> None:
    disk = MemoryDisk()

    async def first(broker: Broker) -> None:
        nonlocal disk
        topic = await broker.create_topic("a", 1)
        for n in range(8):
            await topic.publish_frame(numbered(n, b"%d" % n), 0)
        if ending == "merged":
            log = topic.partitions[0].messages
            log.roll()
            assert merge_small_frames(log, log.segments[0])
        if ending == "killed":
            killed.append(disk.after_kill())

    async def second(broker: Broker) -> None:
        topic = broker.topic("a")
        if ending != "merged":
            assert (await topic.publish_frame(numbered(7, b"7"), 0)).offset == 7
        with pytest.raises(SequenceGap):
            await topic.publish_frame(numbered(9, b"9"), 0)
        assert (await topic.publish_frame(numbered(8, b"8"), 0)).offset == 8
        assert values_of(topic) == [[b"%d" % n for n in range(9)]]

    killed: list[MemoryDisk] = []
    run(first, MemoryFiles(disk))
    run(second, MemoryFiles(killed[0] if killed else disk))


def test_a_frame_that_could_not_be_written_can_be_sent_again() -> None:
    state = {"full": False}

    def before(operation: Operation) -> Fault | None:
        is_hit = state["full"] and operation.kind == "write" and operation.name.endswith(".log")
        return Fault(DiskFull("no space left")) if is_hit else None

    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1)
        state["full"] = True
        outcomes = await asyncio.gather(
            *[topic.publish_frame(numbered(n, b"%d" % n), 0) for n in range(3)], return_exceptions=True
        )
        assert {type(outcome) for outcome in outcomes} == {DiskFull}
        state["full"] = False
        for n in range(3):
            assert (await topic.publish_frame(numbered(n, b"%d" % n), 0)).offset == n

    run(work, FaultyFiles(MemoryFiles(), before))


def test_frames_without_a_producer_are_stored_as_often_as_they_come() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1)
        for _ in range(2):
            await topic.publish_frame(frame_of(b"a"), 0)
        assert values_of(topic) == [[b"a", b"a"]]

    run(work)


def test_messages_without_a_key_that_come_together_are_spread_too() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 6)
        published = await asyncio.gather(*[topic.publish(Message(b"x")) for _ in range(1_200)])
        counts = Counter(one.partition for one in published)
        assert len(counts) == 6
        assert max(counts.values()) <= 400

    run(work)
