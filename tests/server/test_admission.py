"""What clients occupy before the broker knows them, or before their request is there: without a network."""

from __future__ import annotations

import logging

import pytest

from penstock.limits import MIB, Limits
from penstock.server.admission import (
    HELD_FACTOR,
    LOG_INTERVAL_S,
    PARTIAL_PATIENCE_S,
    LimitLog,
    PartialRequest,
    PartialRequests,
    Strangers,
)


class Client:
    def __init__(self) -> None:
        self.evicted: list[str] = []
        self.is_read = True

    def evict(self, reason: str) -> None:
        self.evicted.append(reason)

    def pause(self) -> None:
        assert self.is_read
        self.is_read = False

    def resume(self) -> None:
        assert not self.is_read
        self.is_read = True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _begun(requests: PartialRequests, count: int) -> list[tuple[Client, PartialRequest]]:
    clients = [Client() for _ in range(count)]
    return [(client, requests.begin(client, client.pause, client.resume)) for client in clients]


def test_the_oldest_stranger_makes_way_and_authenticated_clients_do_not() -> None:
    strangers = Strangers(Limits(strangers_max=2))
    first, second, third, fourth = clients = [Client() for _ in range(4)]
    strangers.add(first)
    strangers.discard(first)
    for client in (second, third, fourth):
        strangers.add(client)
    assert [bool(client.evicted) for client in clients] == [False, True, False, False]
    strangers.discard(second)
    assert len(strangers) == 2


def test_a_limit_that_is_reached_a_thousand_times_is_logged_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    limit = LimitLog(clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(1_000):
            limit.reached("full")
        clock.now += LOG_INTERVAL_S
        limit.reached("full")
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["1)", "1000)"]


def test_beyond_the_budget_only_the_oldest_request_is_read() -> None:
    requests = PartialRequests(bytes_max=10 * MIB)
    (old, oldest), (middle, second), (new, third) = _begun(requests, 3)
    for request in (oldest, second, third):
        requests.grow(request, 4 * MIB)
    assert (old.is_read, middle.is_read, new.is_read) == (True, True, False)
    requests.grow(oldest, 5 * MIB)
    requests.grow(second, 5 * MIB)
    assert (old.is_read, middle.is_read, new.is_read) == (True, False, False)
    # One after the other goes on, in the order in which they began.
    requests.end(oldest)
    assert (middle.is_read, new.is_read) == (True, False)
    requests.grow(second, 6 * MIB)
    assert new.is_read
    requests.end(second)
    requests.end(third)
    assert requests.size == 0


def test_a_connection_that_ends_lets_the_oldest_of_the_others_go_on() -> None:
    requests = PartialRequests(bytes_max=MIB)
    (_, oldest), (middle, second), (new, third) = _begun(requests, 3)
    for request in (oldest, second, third):
        requests.grow(request, MIB)
    requests.end(oldest)
    requests.end(oldest)
    assert (middle.is_read, new.is_read) == (True, False), "still beyond the budget"


def test_senders_that_stall_are_closed_only_while_others_wait() -> None:
    clock = Clock()
    requests = PartialRequests(bytes_max=10 * MIB, now=clock)
    (stalled, first), (slow, second) = _begun(requests, 2)
    requests.grow(first, 6 * MIB)
    requests.grow(second, 3 * MIB)
    clock.now = 60.0
    requests.check()
    assert not stalled.evicted
    assert not slow.evicted
    ((waiting, third),) = _begun(requests, 1)
    requests.grow(third, 2 * MIB)
    assert not waiting.is_read
    clock.now += PARTIAL_PATIENCE_S
    requests.check()
    assert stalled.evicted
    assert slow.evicted
    assert waiting.is_read
    assert not waiting.evicted
    assert requests.size == 2 * MIB


def test_a_sender_that_was_paused_is_not_taken_for_one_that_stalls() -> None:
    clock = Clock()
    requests = PartialRequests(bytes_max=MIB, now=clock)
    (_, first), (paused, second), (_, third) = _begun(requests, 3)
    for request in (first, second, third):
        requests.grow(request, MIB)
    clock.now = 60.0
    requests.end(first)
    requests.check()
    assert paused.is_read
    assert not paused.evicted


def test_beyond_a_multiple_of_the_budget_senders_are_closed() -> None:
    requests = PartialRequests(bytes_max=MIB)
    begun = _begun(requests, 100)
    for _, request in begun:
        requests.grow(request, MIB // 8)
    assert requests.size <= HELD_FACTOR * MIB + MIB // 8
    assert [bool(client.evicted) for client, _ in begun] == [False] * 32 + [True] * 68
    for _, request in begun:
        requests.end(request)
    assert requests.size == 0
