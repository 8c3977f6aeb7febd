"""`ack_linger`: acknowledgements that are told a moment later, together."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

import pytest

from penstock.client.client import Client
from penstock.errors import InvalidInput, LeaseNotFound, NotLeased
from penstock.testing import VirtualClock, VirtualQueue


@pytest.fixture
def filled(queue: VirtualQueue) -> VirtualQueue:
    for number in range(6):
        queue.publish("orders", b"%d" % number, key="k")
    return queue


def lag(queue: VirtualQueue) -> int:
    return sum(queue.lag("w")["orders"])


def test_acknowledgements_wait_for_one_another_until_they_are_flushed(filled: VirtualQueue) -> None:
    consumer = filled.consumer("w", "orders", ack_linger="1h")
    for message in consumer.poll(4):
        message.ack()
    assert lag(filled) == 6
    consumer.flush()
    assert lag(filled) == 2


def test_they_are_told_when_their_time_is_over(filled: VirtualQueue) -> None:
    consumer = filled.consumer("w", "orders", ack_linger="1us")
    for message in consumer.poll(6):
        message.ack()
    deadline = monotonic() + 60
    while lag(filled) and monotonic() < deadline:
        consumer.poll(1)
    assert lag(filled) == 0


def test_closing_tells_them(filled: VirtualQueue) -> None:
    with filled.consumer("w", "orders", ack_linger="1h") as consumer:
        for message in consumer.poll(5):
            message.ack()
    assert lag(filled) == 1
    assert [message.value for message in filled.consumer("w", "orders").poll()] == [b"5"]


def test_closing_tells_them_though_the_consumer_has_left_because_it_was_idle(filled: VirtualQueue) -> None:
    with filled.consumer("w", "orders", ack_linger="1h", until_idle="300ms") as consumer:
        messages = list(consumer)
        for message in messages:
            message.ack()
    assert len(messages) == 6
    assert lag(filled) == 0


def test_another_answer_does_not_overtake_them(filled: VirtualQueue) -> None:
    consumer = filled.consumer("w", "orders", ack_linger="1h", ordering="key")
    first, second, *_ = consumer.poll(6)
    first.ack()
    second.nack("0s")
    assert lag(filled) == 5
    assert [message.value for message in consumer.poll(6)] == [b"1", b"2", b"3", b"4", b"5"]


def test_what_went_wrong_is_raised_by_the_next_one_or_by_flush(filled: VirtualQueue, clock: VirtualClock) -> None:
    consumer = filled.consumer("w", "orders", ack_linger="1h", visibility="10s")
    first, second, third, *_ = consumer.poll(6)
    first.ack()
    clock.advance("11s")
    with pytest.raises(LeaseNotFound, match="orders:0:0"):
        consumer.flush()
    consumer.flush()
    second.ack()
    with pytest.raises(LeaseNotFound):
        third.nack()
    with pytest.raises(LeaseNotFound, match="orders:0:1"):
        consumer.flush()


def test_a_lease_that_is_kept_does_not_hear_of_another_one_s_failure(filled: VirtualQueue, clock: VirtualClock) -> None:
    consumer = filled.consumer("w", "orders", ack_linger="1h", visibility="10s", prefetch=3)
    next(consumer).ack()
    clock.advance("11s")
    # The lease of the first three is over, and with it the acknowledgement that was not told.
    assert next(consumer).value == b"0"
    clock.advance("6s")
    assert next(consumer).value == b"1"
    with pytest.raises(LeaseNotFound, match="orders:0:0"):
        consumer.flush()


def test_acknowledging_twice_is_an_error_here_too(filled: VirtualQueue) -> None:
    consumer = filled.consumer("w", "orders", ack_linger="1h")
    first, *_ = consumer.poll(6)
    first.ack()
    for _ in range(2):
        with pytest.raises(NotLeased, match="orders:0:0"):
            first.ack()
        consumer.flush()


def test_a_linger_is_a_duration(queue: VirtualQueue) -> None:
    with pytest.raises(InvalidInput, match="ack_linger"):
        queue.consumer("w", "orders", ack_linger="soon")


def test_an_ack_that_raises_the_failure_of_another_was_given_itself(filled: VirtualQueue, clock: VirtualClock) -> None:
    consumer = filled.consumer("w", "orders", ack_linger="1us", visibility="30s", prefetch=1)
    (late,) = consumer.poll(1)
    clock.advance("20s")
    (message,) = consumer.poll(1)
    clock.advance("15s")
    late.ack()
    deadline = monotonic() + 60
    while message.lease.acks.failure is None and monotonic() < deadline:  # type: ignore[union-attr]
        consumer.poll(1)
    with pytest.raises(LeaseNotFound):
        message.ack()
    assert message.answered is not None
    assert not message.is_held
    with pytest.raises(NotLeased):
        message.nack()


@pytest.mark.parametrize("turns", range(6))
def test_a_flush_that_is_cancelled_loses_no_acknowledgement(run_client: Any, turns: int) -> None:
    async def work(client: Client) -> None:
        await client.create_topic("orders", 1)
        for number in range(4):
            await client.publish("orders", b"%d" % number)
        consumer = client.consumer("w", "orders", ack_linger="1h")
        for message in await consumer.poll(wait="5s"):
            await message.ack()
        cancelled, other = asyncio.ensure_future(consumer.flush()), asyncio.ensure_future(consumer.flush())
        for _ in range(turns):
            await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        await other
        await consumer.flush()
        assert await client.lag("w") == {"orders": [0]}
        await consumer.close()

    run_client(work)
