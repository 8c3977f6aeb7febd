"""Work that is done again: the same messages under the same identity are stored once, whatever happened in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from broker_process import broker_process
from penstock.batch import Batch
from penstock.broker.producers import Producers
from penstock.broker.settings import TopicSettings
from penstock.client import identified, patience, placing
from penstock.client.client import Client
from penstock.client.identified import IdentifiedWriter, Identity
from penstock.client.requests import FindOffsets
from penstock.client.transport import Stored, Transport
from penstock.errors import (
    AttemptDiffers,
    BatchTooLarge,
    ConnectionLost,
    DiskFull,
    Forbidden,
    InvalidInput,
    LogClosed,
    PenstockError,
    ProducerFenced,
    SequenceGap,
    TopicNotFound,
)
from penstock.frame import Frame, Producer
from penstock.limits import DEFAULT_LIMITS
from penstock.local.transport import LocalTransport
from penstock.testing import Fault, FaultyFiles, ManualClock, ManualTimers, MemoryFiles, Operation
from served import Served, serve

WORK = Identity(77, 3)
Way = Callable[..., None]


class Between:
    """A transport that counts frames and reads, holds frames up, loses answers, and refuses reads."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.frames: list[Producer] = []
        self.reads = 0
        self.is_secret = False
        self.lost: list[PenstockError] = []
        self.gate: asyncio.Event | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def read(self, *args: Any) -> Any:
        if self.is_secret:
            raise Forbidden("may not read")
        self.reads += 1
        return await self.inner.read(*args)

    async def publish_frame(self, topic: str, partition: int, frame: Frame) -> Stored:
        if self.gate is not None:
            await self.gate.wait()
        self.frames.append(frame.producer)
        stored: Stored = await self.inner.publish_frame(topic, partition, frame)
        if self.lost:
            raise self.lost.pop(0)
        return stored


def numbered(start: int, stop: int) -> Batch:
    return Batch.from_columns([b"%d" % number for number in range(start, stop)], now_us=1)


def expected(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def values(client: Client, topic: str = "orders", partition: int = 0) -> list[bytes | None]:
    return [message.value async for message in client.reader(topic, partitions=[partition])]


async def work(client: Client, cuts: Sequence[int], identity: Identity = WORK) -> dict[int, int]:
    """Messages 0 to the last of `cuts`, each batch sent before the next is put: one frame each."""
    async with client.identified("orders", identity) as writer:
        start = 0
        for stop in cuts:
            await writer.put(0, numbered(start, stop))
            await settled(writer)
            start = stop
        return await writer.finish()


async def settled(writer: IdentifiedWriter) -> None:
    """What was put is stored, or has failed."""
    await asyncio.gather(*[lane.sending for lane in writer._lanes.values() if lane.sending])


@pytest.fixture(params=["local", "remote"])
def run(request: pytest.FixtureRequest, run_client: Way, tmp_path: Path) -> Way:
    """`work(client)` in the same process as the broker, and over a connection."""

    def local(todo: Callable[[Client], Awaitable[None]]) -> None:
        async def with_topic(client: Client) -> None:
            await client.create_topic("orders", partitions=3)
            await todo(client)

        run_client(with_topic)

    def remote(todo: Callable[[Client], Awaitable[None]]) -> None:
        async def served(here: Served) -> None:
            async with here.client() as client:
                await client.create_topic("orders", partitions=3)
                await todo(client)

        serve(tmp_path, served)

    return local if request.param == "local" else remote


def test_work_that_is_done_again_is_stored_once(run: Way) -> None:
    async def todo(client: Client) -> None:
        assert await work(client, [10, 20, 30]) == {0: 30}
        assert await work(client, [10, 20, 30]) == {0: 30}
        assert await values(client) == expected(30)

    run(todo)


def test_work_of_more_frames_than_the_broker_remembers_is_stored_once(run: Way) -> None:
    async def todo(client: Client) -> None:
        cuts = list(range(5, 105, 5))
        await work(client, cuts)
        assert await work(client, cuts) == {0: 100}
        assert await work(client, [100]) == {0: 100}
        assert await values(client) == expected(100)

    run(todo)


@pytest.mark.parametrize("again", [[5, 15, 30], [30], [1, 2, 3, 30], [25, 27, 40], [40], [12, 19, 21, 31, 40]])
def test_frames_may_be_cut_differently_when_work_is_done_again(run: Way, again: list[int]) -> None:
    async def todo(client: Client) -> None:
        await work(client, [10, 20, 30])
        assert await work(client, again) == {0: again[-1]}
        assert await values(client) == expected(max(30, again[-1]))

    run(todo)


CUTS = st.lists(st.integers(1, 12), min_size=1, max_size=12).map(
    lambda steps: [sum(steps[: end + 1]) for end in range(len(steps))]
)


class Full:
    """A disk that is full for a moment, at those of the writes to come that `at` names."""

    def __init__(self, at: Iterable[int] = ()) -> None:
        self.at = set(at)
        self.writes: int | None = None
        self.refused = 0

    def __call__(self, operation: Operation) -> Fault | None:
        is_append = operation.kind in ("write", "write_at") and operation.name.endswith(".log")
        if self.writes is None or not is_append:
            return None
        self.writes += 1
        if self.writes not in self.at:
            return None
        self.refused += 1
        return Fault(DiskFull("full"))


@settings(max_examples=60, deadline=None)
@given(st.lists(CUTS, min_size=2, max_size=4), st.booleans(), st.sets(st.integers(1, 20), max_size=3))
def test_however_often_and_however_far_work_is_done_it_is_stored_once(
    attempts: list[list[int]], at_once: bool, full_at: set[int]
) -> None:
    full = Full(full_at)
    if at_once:
        attempts = [[*cuts, 150] for cuts in attempts]
    # What one has done before, the next one does, too.
    attempts.sort(key=lambda cuts: cuts[-1])

    async def todo() -> None:
        transport = await LocalTransport.open(
            lambda: FaultyFiles(MemoryFiles(), full), clock=ManualClock(), timers=ManualTimers(), is_kept=False
        )
        async with Client(transport) as client:
            await client.create_topic("orders", partitions=1)
            full.writes = 0
            if at_once:
                await asyncio.gather(*[work(client, cuts) for cuts in attempts])
            else:
                for cuts in attempts:
                    await work(client, cuts)
            assert await values(client) == expected(max(cuts[-1] for cuts in attempts))

    asyncio.run(todo())


def test_partitions_are_numbered_apart(run: Way) -> None:
    async def todo(client: Client) -> None:
        for _ in range(2):
            async with client.identified("orders", WORK) as writer:
                for partition in (0, 2, 0):
                    await writer.put(partition, numbered(0, 4))
                assert await writer.finish() == {0: 8, 2: 4}
        assert await values(client) == expected(4) * 2
        assert await values(client, partition=1) == []
        assert await values(client, partition=2) == expected(4)

    run(todo)


def test_other_work_is_other_messages(run: Way) -> None:
    async def todo(client: Client) -> None:
        await work(client, [3])
        await work(client, [3], Identity(WORK.id, WORK.epoch + 1))
        await work(client, [3], Identity(WORK.id + 1, 0))
        assert await values(client) == expected(3) * 3

    run(todo)


def test_what_is_left_of_earlier_work_can_not_write_any_more(run: Way) -> None:
    async def todo(client: Client) -> None:
        await work(client, [3], Identity(77, 4))
        with pytest.raises(ProducerFenced, match=r"orders partition 0: this work \(epoch 3\) is over, later work"):
            await work(client, [3], Identity(77, 3))
        assert await values(client) == expected(3)

    run(todo)


def test_a_twin_at_the_same_time_stores_nothing_twice(run: Way) -> None:
    async def todo(client: Client) -> None:
        await asyncio.gather(
            work(client, [10, 20, 30, 40]), work(client, [3, 17, 40]), work(client, [40]), work(client, [1, 2, 39, 40])
        )
        assert await values(client) == expected(40)

    run(todo)


def test_small_batches_that_wait_become_one_frame(run_client: Way) -> None:
    ways: list[Between] = []

    def through(transport: LocalTransport) -> Between:
        ways.append(Between(transport))
        return ways[0]

    async def todo(client: Client) -> None:
        await client.create_topic("orders", partitions=1)
        ways[0].gate = asyncio.Event()
        async with client.identified("orders", WORK) as writer:
            for number in range(50):
                await writer.put(0, numbered(number, number + 1))
            await asyncio.sleep(0)
            ways[0].gate.set()
            await writer.finish()
        assert len(ways[0].frames) <= 2
        assert await values(client) == expected(50)

    run_client(todo, through=through)


def test_large_batches_are_cut_into_frames(run: Way) -> None:
    async def todo(client: Client) -> None:
        many = Batch.from_columns([b"x" * 300_000] * 20, now_us=1)
        async with client.identified("orders", WORK, compression="zstd") as writer:
            await writer.put(0, many)
            await writer.put(1, numbered(0, 25_000))
            assert await writer.finish() == {0: 20, 1: 25_000}
        assert len(await values(client)) == 20
        assert await values(client, partition=1) == expected(25_000)

    run(todo)


def test_an_answer_that_was_lost_is_asked_for_again(run_client: Way) -> None:
    ways: list[Between] = []

    def through(transport: LocalTransport) -> Between:
        ways.append(Between(transport))
        return ways[0]

    async def todo(client: Client) -> None:
        await client.create_topic("orders", partitions=1)
        ways[0].lost = [ConnectionLost("lost"), DiskFull("full"), ConnectionLost("lost")]
        assert await work(client, [10, 20]) == {0: 20}
        assert [producer.sequence for producer in ways[0].frames] == [0, 0, 0, 0, 10]
        assert await values(client) == expected(20)
        ways[0].lost = [ConnectionLost("gone")] * 1_000
        with pytest.raises(ConnectionLost, match="gone"):
            async with client.identified("orders", Identity(5), retry_for="20ms") as writer:
                await writer.put(0, numbered(0, 3))
                await writer.finish()

    run_client(todo, through=through)


class SlowDisk:
    """A partition whose frames are on disk when the test says so."""

    limits = DEFAULT_LIMITS

    principal = ""

    def __init__(self) -> None:
        self.producers: Producers[asyncio.Future[None]] = Producers()
        self.under_way: list[tuple[Frame, asyncio.Future[None]]] = []
        self.stored: list[bytes | None] = []

    def now_us(self) -> int:
        return 0

    async def call(self, request: Any) -> Any:
        """There is nothing to be read."""
        if isinstance(request, FindOffsets):
            return [0]
        return SimpleNamespace(partitions=[SimpleNamespace(end_offset=0)])

    async def publish_frame(self, topic: str, partition: int, frame: Frame) -> Stored:
        known = self.producers.find(frame.producer, frame.count, frame.body_crc)
        if known is None:
            writing = asyncio.get_running_loop().create_future()
            self.producers.add(frame.producer, frame.count, writing, frame.body_crc)
            self.under_way.append((frame, writing))
        await asyncio.shield(writing if known is None else known[0])
        return Stored(partition, 0, 0, 1)

    def write(self) -> None:
        frame, writing = self.under_way.pop(0)
        self.stored += frame.batch().values()
        writing.set_result(None)

    def refuse(self) -> None:
        frame, writing = self.under_way.pop(0)
        self.producers.forget(frame.producer)
        writing.set_exception(DiskFull("full"))


async def turns(count: int = 20) -> None:
    """Until nobody has anything to do but wait."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("other", [[15], [5, 15], [10, 15], [3, 4, 15]])
def test_what_another_attempt_has_under_way_does_not_count_as_stored(
    other: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "_PAUSE_S", 0)

    async def attempt(disk: SlowDisk, cuts: Sequence[int]) -> None:
        async with IdentifiedWriter(cast(Transport, disk), "orders", WORK) as writer:
            start = 0
            for stop in cuts:
                await writer.put(0, numbered(start, stop))
                await settled(writer)
                start = stop
            await writer.finish()

    async def todo() -> None:
        disk = SlowDisk()
        first = asyncio.ensure_future(attempt(disk, [10, 15]))
        await turns()
        second = asyncio.ensure_future(attempt(disk, other))
        await turns()
        assert [frame.producer.sequence for frame, _ in disk.under_way] == [0]
        disk.refuse()
        while not (first.done() and second.done()):
            await turns()
            if disk.under_way:
                disk.write()
        await asyncio.gather(first, second)
        assert disk.stored == expected(15)

    asyncio.run(todo())


def test_work_goes_on_after_the_broker_was_killed(tmp_path: Path) -> None:
    def done(cuts: Iterable[int], writer: Any, start: int) -> int:
        for stop in cuts:
            writer.put(0, numbered(start, stop))
            start = stop
        return start

    with broker_process(tmp_path) as broker, penstock.connect(broker.address) as client:
        client.create_topic("orders", partitions=1)
        with client.identified("orders", WORK) as writer:
            done(range(10, 201, 10), writer, 0)
            writer.finish()
        broker.kill()
        broker.start()
        with client.identified("orders", WORK) as writer:
            # In the middle of it, once more: nobody has been told of what is under way.
            start = done(range(7, 150, 7), writer, 0)
            broker.kill()
            broker.start()
            done(range(start + 9, 251, 9), writer, start)
            assert writer.finish() == {0: start + (250 - start) // 9 * 9}
        count = start + (250 - start) // 9 * 9
        assert [message.value for message in client.reader("orders")] == expected(count)


def test_a_broker_that_has_lost_what_it_acknowledged_is_noticed(run_client: Way) -> None:
    async def todo(client: Client) -> None:
        await client.create_topic("orders", partitions=1)
        async with client.identified("orders", WORK) as writer:
            await writer.put(0, numbered(0, 10))
            await settled(writer)
            # As if it had been restored from a copy of yesterday.
            await client.delete_topic("orders")
            await client.create_topic("orders", partitions=1)
            await work(client, [4])
            await writer.put(0, numbered(10, 20))
            with pytest.raises(SequenceGap, match="10 messages were written before, and the broker knows of 4"):
                await writer.finish()

    run_client(todo)


def test_an_error_is_told_by_what_comes_next_and_ends_the_work(run: Way) -> None:
    async def todo(client: Client) -> None:
        async with client.identified("nowhere", WORK) as writer:
            await writer.put(0, numbered(0, 3))
            await settled(writer)
            with pytest.raises(TopicNotFound):
                await writer.put(0, numbered(3, 6))
            with pytest.raises(TopicNotFound):
                await writer.finish()

    run(todo)


def test_what_waits_is_bounded(run_client: Way) -> None:
    ways: list[Between] = []

    def through(transport: LocalTransport) -> Between:
        ways.append(Between(transport))
        return ways[0]

    async def todo(client: Client) -> None:
        await client.create_topic("orders", partitions=1)
        ways[0].gate = asyncio.Event()
        async with IdentifiedWriter(ways[0], "orders", WORK, waiting_bytes_max=1_000) as writer:
            await writer.put(0, numbered(0, 10))
            await asyncio.sleep(0)
            await writer.put(0, numbered(10, 20))
            third = asyncio.ensure_future(writer.put(0, numbered(20, 40)))
            await asyncio.sleep(0)
            assert not third.done()
            ways[0].gate.set()
            await third
            assert await writer.finish() == {0: 40}
        assert await values(client) == expected(40)

    run_client(todo, through=through)


def test_a_writer_that_was_closed_or_misused_says_so(run_client: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    async def todo(client: Client) -> None:
        await client.create_topic("orders", partitions=1)
        with pytest.raises(InvalidInput, match="compression is none, lz4, zstd, not 'zip'"):
            client.identified("orders", WORK, compression="zip")
        writer = client.identified("orders", WORK)
        await writer.close()
        with pytest.raises(LogClosed, match="the writer for orders is closed"):
            await writer.put(0, numbered(0, 1))
        monkeypatch.setattr(identified, "ROWS_MAX", 20)
        async with client.identified("orders", WORK) as writer:
            await writer.put(0, numbered(0, 15))
            with pytest.raises(BatchTooLarge, match="more than 20 messages for partition 0 of orders"):
                await writer.put(0, numbered(15, 21))

    run_client(todo)


def test_what_is_stored_is_found_in_the_log_when_the_broker_has_forgotten_who_wrote_it(run_client: Way) -> None:
    async def todo(client: Client) -> None:
        await client.create_topic("orders", partitions=1)
        await client.publish("orders", "of somebody else")
        await work(client, [3, 6, 9, 12, 15, 18, 21])
        transport = cast(LocalTransport, client._transport)
        transport.broker.topic("orders").partitions[0]._producers = Producers()
        async with client.identified("orders", WORK) as writer:
            assert await writer.recover(0) == 21
            await writer.put(0, numbered(21, 25))
            assert await writer.finish() == {0: 25}
            places = await writer.places(0)
        assert await values(client) == [b"of somebody else", *expected(25)]
        assert [tuple(each) for each in places] == [(at, 3, at + 1) for at in range(0, 21, 3)] + [(21, 4, 22)]
        async with client.identified("orders", Identity(WORK.id, WORK.epoch + 1)) as writer:
            assert await writer.recover(0, since=5) == 0

    run_client(todo)


def test_places_are_told_by_the_broker_or_looked_for(run: Way) -> None:
    async def todo(client: Client) -> None:
        cuts = [3, 6, 9, 12, 15, 18, 21]
        told = []
        for again in (cuts, cuts, [21], [2, 30]):
            async with client.identified("orders", WORK) as writer:
                start = 0
                for stop in again:
                    await writer.put(0, numbered(start, stop))
                    await settled(writer)
                    start = stop
                await writer.finish()
                places = await writer.places(0)
                told.append({each.number + at: each.offset + at for each in places for at in range(each.messages)})
                assert await writer.places(1) == []
        assert told[:3] == [{number: number for number in range(21)}] * 3
        assert told[3] == {number: number for number in range(30)}

    run(todo)


# --- other messages under the same identity -----------------------------------------------------------------


async def attempt(client: Client, batches: Iterable[Batch], identity: Identity = WORK, **more: Any) -> dict[int, int]:
    """Each batch a frame of its own."""
    async with client.identified("orders", identity) as writer:
        for batch in batches:
            await writer.put(0, batch, **more)
            await settled(writer)
        return await writer.finish()


def texts(*some: str) -> Batch:
    return Batch.from_columns([each.encode() for each in some], now_us=1)


@pytest.mark.parametrize(("frames", "changed", "size"), [(2, 0, 50), (2, 39, 7), (20, 0, 50), (20, 13, 7), (20, 39, 9)])
def test_other_messages_in_place_of_those_that_are_stored_are_noticed(
    run: Way, frames: int, changed: int, size: int
) -> None:
    """The broker remembers some frames of the first attempt, or finds them in the log; of both, any message counts."""

    async def todo(client: Client) -> None:
        before = [str(number) for number in range(40)]
        await attempt(client, [texts(*before[at : at + 40 // frames]) for at in range(0, 40, 40 // frames)])
        after = [*before[:changed], "other", *before[changed + 1 :], "more"]
        where = f"message {changed} for partition 0 of orders .* as orders:0:{changed}: value is another"
        with pytest.raises(AttemptDiffers, match=where) as caught:
            await attempt(client, [texts(*after[at : at + size]) for at in range(0, 41, size)])
        details = {"topic": "orders", "partition": 0, "number": changed, "offset": changed, "column": "value"}
        assert caught.value.details == details
        assert await values(client) == [each.encode() for each in before]

    run(todo)


@pytest.mark.parametrize("frames", [2, 20])
def test_fewer_messages_than_are_stored_are_noticed(run: Way, frames: int) -> None:
    """All of them are there; but the others, which are not missed here, may be done by other work now."""

    async def todo(client: Client) -> None:
        await work(client, list(range(40 // frames, 41, 40 // frames)))
        for fewer in ([39], [3, 20], list(range(2, 31, 2))):
            with pytest.raises(
                AttemptDiffers, match=f"has {fewer[-1]} messages for partition 0 of orders, .* stored 40"
            ):
                await work(client, fewer)
        assert await work(client, [40]) == {0: 40}
        assert await values(client) == expected(40)

    run(todo)


FIELDS: dict[str, tuple[Any, Any]] = {
    "keys": ([b"k"], [None]),
    "headers": ([[("a", b"1")]], [[("a", b"2")]]),
    "timestamps": ([5], [6]),
    "priorities": ([1], [0]),
    "deliver_at": ([5], [None]),
    "expires_at": ([5], [6]),
}


@pytest.mark.parametrize("field", FIELDS)
def test_all_of_a_message_is_compared(run_client: Way, field: str) -> None:
    async def todo(client: Client) -> None:
        await client.create_topic("orders", partitions=1)
        one, other = (Batch.from_columns([b"v"], **{field: value}, now_us=1) for value in FIELDS[field])
        await attempt(client, [one])
        await attempt(client, [one])
        with pytest.raises(AttemptDiffers, match=rf"orders:0:0: {field[:3]}\w* is another"):
            await attempt(client, [other])

    run_client(todo)


def test_times_that_each_attempt_makes_up_are_not_compared(run_client: Way) -> None:
    def made(now_us: int, given: int = 5) -> Batch:
        times, later = np.array([0, given]), np.array([now_us + 10, 0])
        return Batch.from_columns([b"a", b"b"], timestamps=times, deliver_at=later, expires_at=later, now_us=now_us)

    async def todo(client: Client) -> None:
        await client.create_topic("orders", partitions=1)
        relative = ("deliver_at", "expires_at")
        for now_us in (70, 80):
            assert await attempt(client, [made(now_us)], now_us=now_us, relative=relative) == {0: 2}
        with pytest.raises(AttemptDiffers, match=r"message 1 .* timestamp is another"):
            await attempt(client, [made(90, given=6)], now_us=90, relative=relative)
        with pytest.raises(AttemptDiffers, match=r"message 0 .* deliver_at is another"):
            await attempt(client, [made(90)], now_us=90, relative=("expires_at",))
        assert await values(client) == [b"a", b"b"]

    run_client(todo)


def test_only_work_that_is_done_again_reads_and_only_what_it_has_to(
    run_client: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: list[Between] = []

    def through(transport: LocalTransport) -> Between:
        ways.append(Between(transport))
        return ways[0]

    async def todo(client: Client) -> None:
        await client.create_topic("orders", partitions=1)
        await attempt(client, [numbered(0, 100)], identity=Identity(5))
        ways[0].lost = [ConnectionLost("lost")]
        await work(client, list(range(5, 105, 5)))
        assert ways[0].reads == 0
        looked: list[tuple[int, int]] = []
        between = placing._between

        async def noted(*args: Any) -> Any:
            looked.append(args[-2:])
            return await between(*args)

        monkeypatch.setattr(placing, "_BACK", 30)
        monkeypatch.setattr(placing, "_between", noted)
        await work(client, [100])
        # Back to the first, and at the end whether there are more than it has put.
        assert looked == [(170, 200), (110, 170), (0, 110), (170, 200)]
        ways[0].is_secret = True
        with pytest.raises(
            Forbidden, match="orders: an earlier attempt at the same work has stored some of it, and the"
        ):
            await work(client, [100])
        ways[0].is_secret = False
        assert (await values(client))[100:] == expected(100)

    run_client(todo, through=through)


def test_what_the_log_has_not_kept_is_trusted_to_be_what_is_put_now(run_client: Way) -> None:
    def keyed(*some: int) -> Batch:
        return Batch.from_columns([b"%d" % each for each in some], keys=[b"%d" % (each % 3) for each in some], now_us=1)

    async def todo(client: Client) -> None:
        await client.create_topic("orders", partitions=1, cleanup="compact")
        await attempt(client, [keyed(0, 1, 2, 3, 4), keyed(5, 6, 7)])
        partition = cast(LocalTransport, client._transport).broker.topic("orders").partitions[0]
        partition.messages.roll()
        partition.maintain(TopicSettings(cleanup="compact"), np.empty(0, np.int64), partition.messages.end_offset)
        assert await values(client) == [b"5", b"6", b"7"]
        assert await attempt(client, [keyed(*range(9))]) == {0: 9}
        with pytest.raises(AttemptDiffers, match="message 6 for partition 0 of orders"):
            await attempt(client, [keyed(0, 1, 2, 3, 4, 5, 7)])
        assert await values(client) == [b"5", b"6", b"7", b"8"]

    run_client(todo)
