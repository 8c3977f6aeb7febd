"""Priority lanes, and messages that expire."""

from __future__ import annotations

import pytest

from broker_support import ack_all, clock_of, group_on, run, values
from penstock.batch import Batch
from penstock.broker.broker import Broker
from penstock.broker.ids import MessageId
from penstock.broker.lanes import AGEING_US, Turns, Waiting, weights_of
from penstock.broker.settings import GroupSettings
from penstock.errors import InvalidMessage, InvalidSetting
from penstock.message import Message, Priority
from penstock.testing import MemoryDisk, MemoryFiles

LANES = {"h": Priority.HIGH, "n": Priority.NORMAL, "l": Priority.LOW}


async def published(broker: Broker, words: str, **fields: bytes) -> None:
    """`words` like "n1 h1": the letter is the lane."""
    for word in words.split():
        await broker.topic("t").publish(Message(word.encode(), priority=LANES[word[0]], **fields))


def test_high_messages_come_first_and_low_ones_last() -> None:
    async def work(broker: Broker) -> None:
        await broker.create_topic("t", 1)
        group = await group_on(broker, "g", "t")
        await published(broker, "l1 n1 h1 n2 l2 h2")
        assert values(await group.lease("c", 3)) == [b"h1", b"h2", b"n1"]
        await published(broker, "h3")
        assert values(await group.lease("c", 2)) == [b"h3", b"n2"]
        assert values(await group.lease("c", 9)) == [b"l1", b"l2"]
        state = broker.topic("t").partitions[0].groups.state("g")
        lanes = broker.topic("t").partitions[0].groups.lanes
        state.check((lanes.high, lanes.low))

    run(work)


def test_a_high_message_in_another_partition_comes_first_too() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 3)
        group = await group_on(broker, "g", "t")
        for partition in range(3):
            await topic.publish(Message(b"n"), partition)
        await topic.publish(Message(b"h", priority=1), 2)
        assert values(await group.lease("c", 1)) == [b"h"]

    run(work)


def test_a_redelivered_message_keeps_its_lane() -> None:
    async def work(broker: Broker) -> None:
        await broker.create_topic("t", 1)
        group = await group_on(broker, "g", "t")
        await published(broker, "n1 l1 h1")
        handed = await group.lease("c", 9)
        for receipt, _ in handed:
            await group.nack(receipt, delay_us=0)
        await published(broker, "n2")
        assert values(await group.lease("c", 9)) == [b"h1", b"n1", b"n2", b"l1"]

    run(work)


def test_a_group_may_ignore_the_lanes() -> None:
    async def work(broker: Broker) -> None:
        await broker.create_topic("t", 1)
        group = await group_on(broker, "g", "t", GroupSettings(lanes="none"))
        await published(broker, "l1 n1 h1 n2")
        assert values(await group.lease("c", 9)) == [b"l1", b"n1", b"h1", b"n2"]
        with pytest.raises(InvalidSetting):
            await broker.change_group("g", lanes="strict")

    run(work)


@pytest.mark.parametrize("clean", [True, False])
def test_lanes_are_known_after_a_restart(clean: bool) -> None:
    disk = MemoryDisk()
    crashed: list[MemoryDisk] = []

    async def before(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        group = await group_on(broker, "g", "t")
        await topic.publish_batch(Batch.from_columns([b"n%d" % i for i in range(50)], now_us=1))
        await published(broker, "h1 l1 h2")
        await ack_all(group, await group.lease("c", 1))
        crashed.append(disk.after_kill())

    async def after(broker: Broker) -> None:
        group = broker.group("g", "t")
        got = values(await group.lease("c", 100))
        assert (got[0], got[1], got[-1], len(got)) == (b"h2", b"n0", b"l1", 52)

    run(before, MemoryFiles(disk))
    run(after, MemoryFiles(disk if clean else crashed[0]))


def test_weighted_lanes_share_a_lease_and_nothing_starves() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        group = await group_on(broker, "g", "t", GroupSettings(lanes="weighted"))
        lanes = [1] * 400 + [0] * 400 + [-1] * 400
        await topic.publish_batch(
            Batch.from_columns([b"lnh"[i + 1 : i + 2] for i in lanes], priorities=lanes, now_us=1)
        )
        got = values(await group.lease("c", 100))
        assert [got.count(lane) for lane in (b"h", b"n", b"l")] == [60, 30, 10]
        one_by_one = [value for _ in range(100) for value in values(await group.lease("c", 1))]
        assert [one_by_one.count(lane) for lane in (b"h", b"n", b"l")] == [60, 30, 10]
        while more := values(await group.lease("c", 500)):
            got += more
        assert len(got) + len(one_by_one) == 1200

    run(work)


def test_large_messages_of_one_lane_do_not_use_up_the_bytes_of_the_others() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        group = await group_on(broker, "g", "t", GroupSettings(lanes="weighted"))
        for i in range(120):
            await topic.publish(Message((b"h" if i % 2 else b"l") + b"x" * 50_000, priority=1 if i % 2 else -1))
        got = [value[:1] for _ in range(3) for value in values(await group.lease("c", 30)) if value]
        assert len(got) > 45
        assert 4 <= got.count(b"h") / got.count(b"l") <= 8

    run(work)


def test_a_lane_that_has_waited_long_gets_more_than_its_share() -> None:
    now = 100 * AGEING_US
    turns = Turns()
    fresh = [Waiting(lane, 1000, now) for lane in Priority]
    assert turns.share(fresh, 100, weights_of(fresh, now)) == {
        Priority.HIGH: 60,
        Priority.NORMAL: 30,
        Priority.LOW: 10,
    }
    old = [Waiting(Priority.HIGH, 1000, now), Waiting(Priority.LOW, 1000, now - 11 * AGEING_US)]
    shares = turns.share(old, 90, weights_of(old, now))
    assert shares[Priority.LOW] == 2 * shares[Priority.HIGH] == 60


def test_an_unknown_lane_is_refused() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        for priority in (2, -2, 1.5, True, "high"):
            with pytest.raises(InvalidMessage):
                await topic.publish(Message(b"x", priority=priority))  # type: ignore[arg-type]
        assert topic.partitions[0].messages.end_offset == 0

    run(work)


def test_an_expired_message_is_passed_over_and_traced() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        group = await group_on(broker, "g", "t")
        clock = clock_of(broker)
        await topic.publish(Message(b"short", expires_at=clock.now_us() + 1_000))
        await topic.publish(Message(b"long", expires_at=clock.now_us() + 1_000_000_000))
        await topic.publish(Message(b"ever"))
        clock.advance_us(1_000)
        assert values(await group.lease("c", 10)) == [b"long", b"ever"]
        trace = await broker.trace(MessageId("t", 0, 0))
        assert [step.what for step in trace.steps if step.group == "g"][-1] == "EXPIRED"
        assert (await broker.why(MessageId("t", 0, 0), "g")).code == "expired"
        assert group.lag() == [2]

    run(work)


def test_a_message_that_expires_while_it_waits_for_its_next_try_does_not_come_again() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        group = await group_on(broker, "g", "t")
        await topic.publish(Message(b"short", expires_at=clock_of(broker).now_us() + 1_000))
        (handed,) = await group.lease("c", 10)
        await group.nack(handed.receipt)
        clock_of(broker).advance_us(10_000_000)
        assert (await group.lease("c", 10), group.lag()) == ([], [0])

    run(work)
