"""Delayed messages: when they come, to whom, and what can be done about them meanwhile."""

from __future__ import annotations

import pytest

from broker_support import ack_all, clock_of, group_on, run, values
from penstock.batch import Batch
from penstock.broker import scheduled
from penstock.broker.broker import Broker
from penstock.broker.group import Group
from penstock.broker.ids import MessageId
from penstock.broker.settings import DAY_US, GroupSettings, make_settings
from penstock.errors import InvalidInput, InvalidMessage, NotScheduled
from penstock.frame import Frame
from penstock.message import Message
from penstock.storage.log import LogSettings
from penstock.testing import MemoryDisk, MemoryFiles

SECOND = 1_000_000


async def delayed(broker: Broker, value: bytes, seconds: float, **fields: int) -> MessageId:
    at = clock_of(broker).now_us() + int(seconds * SECOND)
    published = await broker.topic("t").publish(Message(value, deliver_at=at, **fields))
    return MessageId.parse(published.id)


async def started(broker: Broker, name: str = "g", settings: GroupSettings | None = None) -> Group:
    if not any(topic.name == "t" for topic in broker.topics):
        await broker.create_topic("t", 1)
    group = await group_on(broker, name, "t", settings)
    await group.start()
    return group


def test_a_delayed_message_comes_when_it_is_due_and_not_before() -> None:
    async def work(broker: Broker) -> None:
        group = await started(broker)
        await delayed(broker, b"late", 30)
        await broker.topic("t").publish(Message(b"now"))
        first = await group.lease("c", 10)
        assert values(first) == [b"now"]
        await ack_all(group, first)
        clock_of(broker).advance_us(30 * SECOND - 1)
        assert await group.lease("c", 10) == []
        clock_of(broker).advance_us(1)
        handed = await group.lease("c", 10)
        assert values(handed) == [b"late"]
        assert group.attempt(handed[0].receipt, 0) == 1

    run(work)


def test_it_comes_to_every_group_wherever_that_is() -> None:
    async def work(broker: Broker) -> None:
        ahead = await started(broker, "ahead")
        behind = await started(broker, "behind")
        await delayed(broker, b"late", 10)
        await broker.topic("t").publish(Message(b"now"))
        await ack_all(ahead, await ahead.lease("c", 10))
        latest = await started(broker, "latest", GroupSettings(start="latest"))
        clock_of(broker).advance_us(10 * SECOND)
        assert values(await ahead.lease("c", 10)) == [b"late"]
        assert values(await behind.lease("c", 10)) == [b"late", b"now"]
        assert values(await latest.lease("c", 10)) == [b"late"]
        fresh = await started(broker, "fresh", GroupSettings(start="latest"))
        assert await fresh.lease("c", 10) == []

    run(work)


def test_a_batch_of_delayed_messages_comes_in_the_order_of_its_times() -> None:
    async def work(broker: Broker) -> None:
        group = await started(broker)
        now = clock_of(broker).now_us()
        dues = [now + i * SECOND for i in (3, 1, 2, 0, 5)]
        await broker.topic("t").publish_batch(
            Batch.from_columns([b"%d" % i for i in range(5)], deliver_at=dues, now_us=now)
        )
        got = [values(await group.lease("c", 10))]
        for _ in range(5):
            clock_of(broker).advance_us(SECOND)
            got.append(values(await group.lease("c", 10)))
        assert got == [[b"3"], [b"1"], [b"2"], [b"0"], [], [b"4"]]

    run(work)


def test_what_is_cancelled_never_appears_whether_the_group_has_passed_it_or_not() -> None:
    async def work(broker: Broker) -> None:
        passed = await started(broker, "passed")
        identity = await delayed(broker, b"never", 10)
        await broker.topic("t").publish(Message(b"now"))
        assert values(await passed.lease("c", 10)) == [b"now"]
        await scheduled.cancel(broker.topic("t"), identity)
        other = await started(broker, "other")
        clock_of(broker).advance_us(20 * SECOND)
        assert await passed.lease("c", 10) == []
        assert values(await other.lease("c", 10)) == [b"now"]
        assert (await broker.why(identity, "other")).code == "cancelled"
        with pytest.raises(NotScheduled):
            await scheduled.cancel(broker.topic("t"), identity)

    run(work)


def test_a_listing_of_delayed_messages_is_of_one_moment_whatever_happens_meanwhile() -> None:
    """A thread reads it while the event loop goes on."""

    async def work(broker: Broker) -> None:
        await started(broker)
        topic = broker.topic("t")
        first, second = [await delayed(broker, word, 10) for word in (b"first", b"second")]
        listing = scheduled.scheduled(topic)
        assert next(listing).id == first
        await scheduled.cancel(topic, first)
        await scheduled.cancel(topic, second)
        assert [one.id for one in listing] == [second]
        assert list(scheduled.scheduled(topic)) == []

    run(work)


def test_what_is_moved_comes_at_its_new_time_only() -> None:
    async def work(broker: Broker) -> None:
        group, topic, clock = await started(broker), broker.topic("t"), clock_of(broker)
        later, sooner, at_once = [await delayed(broker, word, 10) for word in (b"later", b"sooner", b"at once")]
        await scheduled.reschedule(topic, later, clock.now_us() + 20 * SECOND, clock)
        await scheduled.reschedule(topic, sooner, clock.now_us() + 5 * SECOND, clock)
        await scheduled.reschedule(topic, at_once, clock.now_us(), clock)
        assert scheduled.get(topic, later).deliver_at == clock.now_us() + 20 * SECOND
        assert [str(one.id) for one in scheduled.scheduled(topic)] == [str(later), str(sooner)]
        got = [values(await group.lease("c", 10))]
        for _ in range(4):
            clock.advance_us(5 * SECOND)
            got.append(values(await group.lease("c", 10)))
        assert got == [[b"at once"], [b"sooner"], [], [], [b"later"]]
        assert scheduled.count(topic) == 0

    run(work)


@pytest.mark.parametrize("clean", [True, False])
def test_delays_survive_a_restart(clean: bool) -> None:
    disk = MemoryDisk()
    crashed: list[MemoryDisk] = []

    async def before(broker: Broker) -> None:
        group, topic, clock = await started(broker), broker.topic("t"), clock_of(broker)
        await delayed(broker, b"plain", 10)
        moved, cancelled = await delayed(broker, b"moved", 10), await delayed(broker, b"cancelled", 10)
        await topic.publish(Message(b"now"))
        await scheduled.reschedule(topic, moved, clock.now_us() + 30 * SECOND, clock)
        await scheduled.cancel(topic, cancelled)
        await ack_all(group, await group.lease("c", 10))
        crashed.append(disk.after_kill())

    async def after(broker: Broker) -> None:
        group, clock = broker.group("g", "t"), clock_of(broker)
        assert await group.lease("c", 10) == []
        clock.advance_us(10 * SECOND)
        assert values(await group.lease("c", 10)) == [b"plain"]
        clock.advance_us(20 * SECOND)
        await broker.tick()
        got = values(await group.lease("c", 10))
        assert (got, group.lag()) == ([b"moved"], [2])

    run(before, MemoryFiles(disk))
    run(after, MemoryFiles(disk if clean else crashed[0]))


def test_retention_takes_everything_but_what_is_pending() -> None:
    async def work(broker: Broker) -> None:
        await broker.create_topic("t", 1, make_settings(retention_age_us=DAY_US))
        group = await started(broker)
        await delayed(broker, b"next month", 30 * 86_400)
        for _ in range(200):
            await broker.topic("t").publish(Message(b"x" * 100))
        clock_of(broker).advance_us(3 * DAY_US)
        await broker.maintain()
        log = broker.topic("t").partitions[0].messages
        assert [row for frame in log.frames(log.start_offset) for row in frame.batch().values()] == [b"next month"]
        assert await group.lease("c", 10) == []
        clock_of(broker).advance_us(27 * DAY_US)
        assert values(await group.lease("c", 10)) == [b"next month"]
        assert group.lag() == [1]

    run(work, log_settings=LogSettings(segment_bytes_max=8192))


def test_retention_leaves_time_for_what_was_delayed_for_longer() -> None:
    """It is kept after its time for as long as it was delayed, `retention` at most, also if it was moved."""

    async def work(broker: Broker) -> None:
        await broker.create_topic("t", 1, make_settings(retention_age_us=DAY_US))
        group, topic, clock = await started(broker), broker.topic("t"), clock_of(broker)
        await delayed(broker, b"next month", 30 * 86_400)
        later, now = await delayed(broker, b"later", 5 * 86_400), await delayed(broker, b"now", 60 * 86_400)
        await scheduled.reschedule(topic, later, clock.now_us() + 30 * DAY_US, clock)
        cancelled = await delayed(broker, b"cancelled", 30 * 86_400)
        await scheduled.cancel(topic, cancelled)
        for _ in range(200):
            await topic.publish(Message(b"x" * 100))
        clock.advance_us(30 * DAY_US + SECOND)
        await scheduled.reschedule(topic, now, clock.now_us(), clock)
        await broker.tick()
        await broker.maintain()
        leased = await group.lease("c", 10)
        assert sorted(values(leased)) == [b"later", b"next month", b"now"]
        for handed in leased:
            await group.nack(handed.receipt, delay_us=SECOND)
        clock.advance_us(DAY_US - 2 * SECOND)
        await broker.maintain()
        assert sorted(values(await group.lease("c", 10))) == [b"later", b"next month", b"now"]
        clock.advance_us(3 * SECOND)
        await broker.maintain()
        assert topic.partitions[0].messages.start_offset == topic.partitions[0].messages.end_offset

    run(work, log_settings=LogSettings(segment_bytes_max=8192))


def test_a_clock_that_is_set_back_makes_nothing_early_nor_late() -> None:
    async def work(broker: Broker) -> None:
        group, clock = await started(broker), clock_of(broker)
        await delayed(broker, b"first", 10)
        clock.advance_us(-3600 * SECOND)
        await delayed(broker, b"second", 60)
        assert await group.lease("c", 10) == []
        clock.advance_us(60 * SECOND)
        second = await group.lease("c", 10)
        assert values(second) == [b"second"]
        await ack_all(group, second)
        clock.advance_us(3550 * SECOND)
        assert values(await group.lease("c", 10)) == [b"first"]

    run(work)


def test_times_out_of_range_are_refused_and_nothing_is_stored() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1, make_settings(max_delay_us=DAY_US))
        now = clock_of(broker).now_us()
        for wrong in (now + DAY_US + SECOND, -1, 1 << 62, 1.5, True):
            with pytest.raises(InvalidMessage):
                await topic.publish(Message(b"x", deliver_at=wrong))  # type: ignore[arg-type]
        with pytest.raises(InvalidMessage):
            far_ones = Batch.from_columns([b"a", b"b"], deliver_at=[0, now + DAY_US + SECOND], now_us=now)
            await topic.publish_batch(far_ones)
        with pytest.raises(InvalidMessage):
            far = Message(b"x", deliver_at=now + 2 * DAY_US)
            await topic.publish_frame(Frame.of_message(far, now_us=now), 0)
        assert topic.partitions[0].messages.end_offset == 0
        identity = await delayed(broker, b"fine", 60)
        for time in (now + 2 * DAY_US, -1, 1.5, True):
            with pytest.raises(InvalidInput):
                await scheduled.reschedule(topic, identity, time, clock_of(broker))  # type: ignore[arg-type]

    run(work)


def test_a_time_that_has_passed_means_at_once_however_it_is_published() -> None:
    async def work(broker: Broker) -> None:
        group, topic = await started(broker), broker.topic("t")
        now = clock_of(broker).now_us()
        past = now - 3600 * SECOND
        await topic.publish(Message(b"message", deliver_at=past))
        await topic.publish_batch(Batch.from_columns([b"a", b"b"], deliver_at=[0, past], now_us=now))
        await topic.publish_frame(Frame.of_message(Message(b"frame", deliver_at=past), now_us=now), 0)
        assert values(await group.lease("c", 10)) == [b"message", b"a", b"b", b"frame"]

    run(work)


def test_a_delayed_high_message_keeps_its_lane() -> None:
    async def work(broker: Broker) -> None:
        group = await started(broker)
        await delayed(broker, b"high", 10, priority=1)
        await delayed(broker, b"low", 10, priority=-1)
        for value in (b"1", b"2"):
            await broker.topic("t").publish(Message(value))
        assert values(await group.lease("c", 1)) == [b"1"]
        clock_of(broker).advance_us(10 * SECOND)
        assert values(await group.lease("c", 10)) == [b"high", b"2", b"low"]

    run(work)


def test_very_many_delayed_messages_that_are_due_at_once_come_in_steps() -> None:
    count = 50_000

    async def work(broker: Broker) -> None:
        group = await started(broker)
        due_us = clock_of(broker).now_us() + SECOND
        for _ in range(count // 10_000):
            batch = Batch.from_messages([Message(b"", deliver_at=due_us)] * 10_000, 1)
            await broker.topic("t").publish_frame(Frame.of(batch), 0)
        clock_of(broker).advance_us(SECOND)
        delays, left = broker.topic("t").partitions[0].groups.delays, [count]
        for _ in broker.topic("t").partitions[0].groups.ticks():
            if len(delays.pending) != left[-1]:
                left.append(len(delays.pending))
        assert left == [50_000, 30_000, 10_000, 0]
        assert sum(len(handed.receipt.offsets) for handed in await group.lease("c", 100)) == 100

    run(work)
