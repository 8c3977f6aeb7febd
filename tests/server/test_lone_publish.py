"""Who publishes one frame at a time, and nobody else does, is answered within the call that brought it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.broker import disk
from penstock.broker.partition import Partition
from penstock.broker.settings import TopicSettings
from penstock.client.transport import Stored
from penstock.clock import SystemClock
from penstock.errors import ConnectionLost, DeviceFailed, DiskFull, Forbidden, InvalidFrame, PenstockError, SequenceGap
from penstock.frame import Frame, FrameFacts, Producer
from penstock.local.transport import LocalTransport
from penstock.message import Message
from penstock.net.connection import Place
from penstock.net.remote import RemoteTransport
from penstock.server.gate import Gate
from penstock.server.keys import make
from penstock.server.metrics import Counts
from penstock.server.native import ALONE_AFTER, NativeDoor
from penstock.storage.commit import Committed
from penstock.testing import Fault, FaultyFiles, MemoryFiles, Operation
from penstock.wire import words
from penstock.wire.conversation import ClientEnd
from penstock.wire.packets import Decoder, Kind
from served import Served, serve

Ways = list[str]


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    """Which way each frame has gone that was tried alone, on a disk that counts as fast whatever it is."""
    monkeypatch.setattr(disk, "_FAST_US", float("inf"))
    found: Ways = []
    store_alone = Partition.store_alone

    def watched(self: Partition, frame: Frame, facts: FrameFacts) -> Committed | None:
        stored = store_alone(self, frame, facts)
        found.append("long" if stored is None else "short")
        return stored

    monkeypatch.setattr(Partition, "store_alone", watched)
    return found


def frame(value: bytes, producer: Producer | None = None, **fields: int) -> Frame:
    message = Message(value, **fields)  # type: ignore[arg-type]
    return Frame.of_message(message, now_us=1, producer=producer or Producer(0, 0, 0))


async def connected(here: Served, key: str | None = None) -> RemoteTransport:
    return await RemoteTransport.to(here.place._replace(key=key), SystemClock())


async def warm_up(transport: RemoteTransport, topic: str = "t") -> None:
    """Until it is known to publish alone."""
    for _ in range(ALONE_AFTER):
        await transport.publish_frame(topic, 0, frame(b"warm"))


def test_only_who_has_been_alone_for_a_while_takes_the_short_way(tmp_path: Path, ways: Ways) -> None:
    async def work(here: Served) -> None:
        await here.site.broker.create_topic("t", 1)
        one, other = await connected(here), await connected(here)
        await warm_up(one)
        assert ways == []
        for number in range(3):
            stored = await one.publish_frame("t", 0, frame(b"x"))
            assert stored.offset == ALONE_AFTER + number
            assert here.site.broker.topic("t").partition(0).messages.synced_offset == stored.offset + 1
        assert ways == ["short"] * 3
        for _ in range(2 * ALONE_AFTER):
            await one.publish_frame("t", 0, frame(b"x"))
            await other.publish_frame("t", 0, frame(b"x"))
        assert ways[3:] == ["short"], "the first of these; from then on they took turns"
        assert here.door.counts.requests["native", "publish", "ok"] == ALONE_AFTER + 3 + 4 * ALONE_AFTER
        await one.close()
        await other.close()

    serve(tmp_path, work)


def test_frames_that_come_together_are_left_to_be_written_together(tmp_path: Path, ways: Ways) -> None:
    async def work(here: Served) -> None:
        await here.site.broker.create_topic("t", 1)
        transport = await connected(here)
        await warm_up(transport)
        stored = await asyncio.gather(*[transport.publish_frame("t", 0, frame(b"%d" % i)) for i in range(20)])
        assert [one.offset for one in stored] == list(range(ALONE_AFTER, ALONE_AFTER + 20))
        await transport.close()
        assert len(ways) < 20

    serve(tmp_path, work)


def test_two_packets_in_one_piece_and_one_in_two_are_answered_too(tmp_path: Path, ways: Ways) -> None:
    async def work(here: Served) -> None:
        await here.site.broker.create_topic("t", 1)
        reader, writer = await asyncio.open_connection("127.0.0.1", here.place.port)
        end, decoder, heard = ClientEnd(), Decoder(1 << 20), list[tuple[Kind, int]]()

        def publish() -> bytes:
            data = frame(b"x").data
            return end.request(Kind.PUBLISH, words.PublishFrame("t", 0), len(data))[1] + bytes(data)

        async def hear(count: int) -> None:
            while len(heard) < count:
                heard.extend((packet.kind, packet.correlation) for packet in decoder.feed(await reader.read(1000)))

        writer.write(end.hello("test", None))
        await hear(1)
        for number in range(ALONE_AFTER):
            writer.write(publish())
            await hear(2 + number)
        writer.write(publish() + publish())
        await hear(3 + ALONE_AFTER)
        assert ways == []
        halves = publish()
        writer.write(halves[:50])
        await writer.drain()
        while not any(session._end.held for session in here.door.sessions):
            await asyncio.sleep(0)
        writer.write(halves[50:])
        await hear(4 + ALONE_AFTER)
        assert ways == []
        writer.write(publish())
        await hear(5 + ALONE_AFTER)
        assert ways == ["short"]
        assert heard[1:] == [(Kind.REPLY, number) for number in range(1, 5 + ALONE_AFTER)]
        # Gone without a word, right behind what it published: that is stored all the same.
        writer.write(publish())
        writer.close()
        while here.door.sessions:
            await asyncio.sleep(0)
        assert here.site.broker.topic("t").partition(0).messages.synced_offset == 5 + ALONE_AFTER

    serve(tmp_path, work)


def test_what_is_special_or_came_before_takes_the_long_way(tmp_path: Path, ways: Ways) -> None:
    async def work(here: Served) -> None:
        await here.site.broker.create_topic("t", 1)
        transport = await connected(here)
        await warm_up(transport)
        publish: Callable[[Frame], Awaitable[Stored]] = lambda made: transport.publish_frame("t", 0, made)  # noqa: E731
        first = await publish(frame(b"a", Producer(7, 0, 0)))
        assert await publish(frame(b"a", Producer(7, 0, 0))) == first
        second = await publish(frame(b"b", Producer(7, 0, 1)))
        assert second.offset == first.offset + 1
        assert ways == ["short", "long", "short"]
        with pytest.raises(SequenceGap):
            await publish(frame(b"d", Producer(7, 0, 3)))
        ways.clear()
        high = await publish(frame(b"high", priority=1))
        later = await publish(frame(b"later", deliver_at=SystemClock().now_us() + 10_000_000))
        assert (high.offset, later.offset) == (second.offset + 1, second.offset + 2)
        assert ways == ["long", "long"]
        with pytest.raises(InvalidFrame):
            await publish(Frame(memoryview(bytes(200))))
        await transport.close()

    serve(tmp_path, work)


def test_a_consumer_that_waits_hears_of_it(tmp_path: Path, ways: Ways) -> None:
    async def work(here: Served) -> None:
        await here.site.broker.create_topic("t", 1)
        async with here.client() as q, q.consumer("g", "t") as consumer:
            transport = await connected(here)
            await warm_up(transport)
            for _ in range(ALONE_AFTER):
                assert (await anext(consumer)).value == b"warm"
            waiting = asyncio.create_task(anext(consumer))
            await asyncio.sleep(0)
            await transport.publish_frame("t", 0, frame(b"x"))
            assert ways == ["short"]
            assert (await waiting).value == b"x"
            await transport.close()

    serve(tmp_path, work)


def test_a_topic_that_is_synced_later_is_written_the_short_way(tmp_path: Path, ways: Ways) -> None:
    async def work(here: Served) -> None:
        # Not while this is published: meanwhile the log belongs to whoever syncs it.
        settings = TopicSettings(durability="interval", sync_interval_us=1_000_000)
        await here.site.broker.create_topic("t", 1, settings)
        transport = await connected(here)
        await warm_up(transport)
        stored = await transport.publish_frame("t", 0, frame(b"x"))
        assert ways == ["short"]
        log = here.site.broker.topic("t").partition(0).messages
        while log.synced_offset <= stored.offset:
            await asyncio.sleep(0)
        await transport.close()

    serve(tmp_path, work)


def test_a_right_that_is_taken_away_is_missed_by_the_next_one(tmp_path: Path, ways: Ways) -> None:
    access = tmp_path / "access.yaml"
    secret, key = make("ann")

    def allow(operation: str) -> None:
        access.write_text(
            f"keys: [{{id: {key.id!r}, principal: ann, hash: {key.hash!r}}}]\n"
            f"rules: [{{principals: [ann], operations: [{operation}], topics: [t]}}]\n"
        )

    async def work(here: Served) -> None:
        await here.site.broker.create_topic("t", 1)
        transport = await connected(here, secret)
        await warm_up(transport)
        await transport.publish_frame("t", 0, frame(b"x"))
        assert ways == ["short"]
        access.unlink()
        allow("describe")
        await here.door.gate.refresh()
        with pytest.raises(Forbidden):
            await transport.publish_frame("t", 0, frame(b"x"))
        assert ways == ["short"]
        assert here.door.counts.requests["native", "publish", "forbidden"] == 1
        await transport.close()

    allow("publish")
    serve(tmp_path, work, access=access)


@pytest.mark.parametrize(
    ("kind", "error", "is_over"), [("write_at", DiskFull("full"), False), ("sync", DeviceFailed("broken"), True)]
)
def test_what_can_not_be_written_is_told_and_an_unknown_disk_ends_the_broker(
    ways: Ways, kind: str, error: PenstockError, is_over: bool
) -> None:
    fails = False
    broke: list[PenstockError] = []

    def before(operation: Operation) -> Fault | None:
        return Fault(error) if fails and operation.kind == kind else None

    async def work() -> None:
        nonlocal fails
        site = await LocalTransport.open(lambda: FaultyFiles(MemoryFiles(), before), clock=SystemClock(), is_kept=False)
        counts = Counts()
        door = NativeDoor(site, Gate(site, None), counts=counts, broke=broke.append)
        port = await door.open("127.0.0.1", 0)
        await site.broker.create_topic("t", 1)
        transport = await RemoteTransport.to(Place("127.0.0.1", port), SystemClock())
        await warm_up(transport)
        fails = True
        # A broker that ends is a lost one.
        with pytest.raises(ConnectionLost if is_over else type(error)) as told:
            await transport.publish_frame("t", 0, frame(b"x", Producer(7, 0, 0)))
        assert not is_over or told.value.details["code"] == error.code
        assert counts.requests["native", "publish", error.code] == 1
        fails = False
        if is_over:
            with pytest.raises(PenstockError):
                await transport.publish_frame("t", 0, frame(b"x", Producer(7, 0, 0)))
            assert broke
        else:
            stored = await transport.publish_frame("t", 0, frame(b"x", Producer(7, 0, 0)))
            assert stored.offset == ALONE_AFTER
            assert ways == ["short"]
            assert not broke
        await transport.close()
        await door.close()
        if not is_over:
            await site.close()

    async def in_time() -> None:
        async with asyncio.timeout(30):
            await work()

    asyncio.run(in_time())
