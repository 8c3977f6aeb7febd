"""Ctrl-C while messages are taken: what the caller does not receive is handed out again, and not after its lease."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

import penstock
from interrupting import LOOKS, is_interrupted
from penstock.client.blocking import Consumer

MODULES = ("penstock.client.blocking", "penstock.client.portal", "penstock.client.shelf")
# Made ahead of the call that is interrupted: a generator that ends in it would be, too.
WAYS: dict[str, Callable[[Consumer], Callable[[], object]]] = {
    "poll": lambda consumer: lambda: consumer.poll(3, wait="2s"),
    "next": lambda consumer: consumer.__next__,
    "loop": lambda consumer: iter(consumer).__next__,
    "batches": lambda consumer: iter(consumer.batches()).__next__,
}


# Interrupted before the event loop has it: nothing has begun.
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize(
    ("way", "is_ahead"), [*((way, False) for way in WAYS), ("poll", True), ("next", True), ("loop", True)]
)
def test_what_an_interrupted_caller_does_not_receive_is_handed_out_again(
    tmp_path: Path, way: str, is_ahead: bool
) -> None:
    with penstock.open(tmp_path) as q:
        q.create_topic("t", partitions=1)
        with q.consumer("g", "t", visibility="10m") as consumer:
            for point in count():
                for number in range(4):
                    q.publish("t", b"%d" % number)
                seen = [next(consumer)] if is_ahead else []
                take = WAYS[way](consumer)
                if not is_interrupted(take, point, MODULES, LOOKS):
                    break
                while len(seen) < 4 and (some := consumer.poll(4, wait="2s")):
                    seen += some
                assert [message.value for message in seen] == [b"0", b"1", b"2", b"3"], point
                for message in seen:
                    message.ack()
            assert point > 3
