"""What happened to a message, why a group has not got it, and what a group had not done at some time."""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from broker_support import ack_all, clock_of, group_on, run, values
from penstock.broker.broker import Broker
from penstock.broker.ids import MessageId
from penstock.broker.settings import DAY_US, GroupSettings, make_settings
from penstock.errors import InvalidInput, MessageNotFound, PartitionNotFound, TopicNotFound
from penstock.message import Message
from penstock.testing import MemoryDisk, MemoryFiles

SECOND = 1_000_000
FIRST = MessageId("t", 0, 0)


def test_a_trace_tells_the_whole_story() -> None:
    async def work(broker: Broker) -> None:
        clock, topic = clock_of(broker), await broker.create_topic("t", 1)
        group = await group_on(broker, "g", "t", GroupSettings(backoff_jitter=0))
        await group.start()
        start = clock.now_us()
        await topic.publish(Message(b"x", deliver_at=start + 10 * SECOND))
        clock.advance_us(10 * SECOND)
        (handed,) = await group.lease("anna", 1)
        clock.advance_us(SECOND)
        await group.nack(handed.receipt, reason="busy")
        clock.advance_us(SECOND)
        (handed,) = await group.lease("ben", 1)
        clock.advance_us(60 * SECOND)
        await broker.tick()
        clock.advance_us(60 * SECOND)
        handed_again = await group.lease("cleo", 1)
        await ack_all(group, handed_again)
        trace = await broker.trace(FIRST)
        story = [(step.what, step.consumer, step.attempt, step.reason) for step in trace.steps]
        assert story == [
            ("PUBLISHED", None, None, None),
            ("SCHEDULED", None, None, None),
            ("RELEASED", None, None, None),
            ("DELIVERED", "anna", 1, None),
            ("NACKED", "anna", 1, "busy"),
            ("REDELIVERED", "ben", 2, "busy"),
            ("LEASE_EXPIRED", "ben", 2, None),
            ("REDELIVERED", "cleo", 3, "the lease ran out"),
            ("ACKNOWLEDGED", "cleo", 3, None),
            ("RETAINED", None, None, None),
        ]
        assert trace.steps[1].until_us == start + 10 * SECOND
        assert trace.steps[-1].until_us == start + 7 * DAY_US
        assert trace.latency_us("g") == 132 * SECOND
        assert trace.latency_us("other") is None

    run(work)


def test_a_trace_knows_all_groups_and_survives_snapshots_and_restarts() -> None:
    disk = MemoryDisk()

    async def before(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        for name in ("a", "b"):
            await group_on(broker, name, "t")
        await topic.publish(Message(b"x"))
        await ack_all(broker.group("a", "t"), await broker.group("a", "t").lease("c", 1))
        await topic.partitions[0].groups.snapshot()
        (handed,) = await broker.group("b", "t").lease("c", 1)
        await broker.group("b", "t").reject(handed.receipt, "no")
        await broker.settle()

    async def after(broker: Broker) -> None:
        steps = (await broker.trace(FIRST)).steps
        assert [step.what for step in steps if step.group == "a"][-2:] == ["DELIVERED", "ACKNOWLEDGED"]
        assert [step.what for step in steps if step.group == "b"][-3:] == ["DELIVERED", "EXHAUSTED", "DEAD_LETTERED"]
        assert [step.place for step in steps if step.what == "DEAD_LETTERED"] == ["t.dlq:0:0"]

    run(before, MemoryFiles(disk))
    run(after, MemoryFiles(disk))


def test_why_has_one_plain_answer_for_each_case() -> None:
    async def work(broker: Broker) -> None:
        clock, topic = clock_of(broker), await broker.create_topic("t", 1)
        settings = GroupSettings(ordering="key", max_retries=0, backoff_jitter=0)

        async def why(offset: int, group: str = "g") -> str:
            return (await broker.why(MessageId("t", 0, offset), group)).code

        await topic.publish(Message(b"early"))
        await group_on(broker, "late", "t", GroupSettings(start="latest"))
        await broker.group("late", "t").start()
        assert (await why(0, "late"), await why(0, "nobody"), await why(9)) == (
            "before_start",
            "group_not_started",
            "not_published",
        )
        group = await group_on(broker, "g", "t", settings)
        await ack_all(group, await group.lease("anna", 1))
        assert await why(0) == "acknowledged"
        assert "anna" in (await broker.why(FIRST, "g")).answer
        for word in (b"a1", b"a2", b"b1", b"b2"):
            await topic.publish(Message(word, key=word[:1]))
        await topic.publish(Message(b"d", deliver_at=clock.now_us() + 60 * SECOND))
        handed = await group.lease("anna", 1)
        assert values(handed) == [b"a1"]
        assert (await why(1), await why(5), await why(3)) == ("leased", "delayed", "no_consumer")
        await broker.join("g", "ben", ["t"])
        assert await why(3) == "not_reached"
        handed_b = await broker.poll("g", "ben", ["t"], count=1)
        assert handed_b[0].handed.receipt.offsets == BitMap64([3])
        assert await why(2) == "key_locked"
        await group.reject(handed[0].receipt, "poison")
        await broker.settle()
        assert (await why(1), await why(2)) == ("dead_lettered", "parked")
        await group.release(handed_b[0].handed.receipt)
        assert await why(3) == "ready"

    run(work)


def test_a_waiting_message_says_until_when_and_after_what() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        group = await group_on(broker, "g", "t")
        await topic.publish(Message(b"x"))
        (handed,) = await group.lease("c", 1)
        await group.nack(handed.receipt, reason="database down", delay_us=5 * SECOND)
        answer = await broker.why(FIRST, "g")
        assert (answer.code, "database down" in answer.answer, "22:13:25" in answer.answer) == ("waiting", True, True)

    run(work)


def test_what_a_group_had_not_done_at_some_time() -> None:
    async def work(broker: Broker) -> None:
        clock, topic = clock_of(broker), await broker.create_topic("t", 1)
        group = await group_on(broker, "g", "t")
        times = []
        for step in range(4):
            await topic.publish(Message(b"%d" % step))
            times.append(clock.now_us())
            clock.advance_us(SECOND)
        (handed,) = await group.lease("c", 3)
        times.append(clock.now_us())
        clock.advance_us(SECOND)
        await group.ack(handed.receipt._replace(offsets=BitMap64([0, 2])))
        times.append(clock.now_us())
        clock.advance_us(SECOND)
        await topic.partitions[0].groups.snapshot()
        clock.advance_us(SECOND)
        await group.ack(handed.receipt._replace(offsets=BitMap64([1])))
        times.append(clock.now_us())
        found = []
        for time in times:
            states = await broker.state_at("g", "t", time)
            found.append([list(state.unacknowledged) for state in states])
        assert found == [[], [], [], [], [[0, 1, 2, 3]], [[1, 3]], [[3]]]
        (state,) = await broker.state_at("g", "t", times[5])
        assert (state.floor, state.end_offset, list(state.leased)) == (1, 4, [1])

    run(work)


def test_ids_that_are_none_are_refused() -> None:
    async def work(broker: Broker) -> None:
        await broker.create_topic("t", 1)
        for wrong in ("", "t", "t:0", "t:0:x", "t:-1:0", "t:0:1:2", "t:٣:0", "t:0:" + "9" * 30, None, 5):
            with pytest.raises(InvalidInput):
                MessageId.parse(wrong)
        for identity, error in (
            (MessageId("t", 0, 0), MessageNotFound),
            (MessageId("t", 1, 0), PartitionNotFound),
            (MessageId("u", 0, 0), TopicNotFound),
        ):
            with pytest.raises(error):
                await broker.trace(identity)

    run(work)


def test_what_happened_is_kept_as_long_as_the_messages() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1, make_settings(retention_age_us=DAY_US))
        group = await group_on(broker, "g", "t")
        deliveries = topic.partitions[0].deliveries
        for _ in range(3):
            for _ in range(50):
                await topic.publish(Message(b"x"))
                await ack_all(group, await group.lease("c", 10))
            await topic.partitions[0].groups.snapshot()
            deliveries.roll()
            clock_of(broker).advance_us(DAY_US)
        size = deliveries.size
        await broker.maintain()
        assert topic.partitions[0].messages.start_offset > 0
        assert (deliveries.start_offset > 0, deliveries.size < size) == (True, True)

    run(work)
