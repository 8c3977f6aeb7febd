"""Whoever asks for messages of many topics gets what there is, and is not woken by what concerns others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from broker_support import clock_of, run, values
from penstock.broker.bell import Bell
from penstock.broker.broker import Broker
from penstock.broker.settings import GroupSettings
from penstock.broker.topic import Topic
from penstock.errors import InvalidInput, MemberNotFound, TopicNotFound
from penstock.message import Message, Priority
from penstock.testing import ManualClock

TOPICS = ["a", "b", "c"]
SECOND_US = 1_000_000


async def joined(broker: Broker, group: str = "g") -> None:
    for name in TOPICS:
        await broker.create_topic(name, 2)
    await broker.join(group, "ann", TOPICS)


async def polled(broker: Broker, count: int = 100) -> list[bytes | None]:
    return values([one.handed for one in await broker.poll("g", "ann", TOPICS, count=count)])


def test_a_busy_topic_does_not_keep_the_others_waiting_for_ever() -> None:
    async def work(broker: Broker) -> None:
        await joined(broker)
        for _ in range(10):
            await broker.topic("a").publish(Message(b"busy"))
        await broker.topic("c").publish(Message(b"quiet"))

        found = [value for _ in TOPICS for value in await polled(broker, 1)]
        assert found.count(b"quiet") == 1
        assert found.count(b"busy") == 2

    run(work)


def test_what_comes_back_by_time_alone_is_found_in_any_topic() -> None:
    async def work(broker: Broker) -> None:
        await joined(broker)
        clock = clock_of(broker)
        await broker.topic("a").publish(Message(b"nacked"))
        await broker.topic("b").publish(Message(b"ran out"))
        await broker.topic("c").publish(Message(b"delayed", deliver_at=clock.now_us() + 90 * SECOND_US))
        given = await broker.poll("g", "ann", TOPICS)
        assert values([one.handed for one in given]) == [b"nacked", b"ran out"]
        for one in given:
            if one.topic == "a":
                await broker.group("g", "a").nack(one.handed.receipt, delay_us=60 * SECOND_US)

        assert await polled(broker) == []
        clock.advance("1m")
        assert sorted(filter(None, await polled(broker))) == [b"nacked", b"ran out"]
        clock.advance("30s")
        assert b"delayed" in await polled(broker)
        assert await polled(broker) == []

    run(work)


def test_a_poll_that_is_woken_after_its_time_finds_what_came_within_it() -> None:
    class Late:
        """Much later than it was asked to."""

        clock: ManualClock

        async def wait(self, ring: asyncio.Future[None], until_us: int, due_us: int = 0) -> bool:
            self.clock.advance("1h")
            return True

    late = Late()

    async def work(broker: Broker) -> None:
        late.clock = clock_of(broker)
        await joined(broker)
        await broker.topic("c").publish(Message(b"delayed", deliver_at=late.clock.now_us() + SECOND_US))
        (given,) = await broker.poll("g", "ann", TOPICS, wait_us=2 * SECOND_US)
        assert values([given.handed]) == [b"delayed"]
        await broker.group("g", "c").ack(given.handed.receipt)
        assert await broker.poll("g", "ann", TOPICS, wait_us=2 * SECOND_US) == []

    run(work, timers=late)


def test_a_message_of_another_lane_is_found_in_any_topic() -> None:
    async def work(broker: Broker) -> None:
        await joined(broker)
        for name, priority in zip(TOPICS, (Priority.LOW, Priority.NORMAL, Priority.HIGH), strict=True):
            await broker.topic(name).publish(Message(name.encode(), priority=priority))

        found: list[bytes | None] = []
        for _ in TOPICS:
            found += await polled(broker, 1)
        assert sorted(filter(None, found)) == [b"a", b"b", b"c"]

    run(work)


def test_what_is_wrong_with_a_question_is_told_also_if_no_topic_has_anything() -> None:
    async def work(broker: Broker) -> None:
        await joined(broker)
        assert await polled(broker) == []

        with pytest.raises(InvalidInput, match="count"):
            await broker.poll("g", "ann", TOPICS, count=0)
        with pytest.raises(MemberNotFound):
            await broker.poll("g", "bob", TOPICS)
        with pytest.raises(TopicNotFound):
            await broker.poll("g", "ann", [*TOPICS, "nowhere"])

    run(work)


def test_what_one_group_does_wakes_nobody_of_another() -> None:
    async def work(broker: Broker) -> None:
        await joined(broker)
        await broker.join("other", "bob", TOPICS)
        topic = broker.topic("a")
        await topic.publish(Message(b"1"))
        (given,) = await broker.poll("g", "ann", TOPICS)
        loop = asyncio.get_running_loop()
        mine, theirs = loop.create_future(), loop.create_future()
        topic.bell.wait("g", mine, topic.partitions)
        topic.bell.wait("other", theirs, topic.partitions)

        await broker.group("g", "a").ack(given.handed.receipt)
        assert (mine.done(), theirs.done()) == (True, False)

        await topic.publish(Message(b"2"))
        assert theirs.done()

    run(work)


def test_one_waiter_may_wait_for_several_bells_and_is_forgotten_when_it_leaves() -> None:
    async def work() -> None:
        first, second = Bell(), Bell()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        other: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for bell in (first, second):
            bell.wait("g", waiter, ())
        second.wait("g", other, ())

        first.ring("somebody else")
        assert not waiter.done()
        first.ring("g")
        second.leave("g", waiter)
        second.ring()
        assert waiter.done()
        assert other.done()
        second.leave("g", waiter)

    asyncio.run(work())


def test_what_comes_to_a_partition_wakes_only_those_who_wait_there() -> None:
    async def work(broker: Broker) -> None:
        await broker.create_topic("parts", 2)
        for name in ("ann", "bob"):
            await broker.join("g", name, ["parts"])
        topic = broker.topic("parts")
        loop = asyncio.get_running_loop()
        first, second = loop.create_future(), loop.create_future()
        topic.bell.wait("g", first, [topic.partition(0)])
        topic.bell.wait("g", second, [topic.partition(1)])

        await topic.publish(Message(b"1"), partition=1)
        assert (first.done(), second.done()) == (False, True)

        topic.bell.ring("g")
        assert first.done()

    run(work)


async def waits(topic: Topic) -> None:
    """Until somebody does."""
    while not topic.bell._waiting:
        await asyncio.sleep(0)


async def woken(waiting: asyncio.Task[Any]) -> Any:
    async with asyncio.timeout(30):
        return await waiting


def polling(broker: Broker, name: str, topics: Sequence[str]) -> asyncio.Task[Any]:
    return asyncio.create_task(broker.poll("g", name, topics, wait_us=60 * SECOND_US))


def test_a_poll_that_waits_gets_what_comes_to_a_partition_that_moved_to_it_meanwhile() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("parts", 2)
        for name in ("ann", "bob"):
            await broker.join("g", name, ["parts"])
        waiting = polling(broker, "ann", ["parts"])
        await waits(topic)
        (of_bob,) = broker.consumers.leasable("g", "bob", "parts")
        broker.leave("g", "bob")
        await topic.publish(Message(b"1"), partition=of_bob)
        (given,) = await woken(waiting)
        assert given.handed.receipt.partition == of_bob

    run(work)


@pytest.mark.parametrize("durability", [None, "interval"])
def test_a_poll_that_waits_gets_what_comes_to_a_partition_that_was_added_meanwhile(durability: str | None) -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("parts", 1)
        await broker.create_group("g", GroupSettings(assignment="shared"))
        await broker.join("g", "ann", ["parts"])
        waiting = polling(broker, "ann", ["parts"])
        await waits(topic)
        # What else is changed takes a while, between the new partitions and that members hear of them.
        settings = None if durability is None else topic.settings.changed(durability=durability)
        await broker.change_topic("parts", partitions=2, settings=settings)
        await waits(topic)
        await topic.publish(Message(b"1"), partition=1)
        (given,) = await woken(waiting)
        assert given.handed.receipt.partition == 1

    run(work)


def test_a_poll_that_waits_gets_what_comes_to_a_topic_that_its_member_has_joined_meanwhile() -> None:
    async def work(broker: Broker) -> None:
        for name in ("a", "b"):
            await broker.create_topic(name, 1)
        await broker.create_group("g", GroupSettings(assignment="shared"))
        await broker.join("g", "ann", ["a"])
        waiting = polling(broker, "ann", ["a", "b"])
        await waits(broker.topic("b"))
        await broker.join("g", "ann", ["a", "b"])
        await broker.topic("b").publish(Message(b"1"))
        (given,) = await woken(waiting)
        assert given.topic == "b"

    run(work)


def test_a_member_that_has_nothing_hears_that_its_group_is_gone() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1)
        for name in ("ann", "bob"):
            await broker.join("g", name, ["a"])
        (idle,) = [name for name in ("ann", "bob") if not broker.consumers.leasable("g", name, "a")]
        waiting = polling(broker, idle, ["a"])
        await waits(topic)
        await broker.delete_group("g")
        with pytest.raises(MemberNotFound):
            await woken(waiting)

    run(work)


def test_a_poll_that_waits_gets_what_its_group_may_have_in_flight_from_now_on() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1)
        await broker.create_group("g", GroupSettings(max_in_flight=1))
        await broker.join("g", "ann", ["a"])
        for value in (b"1", b"2"):
            await topic.publish(Message(value))
        assert len(await broker.poll("g", "ann", ["a"])) == 1
        waiting = polling(broker, "ann", ["a"])
        await waits(topic)
        await broker.change_group("g", max_in_flight=2)
        (given,) = await woken(waiting)
        assert values([given.handed]) == [b"2"]

    run(work)


@pytest.mark.parametrize("end", [asyncio.CancelledError, TopicNotFound])
def test_a_poll_that_fails_in_a_later_topic_keeps_no_lease_of_an_earlier_one(
    end: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(broker: Broker) -> None:
        await joined(broker)
        for name in TOPICS:
            await broker.topic(name).publish(Message(name.encode()))

        async def leased(*given: Any, **more: Any) -> None:
            raise end("gone")

        with monkeypatch.context() as patched:
            # The second of those that are asked.
            patched.setattr(broker.group("g", "b"), "leased", leased)
            with pytest.raises(end):
                await polled(broker)
        assert sorted(filter(None, await polled(broker))) == [b"a", b"b", b"c"]

    run(work)
