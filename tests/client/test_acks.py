"""How much a producer waits for, and what it hears if that is nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.client.client import Client
from penstock.client.transport import Stored
from penstock.client.unheard import FRAMES_MAX
from penstock.errors import ConnectionLost, InvalidInput, Overloaded, PenstockError, SequenceGap
from penstock.frame import Frame
from penstock.local.transport import LocalTransport
from penstock.testing import VirtualQueue


class Broker:
    """Between client and broker: it holds frames as long as `gate` is shut, and refuses some."""

    def __init__(self, inner: LocalTransport, refused: Sequence[PenstockError] = ()) -> None:
        self.inner = inner
        self.refused = list(refused)
        self.asked: list[tuple[Frame, str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.came = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def publish_frame(self, topic: str, partition: int, frame: Frame, acks: str = "all") -> Stored:
        self.asked.append((frame, acks))
        self.came.set()
        await self.gate.wait()
        if self.refused:
            raise self.refused.pop(0)
        return await self.inner.publish_frame(topic, partition, frame, acks)


@pytest.fixture
def broker(run_client: Any) -> Any:
    """Runs `work(client, broker)`."""

    def run(work: Any, refused: Sequence[PenstockError] = ()) -> None:
        made: list[Broker] = []

        def through(transport: LocalTransport) -> Broker:
            made.append(Broker(transport, refused))
            return made[0]

        async def main(client: Client) -> None:
            await client.create_topic("orders", 1)
            async with asyncio.timeout(30):
                await work(client, made[0])

        run_client(main, through=through)

    return run


async def values(client: Client) -> list[bytes | None]:
    return [message.value async for message in client.reader("orders")]


@pytest.mark.parametrize("acks", ["all", "leader", "none"])
def test_the_broker_hears_what_the_producer_wants(broker: Any, acks: str) -> None:
    async def work(client: Client, at: Broker) -> None:
        async with client.producer("orders", acks=acks) as producer:
            told = await (await producer.send(b"a"))
            await producer.flush()
        assert told.offset == (-1 if acks == "none" else 0)
        assert [acks for _, acks in at.asked] == [acks]
        assert bool(at.asked[0][0].producer.id) == (acks != "none"), "what is sent once needs no identity"

    broker(work)


@pytest.mark.parametrize("acks", ["all", "leader"])
def test_one_message_has_acks_too(queue: VirtualQueue, acks: str) -> None:
    assert queue.publish("orders", b"a", acks=acks).offset == 0


@pytest.mark.parametrize("acks", ["none", "some", None, 1])
def test_one_message_is_waited_for(queue: VirtualQueue, acks: Any) -> None:
    with pytest.raises(InvalidInput, match=r"acks is all or leader, not .* only a producer can do with none"):
        queue.publish("orders", b"a", acks=acks)
    assert list(queue.reader("orders")) == []


# --- none ---------------------------------------------------------------------------------------------------


def test_without_acks_no_more_frames_are_under_way_than_may_be_and_they_stay_in_order(broker: Any) -> None:
    async def work(client: Client, at: Broker) -> None:
        at.gate.clear()
        producer = client.producer("orders", acks="none", linger="0s", batch_messages=1)
        sent = [await producer.send(b"%d" % number) for number in range(3 * FRAMES_MAX)]
        assert (await sent[FRAMES_MAX - 1]).offset == -1
        while len(at.asked) < FRAMES_MAX:
            at.came.clear()
            await at.came.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(at.asked) == FRAMES_MAX
        assert not sent[FRAMES_MAX].done()
        at.gate.set()
        await producer.close()
        assert await values(client) == [b"%d" % number for number in range(3 * FRAMES_MAX)]

    broker(work)


def test_without_acks_whoever_sends_more_than_the_buffer_holds_waits(broker: Any) -> None:
    async def work(client: Client, at: Broker) -> None:
        at.gate.clear()
        producer = client.producer("orders", acks="none", linger="0s", buffer_bytes=10_000, batch_bytes=1_000)

        async def send_all() -> None:
            for number in range(100):
                await producer.send(b"%d" % number + bytes(1_000))

        sending = asyncio.ensure_future(send_all())
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert not sending.done()
        under_way = sum(len(frame.data) for frame, _ in at.asked)
        assert 0 < under_way <= 10_000
        at.gate.set()
        await sending
        await producer.close()
        assert [value and value.rstrip(b"\0") for value in await values(client)] == [b"%d" % n for n in range(100)]

    broker(work)


def test_without_acks_what_went_wrong_is_logged_and_raised_once_by_the_next_flush(
    broker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(client: Client, at: Broker) -> None:
        producer = client.producer("orders", acks="none", linger="0s", batch_messages=1)
        with caplog.at_level(logging.WARNING, "penstock.client"):
            for number in range(4):
                assert (await (await producer.send(b"%d" % number))).offset == -1
            with pytest.raises(ConnectionLost, match="first"):
                await producer.flush()
        assert "frames to orders, with acks=none, may be lost: first" in caplog.text
        await producer.flush()
        at.refused.append(Overloaded("third"))
        await producer.send(b"4")
        with pytest.raises(Overloaded, match="third"):
            await producer.close()
        assert await values(client) == [b"2", b"3"]

    broker(work, [ConnectionLost("first"), Overloaded("second")])


# --- leader -------------------------------------------------------------------------------------------------


def test_a_new_leader_that_lacks_what_was_told_takes_the_rest_and_that_is_logged(
    broker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(client: Client, at: Broker) -> None:
        async with client.producer("orders", acks="leader", linger="0s") as producer:
            await (await producer.send(b"0"))
            at.refused.append(SequenceGap("producer 7 sent 1, 0 was due"))
            with caplog.at_level(logging.WARNING, "penstock.client"):
                assert (await (await producer.send(b"1"))).offset == 1
            at.refused.append(SequenceGap("producer 8 sent 1, 0 was due"))
            message = producer.compose(b"2", {})
            assert (await producer.stored(message, None)).offset == 2
        assert caplog.text.count("were lost with their leader") == 2
        assert await values(client) == [b"0", b"1", b"2"]
        assert [frame.producer.epoch for frame, _ in at.asked] == [0, 0, 1, 1, 2], "each is a new life of the producer"

    broker(work)


def test_on_the_short_way_it_goes_on_as_well(broker: Any) -> None:
    async def work(client: Client, at: Broker) -> None:
        loop = asyncio.get_running_loop()

        def way(topic: str, partition: int, frame: Frame, acks: str) -> Stored | None:
            publishing = at.publish_frame(topic, partition, frame, acks)
            return asyncio.run_coroutine_threadsafe(publishing, loop).result()

        async with client.producer("orders", acks="leader") as producer:
            for number, gaps in enumerate((0, 2)):
                at.refused += [SequenceGap("a gap")] * gaps
                message = producer.compose(b"%d" % number, {})
                outcome = await asyncio.to_thread(producer.stored_at_once, message, None, way)
                stored = outcome if isinstance(outcome, Stored) else await asyncio.wrap_future(outcome)  # type: ignore[arg-type]
                assert stored.offset == number
        assert await values(client) == [b"0", b"1"]

    broker(work)


def test_with_all_acks_a_gap_is_an_error(broker: Any) -> None:
    async def work(client: Client, at: Broker) -> None:
        producer = client.producer("orders")
        sending = await producer.send(b"0")
        with pytest.raises(SequenceGap):
            await sending
        assert (await (await producer.send(b"1"))).offset == 0
        await producer.close()

    broker(work, [SequenceGap("a gap")])
