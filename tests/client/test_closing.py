"""Closing while no broker answers: it ends, and says what is undecided."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock
from broker_process import broker_process
from penstock.client.client import Client
from penstock.errors import ConnectionLost, InvalidInput
from penstock.local.transport import LocalTransport
from penstock.testing import VirtualQueue


class Silent:
    """Passes everything on, and answers nothing any more of what `is_lost` says."""

    def __init__(self, transport: LocalTransport) -> None:
        self._transport = transport
        self.is_lost: Callable[[str], bool] = lambda name: False
        self.is_back = asyncio.Event()
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._transport, name)
        if not asyncio.iscoroutinefunction(method) or name == "close":
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.asked.append(name)
            if self.is_lost(name):
                await self.is_back.wait()
            return await method(*args, **kwargs)

        return call


def gone(name: str) -> bool:
    return True


def silent(client: Client) -> Silent:
    transport: Any = client._transport
    return transport  # type: ignore[no-any-return]


async def topic_with_messages(client: Client) -> None:
    await client.create_topic("orders", partitions=1)
    for number in range(5):
        await client.publish("orders", b"%d" % number)


def test_a_consumer_is_closed_without_its_broker_and_says_what_is_undecided(run_client: Any, caplog: Any) -> None:
    async def work(client: Client) -> None:
        await topic_with_messages(client)
        consumer = client.consumer("g", "orders", ack_linger="1h")
        for _ in range(3):
            await (await anext(consumer)).ack()
        silent(client).is_lost = gone
        with pytest.raises(ConnectionLost, match="3 acknowledgements are undecided") as raised:
            await consumer.close(timeout="200ms")
        assert raised.value.details["undecided"] == 3
        assert "3 acknowledgements are undecided" in caplog.text

    run_client(work, through=Silent)


@pytest.mark.parametrize("step", ["answer", "leave"])
def test_no_step_of_closing_a_consumer_waits_for_ever(run_client: Any, step: str) -> None:
    async def work(client: Client) -> None:
        await topic_with_messages(client)
        consumer = client.consumer("g", "orders")
        await anext(consumer)
        silent(client).is_lost = lambda name: name in (step, "call")
        with pytest.raises(ConnectionLost):
            await consumer.close(timeout="200ms")
        assert consumer.membership.is_closed

    run_client(work, through=Silent)


@pytest.mark.parametrize("acks", ["all", "none"])
def test_a_producer_is_closed_without_its_broker_and_says_what_is_undecided(run_client: Any, acks: str) -> None:
    async def work(client: Client) -> None:
        await topic_with_messages(client)
        producer = client.producer("orders", linger="0s", batch_messages=2, acks=acks)
        await producer.start()
        silent(client).is_lost = gone
        sent = [await producer.send(b"%d" % number) for number in range(5)]
        with pytest.raises(ConnectionLost, match="5 messages are undecided") as raised:
            await producer.close(timeout="200ms")
        assert raised.value.details["undecided"] == 5
        if acks == "all":
            for each in sent:
                with pytest.raises(ConnectionLost):
                    await each

    run_client(work, through=Silent)


def test_a_broker_that_answers_is_waited_for(run_client: Any) -> None:
    async def work(client: Client) -> None:
        await topic_with_messages(client)
        producer = client.producer("orders", linger="0s")
        await producer.start()
        transport = silent(client)
        transport.is_lost = lambda name: name == "publish_frame"
        sending = await producer.send(b"slow")
        transport.asked.clear()
        ending = asyncio.ensure_future(producer.close(timeout="200ms"))
        # As often as it would have been given up, if nothing had been answered.
        while transport.asked.count("call") < 3:
            await asyncio.sleep(0.01)
        transport.is_back.set()
        await ending
        assert (await sending).offset == 5

    run_client(work, through=Silent)


def test_a_client_closes_all_it_has_at_the_same_time(run_client: Any) -> None:
    async def work(client: Client) -> None:
        await topic_with_messages(client)
        transport = silent(client)
        consumers = [client.consumer(f"g{number}", "orders") for number in range(3)]
        for consumer in consumers:
            await anext(consumer)
        producers = [client.producer("orders", linger="1h") for _ in range(3)]
        for producer in producers:
            await producer.send(b"x")
        transport.is_lost = gone
        transport.asked.clear()
        with pytest.raises(ConnectionLost, match="1 messages are undecided"):
            await client.close(timeout="200ms")
        assert transport.asked.count("call") == 6, "each has asked once whether the broker is there"

    run_client(work, through=Silent)


def test_a_timeout_that_is_no_duration_closes_nothing(run_client: Any, queue: VirtualQueue) -> None:
    async def work(client: Client) -> None:
        await client.create_topic("orders", partitions=1)
        producer, consumer = client.producer("orders"), client.consumer("g", "orders")
        for one in (producer, consumer, client):
            with pytest.raises(InvalidInput, match="timeout"):
                await one.close(timeout=5)  # type: ignore[arg-type]
        await (await producer.send(b"x"))
        assert (await anext(consumer)).value == b"x"

    run_client(work)
    with pytest.raises(InvalidInput, match="timeout"):
        queue.close(timeout=5)  # type: ignore[arg-type]
    assert queue.topics() is not None


def test_everything_of_the_blocking_client_is_closed_with_a_timeout(tmp_path: Path) -> None:
    """The broker stands still: it keeps its connections, and answers nothing."""
    with broker_process(tmp_path) as broker:
        q = penstock.connect(broker.address)
        q.create_topic("orders", partitions=1)
        producer, consumer = q.producer("orders", linger="1h"), q.consumer("g", "orders")
        q.publish("orders", b"x")
        next(consumer)
        producer.send(b"x")
        broker.process.send_signal(signal.SIGSTOP)
        try:
            for one in (producer, consumer):
                with pytest.raises(ConnectionLost, match=r"no answer for 0\.2 s"):
                    one.close(timeout="200ms")
            q.close(timeout=timedelta(milliseconds=200))
        finally:
            broker.process.send_signal(signal.SIGCONT)
