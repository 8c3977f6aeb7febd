"""`ack_linger`: acknowledgements that are told a moment later, together."""

from __future__ import annotations

from time import monotonic

import pytest

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
    deadline = monotonic() + 20
    while lag(filled) and monotonic() < deadline:
        consumer.poll(1)
    assert lag(filled) == 0


def test_closing_tells_them(filled: VirtualQueue) -> None:
    with filled.consumer("w", "orders", ack_linger="1h") as consumer:
        for message in consumer.poll(5):
            message.ack()
    assert lag(filled) == 1
    assert [message.value for message in filled.consumer("w", "orders").poll()] == [b"5"]


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
