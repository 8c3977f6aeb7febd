"""Every public call of the client, with every argument made odd in turn: an error of ours that says so, or no error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import InvalidInput, PenstockError
from penstock.testing import VirtualQueue

NAN, HUGE = float("nan"), 10**30
ODD: list[Any] = [None, [], {}, "x", "", "\ud800", "a:0:" + "9" * 20, -1, 0, 1.5, NAN, True, HUGE, 1 << 63]
ODD += [np.int64(3), b"\xff", object(), print, (1, 2, 3), [None], ["x"], {1: 2}, {"a": None}, {0: ("a", "b")}, {0: 5}]
PAST, FUTURE = "2020-01-01T00:00:00Z", "2100-01-01T00:00:00Z"
WHICH = {"group": "w", "ids": "orders:0:0", "key": "k", "reason": "b", "since": PAST, "until": FUTURE}
FIELDS = {"key": "k", "headers": {"a": "1"}, "ttl": "1d", "priority": "low", "timestamp": PAST}

# A call, and arguments that are right.
CALLS: dict[str, tuple[Callable[..., object], dict[str, Any]]] = {
    "publish": (
        lambda q, **given: q.publish(**given),
        {"topic": "orders", "value": b"x", "partition": 0, "delay": "1s", **FIELDS},
    ),
    "publish at": (lambda q, **given: q.publish("orders", b"x", **given), {"deliver_at": FUTURE}),
    "create_topic": (
        lambda q, name, **given: q.create_topic(name, **given),
        {
            "name": "new",
            "partitions": 1,
            "exist_ok": True,
            "retention": {"hours": 1},
            "cleanup": "delete",
            "max_delay": "1h",
            "tombstone_age": "1h",
            "dead_letters": True,
        },
    ),
    "change_topic": (lambda q, name, **given: q.change_topic(name, **given), {"name": "orders", "partitions": 1}),
    "topic": (lambda q, **given: q.topic(**given), {"name": "orders"}),
    "create_group": (
        lambda q, name, **given: q.create_group(name, **given),
        {
            "name": "new",
            "start": "earliest",
            "visibility": "1s",
            "max_retries": 1,
            "backoff": {"initial": "1s"},
            "ordering": "key",
            "on_poison": "park",
            "assignment": "sticky",
            "lanes": "strict",
            "max_in_flight": 1,
            "session": "1s",
        },
    ),
    "change_group": (lambda q, name, **given: q.change_group(name, **given), {"name": "w", "max_retries": 3}),
    "delete_group": (lambda q, **given: q.delete_group(**given), {"name": "new"}),
    "delete_topic": (lambda q, **given: q.delete_topic(**given), {"name": "new"}),
    "group": (lambda q, **given: q.group(**given), {"name": "w"}),
    "lag": (lambda q, **given: q.lag(**given), {"group": "w"}),
    "seek": (lambda q, **given: q.seek(**given), {"group": "w", "topic": "orders", "to": "earliest", "partition": 0}),
    "seek to time": (lambda q, **given: q.seek("w", "orders", **given), {"time": PAST}),
    "parked_keys": (lambda q, **given: q.parked_keys(**given), {"group": "w"}),
    "release_key": (
        lambda q, **given: q.release_key(**given),
        {"group": "w", "topic": "orders", "key": "k", "partition": 0},
    ),
    "replay": (
        lambda q, topic, **given: q.replay(topic, **given),
        {"topic": "orders", "group": "again", "from_time": PAST, "to_time": FUTURE, "delays": True, "lanes": True},
    ),
    "replay offsets": (lambda q, **given: q.replay("orders", "more", **given), {"offsets": {0: (0, 1)}}),
    "message": (lambda q, **given: q.message(**given), {"id": "orders:0:0"}),
    "trace": (lambda q, **given: q.trace(**given), {"id": "orders:0:0"}),
    "why": (lambda q, **given: q.why(**given), {"id": "orders:0:0", "group": "w"}),
    "state_at": (lambda q, **given: q.state_at(**given), {"group": "w", "topic": "orders", "time": FUTURE}),
    "producer": (
        lambda q, **given: q.producer(**given).close(),
        {
            "topic": "orders",
            "linger": "1s",
            "batch_messages": 1,
            "batch_bytes": 100,
            "buffer_bytes": 1_000,
            "compression": "none",
            "retry_for": "1s",
        },
    ),
    "send": (
        lambda q, **given: q.producer("orders").send(**given).result(30),
        {"value": b"x", "partition": 0, "delay": "1s", **FIELDS},
    ),
    "result": (lambda q, **given: stored(q).result(**given), {"timeout": 30}),
    "send_batch": (
        lambda q, **given: q.producer("orders").send_batch(**given),
        {"table": pa.table({"value": [b"a"]}), "partition": 0},
    ),
    "consumer": (
        lambda q, group, **given: q.consumer(group, **given).poll(1),
        {"group": "w", "topics": ["orders"], "name": "ann", "prefetch": 3, "until_idle": "1s"},
    ),
    "poll": (lambda q, **given: q.consumer("w", "orders").poll(**given), {"max": 1, "wait": "0s"}),
    "run": (
        lambda q, **given: q.consumer("w", "orders", until_idle="0s").run(**given),
        {"handler": lambda message: None, "concurrency": 2},
    ),
    "reader by time": (
        lambda q, **given: list(q.reader(**given)),
        {"topic": "orders", "from_time": PAST, "to_time": FUTURE, "partitions": [0]},
    ),
    "reader by offset": (lambda q, **given: list(q.reader("orders", **given)), {"from_offset": 0, "to_offset": 1}),
    "nack": (lambda q, **given: polled(q).nack(**given), {"delay": "1s", "reason": "busy"}),
    "reject": (lambda q, **given: polled(q).reject(**given), {"reason": "bad"}),
    "extend": (lambda q, **given: polled(q).extend(**given), {"visibility": "1s"}),
    "scheduled.list": (lambda q, **given: q.scheduled.list(**given), {"topic": "orders", "limit": 3}),
    "scheduled.get": (lambda q, **given: q.scheduled.get(**given), {"id": "orders:0:3"}),
    "scheduled.reschedule": (lambda q, **given: q.scheduled.reschedule(**given), {"id": "orders:0:3", "delay": "1h"}),
    "scheduled.reschedule to": (
        lambda q, **given: q.scheduled.reschedule("orders:0:3", **given),
        {"deliver_at": "2024-01-01T00:00:00Z"},
    ),
    "scheduled.deliver_now": (lambda q, **given: q.scheduled.deliver_now(**given), {"id": "orders:0:3"}),
    "scheduled.cancel": (lambda q, **given: q.scheduled.cancel(**given), {"id": "orders:0:3"}),
    "schedules.create": (
        lambda q, **given: q.schedules.create(**given),
        {"name": "s", "topic": "orders", "cron": "@daily", "value": b"x", "timezone": "UTC", "key": "k"},
    ),
    "schedules.delete": (lambda q, **given: q.schedules.delete(**given), {"name": "s"}),
    "dead_letters.list": (
        lambda q, **given: q.dead_letters.list(**given),
        {"topic": "orders", **WHICH, "with_settled": True, "limit": 3},
    ),
    "dead_letters.get": (lambda q, **given: q.dead_letters.get(**given), {"id": "orders.dlq:0:0"}),
    "dead_letters.redrive": (
        lambda q, **given: q.dead_letters.redrive(**given),
        {"topic": "orders", **WHICH, "dry_run": True, "rate": 5.0},
    ),
    "dead_letters.discard": (lambda q, **given: q.dead_letters.discard(**given), {"topic": "orders", **WHICH}),
    "clock.advance": (lambda q, **given: q.clock.advance(**given), {"by": "1s"}),
}


def stored(queue: VirtualQueue) -> Any:
    sending = queue.producer("orders").send(b"x")
    sending.result()
    return sending


def polled(queue: VirtualQueue) -> Any:
    """A message for a group of its own."""
    return queue.consumer(f"g{len(queue.groups())}", "orders").poll(1)[0]


@pytest.fixture
def filled(queue: VirtualQueue) -> VirtualQueue:
    for number in range(3):
        queue.publish("orders", b"%d" % number, key="k")
    queue.publish("orders", b"later", delay="1h")
    with queue.consumer("w", "orders", prefetch=1) as consumer:
        next(consumer).reject("bad")
    return queue


@pytest.mark.parametrize("name", CALLS)
def test_odd_arguments_meet_errors_of_ours_only(filled: VirtualQueue, name: str) -> None:
    call, right = CALLS[name]
    for argument in right:
        for odd in ODD:
            try:
                call(filled, **{**right, argument: odd})
            except PenstockError as error:
                assert error.message, (argument, odd)
                assert len(error.message) < 500, (argument, odd)


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
    ],
)
def test_the_argument_that_is_wrong_is_named(queue: VirtualQueue, call: Callable[[Any], object], argument: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        call(queue)
    assert refused.value.details["argument"] == argument
    assert argument in refused.value.message
