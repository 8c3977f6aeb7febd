"""What a broker keeps is bounded by what is in its logs, however long it runs."""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from broker_support import ack_all, clock_of, group_on, run
from penstock.broker import scheduled
from penstock.broker.broker import Broker
from penstock.broker.group import Group
from penstock.broker.ids import MessageId
from penstock.broker.settings import DAY_US, TopicSettings
from penstock.broker.topic import Topic
from penstock.message import Message, Priority
from penstock.storage.log import LogSettings

SMALL = LogSettings(segment_bytes_max=8192)


async def days_pass(broker: Broker, topic: Topic, group: Group, days: int) -> None:
    for _ in range(days):
        for _ in range(20):
            await topic.publish(Message(b"x" * 500, b"changes"))
            await ack_all(group, await group.lease("c", 10))
        clock_of(broker).advance_us(DAY_US)
        await broker.maintain()


async def assert_deliveries_stay(broker: Broker, topic: Topic, group: Group) -> None:
    """The deliveries log does not grow, though the first message stays."""
    await days_pass(broker, topic, group, 10)
    deliveries = topic.partition(0).deliveries
    size = deliveries.size
    await days_pass(broker, topic, group, 10)
    assert deliveries.size < 1.3 * size
    assert topic.partition(0).messages.start_offset == 0


@pytest.mark.parametrize("age_us", [7 * DAY_US, None])
def test_the_deliveries_log_of_a_compacted_topic_does_not_grow_for_ever(age_us: int | None) -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1, TopicSettings(cleanup="compact", retention_age_us=age_us))
        group = await group_on(broker, "g", "t")
        await topic.publish(Message(b"stays", b"never changes"))
        await assert_deliveries_stay(broker, topic, group)

    run(work, log_settings=SMALL)


def test_a_message_that_waits_for_its_time_does_not_keep_the_deliveries_of_others() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1, TopicSettings(retention_age_us=None, retention_bytes=20_000))
        group = await group_on(broker, "g", "t")
        await topic.publish(Message(b"next year", deliver_at=clock_of(broker).now_us() + 365 * DAY_US))
        await assert_deliveries_stay(broker, topic, group)

    run(work, log_settings=SMALL)


def test_nothing_is_remembered_of_messages_that_compaction_has_removed() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1, TopicSettings(cleanup="compact"))
        group, clock = await group_on(broker, "g", "t"), clock_of(broker)
        partition = topic.partition(0)
        await topic.publish(Message(b"stays", b"never changes"))
        for number in range(10):
            await topic.publish(Message(b"%d" % number, b"changes", priority=Priority.HIGH))
            later = await topic.publish(Message(b"later", b"changes", deliver_at=clock.now_us() + DAY_US))
            await scheduled.cancel(topic, MessageId("t", 0, later.offset))
            for handed in await group.lease("c", 10):
                await group.reject(handed.receipt, "bad")
            await broker.settle()
        assert len(partition.groups.state("g").dead) == 11
        await topic.publish(Message(b"last", b"changes"))
        await ack_all(group, await group.lease("c", 10))
        partition.messages.roll()
        await broker.maintain()
        state = partition.groups.state("g")
        assert (state.dead, partition.groups.lanes.high, partition.groups.delays.cancelled) == (
            {0: 1},
            BitMap64(),
            BitMap64(),
        )

    run(work)
