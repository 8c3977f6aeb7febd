"""A disk with too little room: messages are refused, what is there can be worked off, and it goes on by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

import penstock
from grpc_served import failure
from penstock.batch import Batch
from penstock.broker.room import LOOK_US, Room
from penstock.clock import SystemClock
from penstock.errors import DiskFull
from penstock.frame import Frame, Producer
from penstock.limits import Limits
from penstock.server.grpc import penstock_pb2 as pb
from penstock.storage.files import DiskFiles, Space
from penstock.testing import ManualClock, MemoryDisk, MemoryFiles
from security.doors import Doors, knock

NEARLY_FULL, ROOMY = Space(49, 1_000), Space(50, 1_000)


class _Looking:
    """A directory that counts how often somebody looks at its disk."""

    def __init__(self, space: Space) -> None:
        self.now = space
        self.looks = 0

    def space(self) -> Space:
        self.looks += 1
        return self.now


def test_less_than_the_limit_is_refused_and_the_limit_itself_is_not() -> None:
    for space, is_refused in (
        (Space(49, 1_000), True),
        (Space(50, 1_000), False),
        (Space(0, 1_000), True),
        (Space(1_000, 1_000), False),
        # Nobody knows.
        (Space(0, 0), False),
    ):
        files: Any = _Looking(space)
        room = Room(files, ManualClock(), Limits())
        if is_refused:
            with pytest.raises(DiskFull, match="% of the disk is free; messages are taken again when it is 5 %"):
                room.check()
        else:
            room.check()


def test_it_is_looked_at_once_a_second_whatever_the_clock_does() -> None:
    files: Any = _Looking(ROOMY)
    clock = ManualClock()
    room = Room(files, clock, Limits())
    for _ in range(1_000):
        room.check()
    assert files.looks == 1
    files.now = NEARLY_FULL
    clock.advance_us(LOOK_US - 1)
    room.check()
    clock.advance_us(1)
    for _ in range(10):
        with pytest.raises(DiskFull):
            room.check()
    assert files.looks == 2
    # A clock that is set back does not keep it from looking.
    files.now = ROOMY
    clock.step_us(-3_600_000_000)
    clock.advance_us(LOOK_US)
    room.check()
    assert files.looks == 3


def test_how_much_is_wanted_can_be_set() -> None:
    files: Any = _Looking(Space(200, 1_000))
    Room(files, ManualClock(), Limits(disk_free_percent_min=20)).check()
    with pytest.raises(DiskFull):
        Room(files, ManualClock(), Limits(disk_free_percent_min=21)).check()


def test_a_real_disk_tells_how_much_is_free(tmp_path: Path) -> None:
    free, total = DiskFiles(tmp_path).space()
    assert 0 < free <= total


# --- through the doors --------------------------------------------------------------------------------------

_FAILED = (grpc.StatusCode.RESOURCE_EXHAUSTED, "disk_full")


def _run(path: Path, work: Callable[[Doors, MemoryDisk, ManualClock], Awaitable[None]]) -> None:
    disk, clock = MemoryDisk(), ManualClock(SystemClock().now_us())

    async def with_disk(doors: Doors) -> None:
        await work(doors, disk, clock)

    knock(path, with_disk, files=partial(MemoryFiles, disk), clock=clock)


async def _prepare(doors: Doors) -> None:
    broker = doors.site.broker
    await broker.create_topic("t", 1)
    await broker.create_topic("old", 1)
    for value in (b"one", b"two", b"three", b"four"):
        await doors.site.publish("t", penstock.Message(value), None)


def test_every_door_refuses_messages_and_takes_them_again(tmp_path: Path) -> None:
    async def publish_all(doors: Doors) -> list[Any]:
        frame = Frame.of(Batch.from_columns([b"x"], now_us=1))
        new = pb.NewMessage(value=b"x")
        web = [
            await doors.web.post("/v1/topics/t/publish", json={"text": "x"}),
            await doors.web.post("/v1/topics/t/publish/batch", json={"messages": [{"text": "x"}]}),
        ]
        stream = doors.stub.PublishStream()
        await stream.write(pb.PublishBatchRequest(topic="t", messages=[new]))
        streamed = await stream.read()
        await stream.done_writing()
        schedule = {"name": "hourly", "topic": "t", "cron": "@hourly", "text": "x"}
        return [
            await _code(doors.site.publish_frame("t", 0, frame)),
            await _code(_natively(doors, frame)),
            (web[0].status_code, web[0].json().get("code")),
            (web[1].status_code, web[1].json()["results"][0].get("error", {}).get("code")),
            await _grpc_code(doors.stub.Publish(pb.PublishRequest(topic="t", message=new))),
            await _grpc_code(doors.stub.PublishBatch(pb.PublishBatchRequest(topic="t", messages=[new]))),
            streamed.failure.code or None,
            (await doors.web.post("/v1/schedules", json=schedule)).status_code,
        ]

    async def work(doors: Doors, disk: MemoryDisk, clock: ManualClock) -> None:
        await _prepare(doors)
        before = doors.state()
        disk.space = NEARLY_FULL
        clock.advance_us(LOOK_US)
        full, none = "disk_full", None
        assert await publish_all(doors) == [full, full, (507, full), (200, full), _FAILED, _FAILED, full, 507]
        assert doors.state() == before
        reply = await doors.web.post("/v1/topics/t/publish", json={"text": "x"})
        assert reply.headers["retry-after"] == "1"
        assert reply.json()["details"] == {"free_bytes": 49, "free_percent_min": 5}
        disk.space = ROOMY
        clock.advance_us(LOOK_US)
        assert await publish_all(doors) == [none, none, (200, none), (200, none), none, none, none, 201]

    _run(tmp_path, work)


async def _natively(doors: Doors, frame: Frame) -> None:
    async with doors.client() as q:
        await q._transport.publish_frame("t", 0, frame)


async def _code(work: Awaitable[object]) -> str | None:
    try:
        await work
    except DiskFull as error:
        assert error.retriable
        return error.code
    return None


async def _grpc_code(call: Any) -> Any:
    try:
        await call
    except grpc.aio.AioRpcError:
        return await failure(call)
    return None


def test_what_is_there_can_be_consumed_and_the_rest_goes_on(tmp_path: Path) -> None:
    async def work(doors: Doors, disk: MemoryDisk, clock: ManualClock) -> None:
        await _prepare(doors)
        disk.space = NEARLY_FULL
        clock.advance_us(LOOK_US)
        polled = (await doors.web.post("/v1/groups/g/poll", json={"topics": "t"})).json()["messages"]
        assert len(polled) == 4
        for message, answer in zip(polled, ("ack", "nack", "release", "reject"), strict=True):
            reply = await doors.web.post(f"/v1/groups/g/{answer}", json={"receipts": [message["receipt"]]})
            assert reply.json() == {"done": 1, "failed": []}
        # Also what was given up: it is a part of consuming.
        await doors.site.broker.settle()
        letters = (await doors.web.get("/v1/topics/t/dead-letters")).json()["dead_letters"]
        assert [letter["original"] for letter in letters] == ["t:0:3"]
        async with doors.client() as q:
            await q.create_topic("new", 1)
            await q.delete_topic("old")
            await q.create_group("other")
            assert [message.value async for message in q.reader("t")] == [b"one", b"two", b"three", b"four"]
            assert (await q.trace("t:0:0")).steps
        assert len((await doors.stub.Poll(pb.PollRequest(group="h", consumer="c", topics=["t"]))).messages) == 4

    _run(tmp_path, work)


def test_a_batch_that_is_sent_again_is_known_also_when_there_is_no_room(tmp_path: Path) -> None:
    """Its producer must not hear that nothing was written."""

    async def work(doors: Doors, disk: MemoryDisk, clock: ManualClock) -> None:
        await _prepare(doors)
        frames = [Frame.of(Batch.from_columns([b"x"], now_us=1), producer=Producer(7, 0, number)) for number in (0, 1)]
        stored = await doors.site.publish_frame("t", 0, frames[0])
        disk.space = NEARLY_FULL
        clock.advance_us(LOOK_US)
        assert await doors.site.publish_frame("t", 0, frames[0]) == stored
        with pytest.raises(DiskFull):
            await doors.site.publish_frame("t", 0, frames[1])
        disk.space = ROOMY
        clock.advance_us(LOOK_US)
        assert (await doors.site.publish_frame("t", 0, frames[1])).offset == stored.offset + 1

    _run(tmp_path, work)


def test_a_schedule_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    async def work(doors: Doors, disk: MemoryDisk, clock: ManualClock) -> None:
        await _prepare(doors)
        async with doors.client() as q:
            await q.schedules.create("every-minute", "t", "* * * * *", b"tick")
            end = doors.site.broker.topic("t").partitions[0].messages.end_offset
            disk.space = NEARLY_FULL
            clock.advance_us(61_000_000)
            await doors.site.broker.tick()
            assert doors.site.broker.topic("t").partitions[0].messages.end_offset == end
            assert [type(error) for error in doors.site.broker.schedules.failures.values()] == [DiskFull]
            disk.space = ROOMY
            clock.advance_us(LOOK_US)
            await doors.site.broker.tick()
            assert doors.site.broker.topic("t").partitions[0].messages.end_offset == end + 1
            assert not doors.site.broker.schedules.failures

    _run(tmp_path, work)


def test_a_producer_waits_for_room(tmp_path: Path) -> None:
    async def work(doors: Doors, disk: MemoryDisk, clock: ManualClock) -> None:
        await _prepare(doors)
        disk.space = NEARLY_FULL
        clock.advance_us(LOOK_US)
        async with doors.client() as q:
            publishing = asyncio.ensure_future(q.publish("t", b"x"))
            while not doors.native.counts.requests["native", "publish", "disk_full"]:
                await asyncio.sleep(0)
            disk.space = ROOMY
            clock.advance_us(LOOK_US)
            assert (await publishing).id == "t:0:4"

    _run(tmp_path, work)
