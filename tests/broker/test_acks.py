"""A partition that others copy: `acks`, what is sent again, and what is refused while too few copies are in sync."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.acks import LEADER, NONE
from penstock.batch import Batch
from penstock.broker.bell import Bell
from penstock.broker.catalog import TopicRecord
from penstock.broker.disk import Disk
from penstock.broker.frame_cache import FrameCache
from penstock.broker.partition import MESSAGES, Partition, open_logs
from penstock.broker.room import Room
from penstock.broker.settings import TopicSettings
from penstock.broker.topic import Topic
from penstock.environment import random_id
from penstock.errors import InvalidInput, LeadershipLost, NotEnoughReplicas
from penstock.frame import Frame, Producer
from penstock.limits import DEFAULT_LIMITS
from penstock.message import Message
from penstock.storage.cache import SegmentCache
from penstock.testing import ManualClock, MemoryFiles


def numbered(sequence: int, *values: bytes) -> Frame:
    return Frame.of(Batch.from_columns(list(values), now_us=1), producer=Producer(7, 0, sequence))


class Led:
    """A topic of one partition. `commit` says that all copies have what the leader has."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        files, clock, loop, bell = MemoryFiles(), ManualClock(), asyncio.get_running_loop(), Bell()
        cache = SegmentCache()
        messages, deliveries = open_logs(files, clock=clock, cache=cache, new_id=random_id)
        for log in (messages, deliveries):
            log.hold_back(0, anew=True)
        self.partition = Partition(
            messages,
            deliveries,
            clock=clock,
            disk=Disk(executor),
            loop=loop,
            new_id=random_id,
            limits=DEFAULT_LIMITS,
            bell=bell,
            frames=FrameCache(),
            failed=lambda error: None,
            wrote=lambda log: None,
        )
        record = TopicRecord("id", "t", ("p",), TopicSettings(), 0)
        room = Room(files, clock, DEFAULT_LIMITS)
        self.topic = Topic(record, {0: self.partition}, bell=bell, limits=DEFAULT_LIMITS, clock=clock, room=room)
        self.clock = clock

    def commit(self) -> None:
        self.partition.committed(MESSAGES, self.partition.messages.synced_offset)

    @property
    def visible(self) -> int:
        return self.partition.reading.visible_offset


def run(work: Callable[[Led], Awaitable[None]]) -> None:
    async def main() -> None:
        with ThreadPoolExecutor(1) as executor:
            async with asyncio.timeout(30):
                await work(Led(executor))

    asyncio.run(main())


@pytest.mark.parametrize("acks", [LEADER, NONE])
def test_the_leader_answers_when_it_is_on_its_own_disk_and_nobody_sees_it_before_all_have_it(acks: str) -> None:
    async def work(on: Led) -> None:
        assert (await on.topic.publish(Message(b"a"), 0, acks)).offset == 0
        assert (await on.topic.publish_frame(numbered(0, b"b", b"c"), 0, acks)).offset == 1
        assert on.visible == 0
        everywhere = on.partition.publish(Message(b"d"))
        assert (await on.topic.publish(Message(b"e"), 0, acks)).offset == 4
        assert not everywhere.done()
        on.commit()
        assert (await everywhere).base_offset == 3
        assert on.visible == 5

    run(work)


def test_a_frame_that_comes_again_is_told_when_it_is_as_far_as_the_second_wants_it() -> None:
    async def work(on: Led) -> None:
        frame = numbered(0, b"a", b"b")
        first = await on.topic.publish_frame(frame, 0, LEADER)
        everywhere = on.topic.storing(frame, 0)
        assert isinstance(everywhere, asyncio.Future)
        assert not everywhere.done(), "one disk is not all of them"
        assert await on.topic.publish_frame(frame, 0, LEADER) == first
        assert await on.topic.publish_frame(numbered(1, b"b"), 0, LEADER) == first._replace(offset=1)
        on.commit()
        assert (await everywhere).base_offset == first.offset
        waiting = on.topic.storing(numbered(2, b"c"), 0)
        again = on.topic.storing(numbered(2, b"c"), 0, LEADER)
        assert isinstance(waiting, asyncio.Future)
        assert isinstance(again, asyncio.Future)
        assert (await again).base_offset == 2
        assert not waiting.done()
        on.partition.resign()
        with pytest.raises(LeadershipLost):
            await waiting

    run(work)


def test_a_delayed_message_that_the_leader_alone_has_is_not_delivered_when_its_time_comes() -> None:
    async def work(on: Led) -> None:
        due = on.clock.now_us() + 1_000_000
        assert (await on.topic.publish(Message(b"later", deliver_at=due), 0, LEADER)).offset == 0
        assert (await on.topic.publish(Message(b"now"), 0, LEADER)).offset == 1
        on.clock.advance("1h")
        assert on.visible == 0
        on.commit()
        assert on.visible == 0, "its time is not known yet"
        await asyncio.sleep(0)
        assert on.visible == 2

    run(work)


def test_below_min_isr_only_those_who_want_all_replicas_are_refused() -> None:
    async def work(on: Led) -> None:
        before = on.topic.storing(numbered(0, b"a"), 0)
        assert isinstance(before, asyncio.Future)
        on.partition.too_few = (1, 2)
        publishing: list[Callable[[], Awaitable[Any]]] = [
            lambda: on.topic.publish(Message(b"x"), 0),
            lambda: on.topic.publish_frame(numbered(1, b"x"), 0),
            lambda: on.topic.publish_batch(Batch.from_columns([b"x"], now_us=1)),
        ]
        for publish in publishing:
            with pytest.raises(NotEnoughReplicas, match="partition 0 of t has 1 of the 2 replicas") as refused:
                await publish()
            details = {"topic": "t", "partition": 0, "in_sync": 1, "min_isr": 2}
            assert refused.value.details == details
        assert (await on.topic.publish(Message(b"b"), 0, LEADER)).offset == 1
        assert (await on.topic.publish_frame(numbered(1, b"c"), 0, NONE)).offset == 2
        again = on.topic.storing(numbered(0, b"a"), 0)
        assert isinstance(again, asyncio.Future)
        assert not again.done(), "it is there, and must not be said not to be"
        on.partition.too_few = None
        on.commit()
        assert (await before) == (await again)
        everywhere = on.topic.storing(numbered(2, b"d"), 0)
        assert isinstance(everywhere, asyncio.Future)
        await on.topic.publish(Message(b"e"), 0, LEADER)
        on.commit()
        assert (await everywhere).base_offset == 3

    run(work)


def test_a_value_that_is_none_of_them_is_refused_before_anything_is_done() -> None:
    async def work(on: Led) -> None:
        for odd in ("some", "", None, 1, ["all"]):
            for publishing in (
                on.topic.publish(Message(b"x"), 0, odd),  # type: ignore[arg-type]
                on.topic.publish_frame(numbered(0, b"x"), 0, odd),  # type: ignore[arg-type]
            ):
                with pytest.raises(InvalidInput, match="acks is all, leader, none, not"):
                    await publishing
        assert on.partition.messages.end_offset == 0

    run(work)
