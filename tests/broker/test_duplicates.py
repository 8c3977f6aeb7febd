"""A batch counts as sent again only if its messages are those that are stored: what is acknowledged is in the log."""

from __future__ import annotations

import asyncio

import pytest

from broker_support import run
from penstock.batch import Batch
from penstock.broker.broker import Broker
from penstock.broker.topic import Published, Topic
from penstock.codec import LZ4, NONE
from penstock.errors import SequenceTooOld
from penstock.frame import Frame, Producer
from penstock.message import Message
from penstock.storage.compaction import compact
from penstock.storage.merge import merge_small_frames
from penstock.testing import MemoryFiles


def sent(sequence: int, *values: bytes, codec: int = NONE) -> Frame:
    messages = [Message(value, key=b"k", headers=(("h", b"v"),), timestamp=1) for value in values]
    return Frame.of(Batch.from_messages(messages, 1), producer=Producer(7, 0, sequence), codec=codec)


SINGLE = (sent(0, b"a"), sent(1, b"b"), sent(2, b"c"), sent(1, b"b", codec=LZ4))
TOGETHER = (sent(0, b"a", b"b", b"c"), sent(1, b"b", b"c"), sent(0, b"a", b"b", codec=LZ4))


async def check_duplicates(topic: Topic, *frames: Frame) -> None:
    """a, b and c are stored under the sequence numbers 0 to 2, at these offsets."""
    for again in frames:
        assert (await topic.publish_frame(again, 0)).offset == again.producer.sequence
    for other in (sent(0, b"LOST"), sent(1, b"X", b"Y"), sent(0, b"a", b"b", b"C"), sent(2, b"c", b"d")):
        with pytest.raises(SequenceTooOld, match="Nothing was stored"):
            await topic.publish_frame(other, 0)
    assert topic.partition(0).messages.end_offset == 3


def test_a_part_of_a_batch_is_a_duplicate_only_if_its_messages_are_the_stored_ones() -> None:
    files = MemoryFiles()

    async def store(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        await topic.publish_frame(sent(0, b"a", b"b", b"c"), 0)
        await check_duplicates(topic, *SINGLE, *TOGETHER)

    async def restarted(broker: Broker) -> None:
        await check_duplicates(broker.topic("t"), *SINGLE, *TOGETHER)

    run(store, files)
    run(restarted, files)


def test_batches_that_the_log_has_merged_are_found_again_and_others_under_their_numbers_are_not() -> None:
    files = MemoryFiles()

    async def store(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        for sequence, value in enumerate((b"a", b"b", b"c")):
            await topic.publish_frame(sent(sequence, value), 0)
        log = topic.partition(0).messages
        log.roll()
        assert merge_small_frames(log, log.segments[0])
        assert next(log.heads(offset=0)).count == 3
        await check_duplicates(topic, *SINGLE)

    async def restarted(broker: Broker) -> None:
        await check_duplicates(broker.topic("t"), *SINGLE, *TOGETHER)

    run(store, files)
    run(restarted, files)


def test_a_batch_of_which_compaction_has_removed_a_message_is_not_taken_for_stored_without_proof() -> None:
    files = MemoryFiles()

    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        await topic.publish_frame(sent(0, b"a", b"b"), 0)
        partition = topic.partition(0)
        partition.messages.roll()
        compact(partition.messages, now_us=1, tombstone_age_us=0)

    async def restarted(broker: Broker) -> None:
        topic = broker.topic("t")
        with pytest.raises(SequenceTooOld):
            await topic.publish_frame(sent(0, b"other", b"b"), 0)
        assert (await topic.publish_frame(sent(1, b"b"), 0)).offset == 1

    run(work, files)
    run(restarted, files)


def test_a_part_that_is_sent_again_while_the_batch_is_on_its_way_waits_for_it() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        batches = (sent(0, b"a", b"b"), sent(1, b"b"), sent(1, b"X"))
        outcomes = await asyncio.gather(*[topic.publish_frame(each, 0) for each in batches], return_exceptions=True)
        assert [each.offset for each in outcomes if isinstance(each, Published)] == [0, 1]
        assert isinstance(outcomes[2], SequenceTooOld)

    run(work)
