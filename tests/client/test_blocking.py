"""The blocking client is the async one, method by method."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from penstock.client import blocking, client, consumer, dead_letters, deliveries, later, producer, reader, received

TWINS = [
    (client.Client, blocking.Client),
    (consumer.Consumer, blocking.Consumer),
    (producer.Producer, blocking.Producer),
    (reader.Reader, blocking.Reader),
    (received.Received, blocking.Received),
    (received.ReceivedBatch, blocking.ReceivedBatch),
    (later.ScheduledMessages, blocking.ScheduledMessages),
    (later.Schedules, blocking.Schedules),
    (dead_letters.DeadLetters, blocking.DeadLetters),
    (deliveries.Deliveries, blocking.Deliveries),
]
# How the two halves work together; nobody else's business.
INTERNAL = {
    "next",
    "next_nowait",
    "put",
    "put_nowait",
    "put_plain",
    "compose",
    "start",
    "stored",
    "stored_at_once",
    "parts_of",
    "parts_at_once",
    "send_parts",
    "is_held",
    "is_idle",
    "lease",
    "columns",
    "stretches",
    "check_whole",
    "events",
    "ack_later",
    "answered",
}


def public(kind: type) -> dict[str, Any]:
    return {name: each for name, each in inspect.getmembers(kind) if not name.startswith("_") and name not in INTERNAL}


@pytest.mark.parametrize(("awaited", "blocked"), TWINS, ids=lambda kind: kind.__name__)
def test_twins_have_the_same_methods_with_the_same_arguments_and_descriptions(awaited: type, blocked: type) -> None:
    theirs = public(awaited)
    ours = {name: each for name, each in public(blocked).items() if name in theirs}
    assert theirs.keys() == ours.keys()
    for name, method in theirs.items():
        if inspect.isfunction(method):
            assert not inspect.iscoroutinefunction(ours[name]), name
            assert [str(p) for p in inspect.signature(method).parameters.values()][1:] == [
                str(p) for p in inspect.signature(ours[name]).parameters.values()
            ][1:] or name == "run", name
            assert ours[name].__doc__, name


@pytest.mark.parametrize("kind", [kind for twins in TWINS for kind in twins], ids=lambda kind: kind.__qualname__)
def test_everything_public_says_what_it_does(kind: type) -> None:
    assert kind.__doc__
