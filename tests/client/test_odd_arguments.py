"""Errors name the argument that is wrong. `tests/odd` tries all arguments of all calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import InvalidInput
from penstock.testing import VirtualQueue

NAN = float("nan")
PAST = "2020-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda q: q.publish("orders", b"", delay=5), "delay"),
        (lambda q: q.publish("orders", b"", deliver_at="soon"), "deliver_at"),
        (lambda q: q.publish("orders", b"", ttl=[]), "ttl"),
        (lambda q: q.publish("orders", b"", timestamp=1.5), "timestamp"),
        (lambda q: q.publish("orders", b"", partition="0"), "partition"),
        (lambda q: q.producer("orders", linger=5), "linger"),
        (lambda q: q.producer("orders", batch_messages=NAN), "batch_messages"),
        (lambda q: q.consumer("w", "orders", prefetch=True), "prefetch"),
        (lambda q: q.consumer("w", "orders", until_idle=-1), "until_idle"),
        (lambda q: q.consumer("w", "orders").poll("5"), "max"),
        (lambda q: q.consumer("w", "orders").poll(wait=1), "wait"),
        (lambda q: q.consumer("w", "orders", until_idle="0s").run(print, True), "concurrency"),
        (lambda q: q.reader("orders", from_time=7), "from_time"),
        (lambda q: q.replay("orders", "r", offsets=5), "offsets"),
        (lambda q: q.replay("orders", "r", from_time=PAST, delays="no"), "delays"),
        (lambda q: q.create_topic("orders", exist_ok="yes"), "exist_ok"),
        (lambda q: q.dead_letters.redrive("orders", dry_run="no"), "dry_run"),
        (lambda q: q.dead_letters.list("orders", since=5), "since"),
        (lambda q: q.dead_letters.list("orders", limit=0), "limit"),
        (lambda q: q.state_at("w", "orders", "then"), "time"),
        (lambda q: q.scheduled.reschedule("orders:0:0", delay=1), "delay"),
        (lambda q: q.dead_letters.redrive("orders", rate=5e-324), "rate"),
    ],
)
def test_the_argument_that_is_wrong_is_named(queue: VirtualQueue, call: Callable[[Any], object], argument: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        call(queue)
    assert refused.value.details["argument"] == argument
    assert argument in refused.value.message
