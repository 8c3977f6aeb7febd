"""Producers: gathering, compressing, sending again, waiting for room."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs

from client.ways import Run, both_ways
from penstock.client.client import Client
from penstock.client.lane import EPOCH_MAX
from penstock.client.requests import TopicInfo
from penstock.client.sending import Sending
from penstock.client.transport import Stored
from penstock.codec import LZ4, NONE, ZSTD
from penstock.errors import (
    BatchTooLarge,
    ConnectionLost,
    DiskFull,
    InvalidInput,
    InvalidMessage,
    LogClosed,
    Overloaded,
    PartitionNotFound,
    PenstockError,
    TopicNotFound,
    UnknownColumn,
)
from penstock.frame import Frame, Producer
from penstock.limits import KIB, MIB
from penstock.local.transport import LocalTransport
from penstock.message import Message
from penstock.partitioner import partition_of
from penstock.testing import Fault, FaultyFiles, MemoryFiles, Operation, VirtualQueue


class Between:
    """A transport with something in the way of frames."""

    def __init__(self, inner: LocalTransport, lost: Sequence[PenstockError] = ()) -> None:
        self.inner = inner
        self.frames: list[Frame] = []
        self.lost = list(lost)
        self.gate: asyncio.Event | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def publish_frame(self, topic: str, partition: int, frame: Frame, acks: str = "all") -> Stored:
        """The frame gets through, the answer may not."""
        if self.gate is not None:
            await self.gate.wait()
        self.frames.append(frame)
        stored = await self.inner.publish_frame(topic, partition, frame, acks)
        if self.lost:
            raise self.lost.pop(0)
        return stored


def values(queue: VirtualQueue, topic: str = "orders") -> list[bytes | None]:
    return [message.value for message in queue.reader(topic)]


def test_what_is_sent_is_stored_when_the_producer_is_closed(queue: VirtualQueue) -> None:
    with queue.producer("orders", linger="1h") as producer:
        sent = [producer.send(f"{number}", key=f"k{number % 3}") for number in range(100)]
        assert not any(each.done() for each in sent)
    assert values(queue) == [b"%d" % number for number in range(100)]
    assert [each.result().offset for each in sent] == list(range(100))
    assert sent[7].result().id == "orders:0:7"
    with pytest.raises(LogClosed, match="the producer for orders is closed"):
        producer.send(b"too late")


def test_messages_that_follow_each_other_become_one_frame(run_client: Any) -> None:
    ways: list[Between] = []

    def through(transport: LocalTransport) -> Between:
        ways.append(Between(transport))
        return ways[0]

    async def work(client: Client) -> None:
        await client.create_topic("orders", 1)
        async with client.producer("orders", linger="1h", batch_messages=10) as producer:
            for number in range(25):
                await producer.send(b"%d" % number)
        assert [frame.count for frame in ways[0].frames] == [10, 10, 5]
        async with client.producer("orders", linger="1h", batch_bytes=1_000) as producer:
            for _ in range(6):
                await producer.send(b"x" * 400)
        assert [frame.count for frame in ways[0].frames[3:]] == [2, 2, 2]

    run_client(work, through=through)


def test_a_message_waits_for_others_no_longer_than_it_may_linger(queue: VirtualQueue) -> None:
    with queue.producer("orders", linger="1ms") as producer:
        assert producer.send(b"a").result(timeout=30).offset == 0
    with queue.producer("orders", linger="0s") as producer:
        assert producer.send(b"b").result(timeout=30).offset == 1


@pytest.mark.parametrize(("compression", "codec"), [("none", NONE), ("lz4", LZ4), ("zstd", ZSTD)])
def test_frames_are_compressed_on_request(run_client: Any, compression: str, codec: int) -> None:
    ways: list[Between] = []

    def through(transport: LocalTransport) -> Between:
        ways.append(Between(transport))
        return ways[0]

    async def work(client: Client) -> None:
        await client.create_topic("orders", 1)
        async with client.producer("orders", compression=compression) as producer:
            for number in range(100):
                await producer.send(f"order {number} of a hundred", key="k")
        assert {frame.codec for frame in ways[0].frames} == {codec}
        read = [message.value async for message in client.reader("orders")]
        assert read == [f"order {number} of a hundred".encode() for number in range(100)]

    run_client(work, through=through)


def test_a_frame_whose_answer_was_lost_is_sent_again_and_stored_once(run_client: Any) -> None:
    ways: list[Between] = []

    def through(transport: LocalTransport) -> Between:
        ways.append(Between(transport, lost=[Overloaded("the answer was lost"), Overloaded("and again")]))
        return ways[0]

    async def work(client: Client) -> None:
        await client.create_topic("orders", 1)
        async with client.producer("orders") as producer:
            first = await producer.send(b"a")
            assert (await first).offset == 0
            assert (await (await producer.send(b"b"))).offset == 1
        assert [message.value async for message in client.reader("orders")] == [b"a", b"b"]
        sequences = [frame.producer.sequence for frame in ways[0].frames]
        assert sequences == [0, 0, 0, 1]
        assert len({frame.producer.id for frame in ways[0].frames}) == 1

    run_client(work, through=through)


def test_after_giving_up_a_producer_goes_on_in_a_new_life(run_client: Any) -> None:
    ways: list[Between] = []

    def through(transport: LocalTransport) -> Between:
        ways.append(Between(transport, lost=[Overloaded("the answer was lost")]))
        return ways[0]

    async def work(client: Client) -> None:
        await client.create_topic("orders", 1)
        producer = client.producer("orders", retry_for="0s", linger="0s")
        with pytest.raises(Overloaded):
            await (await producer.send(b"a"))
        await (await producer.send(b"b"))
        await producer.close()
        first, second = (frame.producer for frame in ways[0].frames)
        assert (first, second) == (Producer(first.id, 0, 0), Producer(first.id, 1, 0))

    run_client(work, through=through)


def test_a_full_disk_is_tried_again(run_client: Any) -> None:
    faults = 0

    def before(operation: Operation) -> Fault | None:
        nonlocal faults
        if operation.kind == "write" and operation.name.endswith(".log") and faults > 0:
            faults -= 1
            return Fault(DiskFull("no space left"))
        return None

    async def work(client: Client) -> None:
        nonlocal faults
        await client.create_topic("orders", 1)
        faults = 4
        async with client.producer("orders") as producer:
            await producer.send(b"a")
        assert faults == 0
        assert [message.value async for message in client.reader("orders")] == [b"a"]

    run_client(work, files=FaultyFiles(MemoryFiles(), before))


def test_what_could_not_be_stored_is_told_by_its_handle_and_at_the_latest_by_closing(queue: VirtualQueue) -> None:
    producer = queue.producer("orders", linger="1h")
    producer.send(b"", delay="1h")
    queue.change_topic("orders", max_delay="1s")
    sending = producer.send(b"a", delay="1h")
    with pytest.raises(InvalidMessage, match="a delay of 1h is longer than the 1s"):
        producer.flush()
    with pytest.raises(InvalidMessage):
        sending.result()
    producer.send(b"b")
    producer.close()
    assert values(queue) == [b"b"]


def test_whoever_sends_more_than_the_buffer_holds_waits(run_client: Any) -> None:
    ways: list[Between] = []

    def through(transport: LocalTransport) -> Between:
        ways.append(Between(transport))
        return ways[0]

    async def work(client: Client) -> None:
        await client.create_topic("orders", 1)
        gate = ways[0].gate = asyncio.Event()
        producer = client.producer("orders", linger="0s", buffer_bytes=5_000, batch_messages=1)
        sent: list[Sending] = []

        async def send_all() -> None:
            for number in range(50):
                sent.append(await producer.send(b"%03d" % number + bytes(997)))

        sending = asyncio.create_task(send_all())
        # Long enough for everything that needs no room.
        for _ in range(200):
            await asyncio.sleep(0)
        assert len(sent) == 4
        gate.set()
        await sending
        await producer.close()
        assert [(await each).offset for each in sent] == list(range(50))

    run_client(work, through=through)


def test_a_single_message_larger_than_the_buffer_goes_through(queue: VirtualQueue) -> None:
    with queue.producer("orders", buffer_bytes=100) as producer:
        for _ in range(3):
            producer.send(bytes(10_000))
    assert len(values(queue)) == 3


def test_many_threads_may_send_through_one_producer(queue: VirtualQueue) -> None:
    queue.create_topic("events", 4)
    with queue.producer("events", buffer_bytes=20_000, linger="1ms") as producer:

        def send(thread: int) -> None:
            for number in range(200):
                producer.send(f"{thread}-{number}", key=f"thread-{thread}")

        threads = [Thread(target=send, args=[number]) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    by_key: dict[bytes | None, list[bytes | None]] = {}
    for message in queue.reader("events"):
        by_key.setdefault(message.key, []).append(message.value)
    assert by_key == {b"thread-%d" % t: [b"%d-%d" % (t, n) for n in range(200)] for t in range(4)}


def test_a_producer_hears_of_new_partitions(queue: VirtualQueue) -> None:
    with queue.producer("orders") as producer:
        assert producer.send(b"a", key="k").result(30).partition == 0
        queue.change_topic("orders", partitions=5)
        with pytest.raises(PartitionNotFound):
            producer.send(b"x", partition=4)
        producer.send(b"b").result(30)
        assert producer.send(b"c", key="k").result(30).partition == partition_of(b"k", 5)
        assert producer.send(b"d", partition=4).result(30).partition == 4


def test_a_producer_learns_from_one_error_that_its_topic_was_created_again_with_fewer_partitions(
    queue: VirtualQueue,
) -> None:
    queue.create_topic("shrunk", partitions=50)
    with queue.producer("shrunk") as producer:
        producer.send(b"x", partition=49).result(30)
        queue.delete_topic("shrunk")
        queue.create_topic("shrunk", partitions=1)
        with pytest.raises(PartitionNotFound):
            producer.send(b"x", partition=49).result(30)
        for number in range(50):
            assert producer.send(b"x", key=b"%d" % number).result(30).partition == 0


def recreated(queue: VirtualQueue, topic: str, partitions: int) -> None:
    queue.delete_topic(topic)
    queue.create_topic(topic, partitions)


@pytest.mark.parametrize("partitions", [1, 3])
def test_messages_for_partitions_that_are_gone_go_to_others_by_key(queue: VirtualQueue, partitions: int) -> None:
    queue.create_topic("shrunk", partitions=50)
    keys: list[bytes | None] = [*(b"%d" % number for number in range(30)), None]
    with queue.producer("shrunk", linger="1h") as producer:
        producer.send(b"x", partition=49)
        producer.flush()
        recreated(queue, "shrunk", partitions)
        sent = [(key, producer.send(b"%d" % number, key=key)) for number in range(5) for key in keys]
        producer.flush()
        for key, each in sent:
            published = each.result()
            assert key is None or published.partition == partition_of(key, partitions)
            assert (queue.message(published.id).key, "stored as" in repr(each)) == (key, True)
    found = list(queue.reader("shrunk"))
    assert [[each.value for each in found if each.key == key] for key in keys[:-1]] == [
        [b"%d" % number for number in range(5)] for _ in keys[:-1]
    ]
    assert len(found) == len(sent)


def test_a_partition_that_the_caller_has_chosen_is_not_replaced(queue: VirtualQueue) -> None:
    queue.create_topic("shrunk", partitions=4)
    with queue.producer("shrunk", linger="1h") as producer:
        key = next(b"%d" % number for number in range(100) if partition_of(b"%d" % number, 4) == 3)
        producer.send(b"x", partition=0)
        producer.flush()
        recreated(queue, "shrunk", 2)
        free, chosen = producer.send(b"free", key=key), producer.send(b"chosen", key=key, partition=3)
        kept = producer.send(b"kept", key=key, partition=1)
        with pytest.raises(PartitionNotFound, match="0 to 1, and has no 3"):
            producer.flush()
        assert free.result().partition == partition_of(key, 2)
        assert kept.result().partition == 1
        with pytest.raises(PartitionNotFound):
            chosen.result()
        assert "failed" in repr(chosen)


@pytest.mark.parametrize("wait", [True, False])
def test_a_table_for_partitions_that_are_gone_goes_to_others_by_key(queue: VirtualQueue, wait: bool) -> None:
    queue.create_topic("shrunk", partitions=50)
    keys = [b"%d" % number for number in range(100)]
    table = pa.table({"value": keys, "key": keys})
    with queue.producer("shrunk") as producer:
        producer.send_batch(table)
        recreated(queue, "shrunk", 3)
        published = producer.send_batch(table) if wait else producer.send_batch(table, wait=False).result(30)
        for row, key in enumerate(keys):
            stored = queue.message(f"shrunk:{published.partitions[row]}:{published.offsets[row]}")
            assert stored.key == key
            # Its partition may still be there, and it may have been on its way there.
            assert stored.partition in {partition_of(key, 3), partition_of(key, 50)}
        recreated(queue, "shrunk", 1)
        one = pa.table({"value": [b"x"], "key": [next(key for key in keys if partition_of(key, 3) == 2)]})
        assert producer.send_batch(one).partitions.tolist() == [0]
        recreated(queue, "shrunk", 1)
        with pytest.raises(PartitionNotFound):
            producer.send_batch(one, partition=2)


def test_no_message_overtakes_one_of_its_key_that_is_on_its_way_to_a_partition_that_is_gone(run_client: Any) -> None:
    ways: list[Way] = []

    class Way(Between):
        """What goes to one partition is held up."""

        def __init__(self, inner: LocalTransport) -> None:
            super().__init__(inner)
            self.slow, self.open = -1, asyncio.Event()
            ways.append(self)

        async def publish_frame(self, topic: str, partition: int, frame: Frame, acks: str = "all") -> Stored:
            if partition == self.slow:
                await self.open.wait()
            return await super().publish_frame(topic, partition, frame, acks)

    async def work(client: Client) -> None:
        await client.create_topic("shrunk", 8)
        slow, fast = [next(b"%d" % n for n in range(1000) if partition_of(b"%d" % n, 8) == at) for at in (6, 7)]
        producer = client.producer("shrunk", linger="0s")
        await producer.start()
        await client.delete_topic("shrunk")
        await client.create_topic("shrunk", 1)
        [way] = ways
        way.slow = 6
        first = await producer.send(b"1", key=slow)
        other = await producer.send(b"a", key=fast)
        while not any(frame.batch().key for frame in way.frames):
            await asyncio.sleep(0)
        second = await producer.send(b"2", key=slow)
        await asyncio.sleep(0)
        assert not any(each.done() for each in (first, second, other))
        way.open.set()
        assert [(await each).partition for each in (first, second, other)] == [0, 0, 0]
        assert [each.value async for each in client.reader("shrunk") if each.key == slow] == [b"1", b"2"]
        await producer.close()

    run_client(work, through=Way)


def test_a_producer_that_is_closed_while_its_messages_change_partitions_fails_them(run_client: Any) -> None:
    class Stuck(Between):
        async def publish_frame(self, topic: str, partition: int, frame: Frame, acks: str = "all") -> Stored:
            if partition == 6:
                await asyncio.Event().wait()
            return await super().publish_frame(topic, partition, frame, acks)

        async def call(self, request: Any) -> Any:
            if self.frames:
                await asyncio.Event().wait()
            return await self.inner.call(request)

    async def work(client: Client) -> None:
        await client.create_topic("shrunk", 8)
        slow, fast = [next(b"%d" % n for n in range(1000) if partition_of(b"%d" % n, 8) == at) for at in (6, 7)]
        producer = client.producer("shrunk", linger="0s")
        await producer.start()
        await client.delete_topic("shrunk")
        await client.create_topic("shrunk", 1)
        sent = [await producer.send(b"x", key=key) for key in (slow, fast, fast)]
        with pytest.raises(ConnectionLost, match="3 messages are undecided"):
            await producer.close(timeout="100ms")
        for each in sent:
            with pytest.raises(ConnectionLost):
                await each

    run_client(work, through=Stuck)


def test_a_broker_that_does_not_tell_how_many_partitions_there_are_is_asked_for_them(run_client: Any) -> None:
    class Older(Between):
        async def call(self, request: Any) -> Any:
            reply = await self.inner.call(request)
            return structs.replace(reply, count=0) if isinstance(reply, TopicInfo) else reply

    async def work(client: Client) -> None:
        await client.create_topic("orders", 3)
        async with client.producer("orders") as producer:
            assert (await (await producer.send(b"a", partition=2))).partition == 2

    run_client(work, through=lambda transport: Older(transport))


def test_messages_without_a_key_are_spread_parcel_by_parcel(queue: VirtualQueue) -> None:
    queue.create_topic("events", 3)
    with queue.producer("events", batch_messages=2, linger="1h") as producer:
        sent = [producer.send(b"x") for _ in range(6)]
    assert sorted(each.result().partition for each in sent) == [0, 0, 1, 1, 2, 2]


@both_ways
@pytest.mark.parametrize(
    ("count", "size", "options"),
    [
        (1_000, 1, {}),
        (1_000, 100, {"batch_bytes": 5_000}),
        (1_000, 11_000, {}),
        (1_000, 20_000, {"linger": "1s"}),
        (1_000, 20_000, {"compression": "lz4", "batch_messages": 10}),
        (120, 300_000, {"linger": "0s"}),
        (60, 512 * KIB, {"buffer_bytes": MIB}),
    ],
    ids=str,
)
def test_messages_without_a_key_of_any_size_reach_all_partitions_evenly(
    run: Run, tmp_path: Path, count: int, size: int, options: dict[str, Any]
) -> None:
    async def work(client: Client, site: LocalTransport) -> None:
        await client.create_topic("events", 6)
        async with client.producer("events", **options) as producer:
            sent = [await producer.send(b"x" * size) for _ in range(count)]
            counts = Counter([(await each).partition for each in sent])
        assert len(counts) == 6
        assert max(counts.values()) <= 2 * count / 6

    run(tmp_path, work)


# --- tables -------------------------------------------------------------------------------------------------


def test_a_table_is_split_by_key_and_its_places_are_told(queue: VirtualQueue) -> None:
    queue.create_topic("events", 3)
    table = pa.table(
        {"value": [b"%d" % n for n in range(100)], "key": [b"k%d" % (n % 10) if n % 7 else None for n in range(100)]}
    )
    with queue.producer("events", compression="lz4", batch_messages=8) as producer:
        published = producer.send_batch(table)
    for row in range(100):
        stored = queue.message(f"events:{published.partitions[row]}:{published.offsets[row]}")
        assert (stored.value, stored.key) == (table["value"][row].as_py(), table["key"][row].as_py())
        if stored.key is not None:
            assert stored.partition == partition_of(stored.key, 3)


def test_a_table_comes_behind_what_was_sent_before_it(queue: VirtualQueue) -> None:
    with queue.producer("orders", linger="1h") as producer:
        producer.send(b"0")
        assert producer.send_batch(pa.table({"value": [b"1", b"2"]})).offsets.tolist() == [1, 2]
        producer.send(b"3")
        assert producer.send_batch(pa.table({"value": [b"4"]}), partition=0).offsets.tolist() == [4]
    assert values(queue) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("gets_through", [True, False])
def test_a_message_whose_short_way_fails_is_stored_once(run_client: Any, gets_through: bool) -> None:
    async def work(client: Client) -> None:
        await client.create_topic("orders", 1)
        async with client.producer("orders") as producer:
            transport, loop = producer._transport, asyncio.get_running_loop()

            def way(topic: str, partition: int, frame: Frame, acks: str) -> Stored | None:
                """Nobody hears the answer."""
                if gets_through:
                    asyncio.run_coroutine_threadsafe(transport.publish_frame(topic, partition, frame), loop).result()
                return None

            for number in range(3):
                message = Message(b"%d" % number)
                rest = await asyncio.to_thread(producer.stored_at_once, message, None, way)
                assert isinstance(rest, Future)
                assert (await asyncio.wrap_future(rest)).offset == number
        assert [message.value async for message in client.reader("orders")] == [b"0", b"1", b"2"]

    run_client(work)


def test_who_gives_up_what_the_loop_has_taken_over_leaves_the_partition_free(run_client: Any) -> None:
    async def work(client: Client) -> None:
        await client.create_topic("orders", 1)
        async with client.producer("orders") as producer:

            def way(topic: str, partition: int, frame: Frame, acks: str) -> Stored | None:
                return None

            # Nobody waits for it.
            rest = await asyncio.to_thread(producer.stored_at_once, Message(b"first"), None, way)
            assert isinstance(rest, Future)
            assert not rest.cancel()
            assert (await producer.stored(Message(b"second"), None)).offset == 1
            assert rest.result(timeout=0).offset == 0

    run_client(work)


def test_what_comes_during_a_message_on_the_short_way_is_sent_behind_it(run_client: Any) -> None:
    async def work(client: Client) -> None:
        await client.create_topic("orders", 1)
        async with client.producer("orders", linger="0s") as producer:
            transport, loop = producer._transport, asyncio.get_running_loop()

            def way(topic: str, partition: int, frame: Frame, acks: str) -> Stored | None:
                asyncio.run_coroutine_threadsafe(producer.send(b"second"), loop).result()
                # It is busy: the next one has to wait.
                assert producer.stored_at_once(Message(b"third"), None, way) is None
                return asyncio.run_coroutine_threadsafe(transport.publish_frame(topic, partition, frame), loop).result()

            first = await asyncio.to_thread(producer.stored_at_once, Message(b"first"), None, way)
            assert isinstance(first, Stored)
            await producer.flush()
        assert [message.value async for message in client.reader("orders")] == [b"first", b"second"]

    run_client(work)


def test_a_message_that_is_interrupted_on_the_short_way_leaves_the_partition_free(run_client: Any) -> None:
    async def work(client: Client) -> None:
        await client.create_topic("orders", 1)
        async with client.producer("orders") as producer:

            def way(topic: str, partition: int, frame: Frame, acks: str) -> Stored | None:
                raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                producer.stored_at_once(Message(b"first"), None, way)
            assert (await producer.stored(Message(b"second"), None)).offset == 0

    run_client(work)


def test_tables_that_nobody_waits_for_are_stored_in_order(queue: VirtualQueue) -> None:
    with queue.producer("orders") as producer:
        first = producer.send_batch(pa.table({"value": [b"0", b"1"]}), wait=False)
        second = producer.send_batch(pa.table({"value": [b"2"]}), wait=False)
        assert len(first) == 2
        assert second.result().offsets.tolist() == [2]
        assert first.result(timeout=30).offsets.tolist() == [0, 1]
        assert first.done()
        producer.send_batch(pa.table({"value": [b"3"]}), wait=False)
        producer.flush()
        assert values(queue) == [b"0", b"1", b"2", b"3"]
        with pytest.raises(InvalidInput, match="timeout"):
            first.result(timeout=-1)


def test_what_became_of_a_table_that_nobody_waited_for_is_told_by_the_flush(queue: VirtualQueue) -> None:
    producer = queue.producer("orders", retry_for="0s")
    producer.send_batch(pa.table({"value": [b"0"]}))
    queue.delete_topic("orders")
    lost, heard = (producer.send_batch(pa.table({"value": [b"1"]}), wait=False) for _ in range(2))
    with pytest.raises(TopicNotFound):
        heard.result()
    with pytest.raises(TopicNotFound):
        producer.flush()
    producer.flush()
    with pytest.raises(TopicNotFound):
        lost.result()
    producer.close()


def test_a_large_table_is_cut_into_frames_that_fit(queue: VirtualQueue) -> None:
    table = pa.table(
        {
            "value": [bytes(500)] * 12_000,
            "headers": [[{"key": "h", "value": b"x" * 50}]] * 12_000,
            "priority": [1] * 12_000,
        }
    )
    with queue.producer("orders", buffer_bytes=50_000) as producer:
        assert producer.send_batch(table).offsets.tolist() == list(range(12_000))
    assert {message.priority for message in queue.reader("orders")} == {1}


@pytest.mark.parametrize(
    ("table", "error"),
    [
        (pa.table({"value": [b"x"], "colour": ["red"]}), UnknownColumn),
        (pa.table({"key": [b"x"]}), InvalidMessage),
        ([b"x"], InvalidMessage),
        (pa.table({"value": [b"small", b"x" * (1 << 21)]}), BatchTooLarge),
        (pa.table({"value": [b"x"], "deliver_at": [9e18]}), InvalidMessage),
    ],
)
def test_a_table_that_can_not_be_stored_is_refused_as_a_whole(
    queue: VirtualQueue, table: Any, error: type[PenstockError]
) -> None:
    with queue.producer("orders", batch_messages=1) as producer, pytest.raises(error):
        producer.send_batch(table)
    assert values(queue) == []


def test_a_producer_of_a_deleted_topic_fails_and_says_so(queue: VirtualQueue) -> None:
    producer = queue.producer("orders", linger="1h")
    sending = producer.send(b"a")
    queue.delete_topic("orders")
    with pytest.raises(TopicNotFound):
        producer.close()
    with pytest.raises(TopicNotFound):
        sending.result()


def test_a_message_that_the_broker_would_refuse_does_not_take_others_with_it(queue: VirtualQueue) -> None:
    queue.create_topic("soon", partitions=1, max_delay="1h")
    with queue.producer("soon", linger="50ms") as producer:
        producer.send(b"good")
        with pytest.raises(InvalidMessage, match="longer than the 1h that topic soon allows"):
            producer.send(b"bad", delay="2h")
        producer.send(b"too", delay="1h")
    assert sum(part.end_offset for part in queue.topic("soon").partitions) == 2


@pytest.mark.parametrize("column", ["deliver_at", "expires_at"])
@pytest.mark.parametrize("wrong", [5, 1_900_000_000, 1_900_000_000_000])
def test_times_in_a_table_that_can_only_be_seconds_or_milliseconds_are_refused(
    queue: VirtualQueue, column: str, wrong: int
) -> None:
    with queue.producer("orders") as producer, pytest.raises(InvalidMessage, match=f"{column} is microseconds"):
        producer.send_batch(pa.table({"value": [b"a", b"b"], column: [0, wrong]}))


def test_an_error_that_was_heard_is_not_raised_again_at_the_end(queue: VirtualQueue) -> None:
    queue.create_topic("gone", partitions=1)
    with queue.producer("gone", linger="1us") as producer:
        producer.send(b"x").result()
        queue.delete_topic("gone")
        with pytest.raises(TopicNotFound):
            producer.send(b"y").result()
        with pytest.raises(TopicNotFound):
            producer.send_batch(pa.table({"value": [b"z"]}))
        producer.flush()
        producer.send(b"unheard")
        with pytest.raises(TopicNotFound):
            producer.flush()


# --- one message that somebody waits for --------------------------------------------------------------------


def test_one_that_is_waited_for_is_sent_again_and_stored_once(run_client: Any) -> None:
    ways: list[Between] = []

    def through(transport: LocalTransport) -> Between:
        ways.append(Between(transport, lost=[Overloaded("the answer was lost")]))
        return ways[0]

    async def work(client: Client) -> None:
        await client.create_topic("orders", 1)
        producer = client.producer("orders")
        for number in range(2):
            assert (await producer.stored(Message(b"%d" % number, key=b"k"), None)).offset == number
        assert [message.value async for message in client.reader("orders")] == [b"0", b"1"]
        assert [frame.producer.sequence for frame in ways[0].frames] == [0, 0, 1]

    run_client(work, through=through)


def test_those_that_are_waited_for_at_the_same_time_go_together_and_keep_their_order(run_client: Any) -> None:
    ways: list[Between] = []

    def through(transport: LocalTransport) -> Between:
        ways.append(Between(transport))
        return ways[0]

    async def work(client: Client) -> None:
        await client.create_topic("orders", 1)
        producer = client.producer("orders", linger="0s")
        messages = [Message(b"%d" % number, headers=[("n", b"1")] if number % 3 == 0 else []) for number in range(20)]
        stored = await asyncio.gather(*[producer.stored(message, 0) for message in messages])
        assert [one.offset for one in stored] == list(range(20))
        assert [message.value async for message in client.reader("orders")] == [m.value for m in messages]
        assert len(ways[0].frames) < 20
        await producer.close()

    run_client(work, through=through)


def test_giving_up_on_one_leaves_the_partition_to_others_in_a_new_life(run_client: Any) -> None:
    ways: list[Between] = []

    def through(transport: LocalTransport) -> Between:
        ways.append(Between(transport))
        ways[0].gate = asyncio.Event()
        return ways[0]

    async def work(client: Client) -> None:
        await client.create_topic("orders", 1)
        producer = client.producer("orders", linger="0s")
        await producer.start()
        impatient = asyncio.ensure_future(producer.stored(Message(b"a"), 0))
        await asyncio.sleep(0)
        behind = await producer.send(b"b")
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        assert ways[0].gate is not None
        ways[0].gate.set()
        assert (await behind).offset == 0
        await producer.stored(Message(b"c"), 0)
        assert [message.value async for message in client.reader("orders")] == [b"b", b"c"]
        lives = [(frame.producer.epoch, frame.producer.sequence) for frame in ways[0].frames]
        assert lives == [(1, 0), (1, 1)]

    run_client(work, through=through)


def test_one_that_can_not_be_stored_leaves_the_partition_to_others(run_client: Any) -> None:
    async def work(client: Client) -> None:
        await client.create_topic("orders", 1)
        producer = client.producer("orders")
        with pytest.raises(BatchTooLarge):
            await producer.stored(Message(b"x" * (2 << 20)), 0)
        assert (await producer.stored(Message(b"a"), 0)).offset == 0

    run_client(work)


# --- acks and callbacks -------------------------------------------------------------------------------------


def test_without_acks_nobody_waits_and_nothing_is_sent_again(run_client: Any) -> None:
    ways: list[Between] = []

    def through(transport: LocalTransport) -> Between:
        ways.append(Between(transport, lost=[Overloaded("the answer was lost")]))
        ways[0].gate = asyncio.Event()
        return ways[0]

    async def work(client: Client) -> None:
        await client.create_topic("orders", 1)
        producer = client.producer("orders", acks="none", linger="0s", batch_messages=2)
        sent = [await producer.send(b"%d" % number) for number in range(6)]
        assert [(await one).offset for one in sent] == [-1] * 6, "told while the broker has not got any"
        assert ways[0].frames == []
        table = await producer.send_batch(pa.table({"value": [b"6", b"7"]}))
        assert table.offsets.tolist() == [-1, -1]
        assert ways[0].gate is not None
        ways[0].gate.set()
        with pytest.raises(Overloaded, match="the answer was lost"):
            await producer.close()
        assert [message.value async for message in client.reader("orders")] == [b"%d" % number for number in range(8)]
        assert {frame.producer.id for frame in ways[0].frames} == {0}

    run_client(work, through=through)


def test_closing_waits_for_what_is_on_its_way_without_acks(queue: VirtualQueue) -> None:
    with queue.producer("orders", acks="none") as producer:
        for number in range(5_000):
            producer.send(b"%d" % number)
    assert values(queue) == [b"%d" % number for number in range(5_000)]


@pytest.mark.parametrize("acks", ["leader", "all"])
def test_acks_of_one_broker_are_acks_of_all(queue: VirtualQueue, acks: str) -> None:
    with queue.producer("orders", acks=acks) as producer:
        assert producer.send(b"a").result().offset == 0


@pytest.mark.parametrize("acks", ["some", 1, None, ""])
def test_other_acks_are_refused(queue: VirtualQueue, acks: Any) -> None:
    with pytest.raises(InvalidInput, match="acks is all, leader, none"):
        queue.producer("orders", acks=acks)


def test_a_callback_hears_where_each_message_went_and_what_failed(queue: VirtualQueue) -> None:
    told: list[tuple[str, str]] = []

    def note(sending: Sending) -> None:
        try:
            told.append(("stored", sending.result().id))
        except PenstockError as error:
            told.append(("failed", error.code))

    with queue.producer("orders", linger="1h") as producer:
        for number in range(3):
            producer.send(b"%d" % number).add_done_callback(note)
        assert told == []
        producer.flush()
        assert told == [("stored", f"orders:0:{number}") for number in range(3)]
        late = producer.send(b"late")
        queue.delete_topic("orders")
        late.add_done_callback(note)
        # Nothing is raised: the callback has asked, and so heard of it.
        producer.flush()
        late.add_done_callback(note)
        assert told[3:] == [("failed", "topic_not_found")] * 2
        with pytest.raises(InvalidInput):
            late.add_done_callback("print")  # type: ignore[arg-type]


def test_flushing_waits_for_one_that_is_waited_for(run_client: Any) -> None:
    ways: list[Between] = []

    def through(transport: LocalTransport) -> Between:
        ways.append(Between(transport))
        ways[0].gate = asyncio.Event()
        return ways[0]

    async def work(client: Client) -> None:
        await client.create_topic("orders", 1)
        producer = client.producer("orders")
        await producer.start()
        storing = asyncio.ensure_future(producer.stored(Message(b"a"), 0))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(producer.close())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not closing.done()
        assert ways[0].gate is not None
        ways[0].gate.set()
        await closing
        assert (await storing).offset == 0

    run_client(work, through=through)


def test_a_producer_that_has_had_all_its_lives_becomes_another_one(run_client: Any) -> None:
    ways: list[Between] = []

    def through(transport: LocalTransport) -> Between:
        ways.append(Between(transport, lost=[Overloaded("the answer was lost")]))
        return ways[0]

    async def work(client: Client) -> None:
        await client.create_topic("orders", 1)
        producer = client.producer("orders", retry_for="0s")
        await producer.start()
        assert producer._outbox is not None
        producer._outbox.lane(0).epoch = EPOCH_MAX
        with pytest.raises(Overloaded):
            await producer.stored(Message(b"a"), 0)
        await producer.stored(Message(b"b"), 0)
        first, second = (frame.producer for frame in ways[0].frames)
        assert (first.epoch, second.epoch, second.sequence) == (EPOCH_MAX, 0, 0)
        assert first.id != second.id

    run_client(work, through=through)
