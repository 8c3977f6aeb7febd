"""Acknowledgements of several leases are told together, and what is wrong with one of them is wrong with that one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from pyroaring import BitMap64

from penstock.client.answers import Ack, Answer
from penstock.client.lease import Lease
from penstock.client.transport import Receipt, Terms
from penstock.errors import ConnectionLost, LeaseError, LeaseNotFound, NotCommitted, NotLeased, PenstockError
from penstock.testing import VirtualClock, VirtualQueue


class Told:
    """A transport that notes what it is told, and says what it was given to say."""

    def __init__(self, *outcomes: PenstockError | Sequence[LeaseError | None]) -> None:
        self.together: list[list[tuple[int, list[int]]]] = []
        self.alone: list[tuple[int, list[int], Answer]] = []
        self._outcomes = list(outcomes)

    def monotonic_us(self) -> int:
        return 0

    async def ack_all(self, group: str, topic: str, partition: int, leases: Any, *, again: bool = False) -> Any:
        assert (group, topic, partition, again) == ("g", "t", 3, False)
        self.together.append([(lease, list(offsets)) for lease, offsets in leases])
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, PenstockError):
            raise outcome
        return outcome

    async def answer(self, group: str, receipt: Receipt, answer: Answer) -> None:
        self.alone.append((receipt.lease, list(receipt.offsets), answer))


def leases(transport: Told, count: int) -> list[Lease]:
    terms = Terms("none", "park", "strict")
    return [Lease(transport, "g", terms, "t", 3, number, 10**9) for number in range(count)]  # type: ignore[arg-type]


def ack(given: Sequence[tuple[Lease, list[int]]]) -> list[str]:
    """Codes of what went wrong."""
    failures = asyncio.run(Lease.ack_all([(lease, BitMap64(offsets)) for lease, offsets in given]))
    return [failure.code for failure in failures if failure is not None]


def test_all_are_told_at_once_and_answered_for_then() -> None:
    transport = Told([None, None])
    first, second = leases(transport, 2)

    assert ack([(first, [1, 2]), (second, [5])]) == []

    assert (transport.together, transport.alone) == ([[(0, [1, 2]), (1, [5])]], [])
    for lease, offset in ((first, 2), (second, 5)):
        with pytest.raises(NotLeased):
            asyncio.run(lease.answer((), BitMap64([offset]), Ack()))


def test_a_lease_that_is_over_does_not_keep_the_others_from_being_told() -> None:
    transport = Told([None, LeaseNotFound("over")])
    first, second = leases(transport, 2)

    failures = asyncio.run(Lease.ack_all([(first, BitMap64([1])), (second, BitMap64([5, 6]))]))

    none, failure = failures
    assert none is None
    assert isinstance(failure, LeaseNotFound)
    assert (failure.message, failure.details["ids"]) == ("over: t:3:5, t:3:6", ["t:3:5", "t:3:6"])
    assert (first.is_over, second.is_over) == (False, True)


def test_if_nobody_knows_what_was_told_each_is_told_again_as_that() -> None:
    transport = Told(ConnectionLost("gone"))
    first, second = leases(transport, 2)

    assert ack([(first, [1]), (second, [5])]) == []

    assert transport.alone == [(0, [1], Ack(again=True)), (1, [5], Ack(again=True))]


def test_one_whose_outcome_is_not_known_is_told_by_itself_and_as_said_before_the_next_time() -> None:
    transport = Told(NotCommitted("late"), [None])
    first, second = leases(transport, 2)
    assert ack([(first, [1]), (second, [5])]) == ["not_committed", "not_committed"]
    assert transport.alone == []

    assert ack([(first, [1]), (second, [6])]) == []

    assert transport.together[1:] == [[(1, [6])]]
    assert transport.alone == [(0, [1], Ack(again=True))]


def test_what_was_answered_for_already_is_refused_without_a_word() -> None:
    transport = Told([None, None], [None])
    first, second = leases(transport, 2)
    ack([(first, [1]), (second, [5])])

    assert ack([(first, [1]), (second, [6])]) == ["not_leased"]

    assert transport.together[1:] == [[(1, [6])]]
    assert transport.alone == []


def test_a_consumer_that_gathers_tells_all_its_leases_of_a_partition_in_one_row(queue: VirtualQueue) -> None:
    for number in range(6):
        queue.publish("orders", b"%d" % number)
    consumer = queue.consumer("w", "orders", ack_linger="1h")
    for _ in range(6):
        for message in consumer.poll(1):
            message.ack()

    consumer.flush()

    assert queue.lag("w") == {"orders": [0]}
    deliveries = queue._transport.broker.topic("orders").partition(0).groups
    rows = [frame for frame in deliveries.log.frames(0) if frame.count]
    assert sum(frame.count for frame in rows) <= 8, "one for all acknowledgements, beside those of the leases"
    assert "ACKNOWLEDGED" in [step.what for step in queue.trace("orders:0:3").steps]


def test_of_several_leases_those_that_are_over_are_named_and_the_others_done(
    queue: VirtualQueue, clock: VirtualClock
) -> None:
    for number in range(4):
        queue.publish("orders", b"%d" % number)
    consumer = queue.consumer("w", "orders", ack_linger="1h", visibility="10s")
    old = consumer.poll(2)
    for message in old:
        message.ack()
    clock.advance("11s")
    for message in consumer.poll(4):
        message.ack()

    with pytest.raises(LeaseNotFound, match="orders:0:0"):
        consumer.flush()

    assert queue.lag("w") == {"orders": [0]}
