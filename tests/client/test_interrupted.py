"""Ctrl-C at every point of a blocking call, in a program that goes on: nothing is lost, doubled or blocked."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count, islice
from threading import Thread
from typing import Any

import pytest

from interrupting import is_interrupted
from penstock.testing import VirtualQueue

CLIENT = ("penstock.client",)
PATIENCE_S = 60

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")


@pytest.fixture(autouse=True)
def _without_garbage() -> Iterator[None]:
    """A finalizer that runs in the middle of a call would be interrupted, too."""
    gc.disable()
    yield
    gc.enable()


def ends(work: Callable[[], object]) -> None:
    thread = Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it hangs"


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("fields", [{}, {"headers": {"h": "1"}}, {"partition": 0}, {"key": None}], ids=str)
def test_an_interrupted_send_is_stored_once_or_not_at_all_and_others_once(
    queue: VirtualQueue, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    # Without a key, the next partition has its turn within the calls that are interrupted.
    monkeypatch.setattr("penstock.client.outbox.UNKEYED_RUN", 2)
    queue.create_topic("events", 3)
    stored_once, stored_at_most_once = set(), set()
    for point in count():
        producer = queue.producer("events", linger="1ms", batch_messages=3)

        def send(what: str, producer: Any = producer, point: int = point) -> Any:
            return producer.send(f"{point} {what}".encode(), **{"key": f"{point} {what}", **fields})

        send("first").result(PATIENCE_S)
        send("before")
        names = iter(range(5))
        is_over = not is_interrupted(lambda send=send, names=names: [send(f"{name}") for name in names], point, CLIENT)  # type: ignore[misc]
        done = next(names, 5)
        # What was sent later is stored without a flush.
        send("after").result(PATIENCE_S)
        send("last")
        ends(producer.close)
        names_done = ["first", "before", "after", "last", *map(str, range(done if is_over else done - 1))]
        stored_once |= {f"{point} {name}".encode() for name in names_done}
        stored_at_most_once |= set() if is_over else {f"{point} {done - 1}".encode()}
        if is_over:
            break
    stored = [(each.key, each.value) for each in queue.reader("events")]
    assert all(key == (None if "key" in fields else value) for key, value in stored)
    counts = Counter(value for _, value in stored)
    assert set(counts.values()) == {1}
    assert stored_once <= counts.keys() <= stored_once | stored_at_most_once
    assert point > 20


def test_acknowledgements_are_told_in_time_though_one_of_them_was_interrupted(queue: VirtualQueue) -> None:
    for number in range(10):
        queue.publish("orders", b"%d" % number)
    for point in count():
        with queue.consumer(f"g{point}", "orders", ack_linger="1ms", prefetch=10) as consumer:
            first, second = islice(consumer, 2)
            is_over = not is_interrupted(first.ack, point, CLIENT)
            second.ack()
            until(lambda point=point: queue.lag(f"g{point}")["orders"][0] < 10)  # type: ignore[misc]
        if is_over:
            break
    assert point > 5
