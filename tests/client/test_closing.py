"""Closing while no broker answers: it ends, and says what is undecided."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client import closing
from penstock.client.client import Client
from penstock.errors import ConnectionLost
from penstock.local.transport import LocalTransport


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


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "CLOSE_S", 0.2)
    monkeypatch.setattr(closing, "_UNASKED_S", 0.1)


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
            await consumer.close()
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
            await consumer.close()
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
            await producer.close()
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
        ending = asyncio.ensure_future(producer.close())
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
            await client.close()
        assert transport.asked.count("call") == 6, "each has asked once whether the broker is there"

    run_client(work, through=Silent)
