"""Other brokers, to be measured beside ours: each as one who knows it would use it from Python.

    redis               Redis Streams: redis-server, with redis-py and hiredis
    nats                NATS JetStream: nats-server, with nats-py
    rabbitmq            RabbitMQ's quorum queues: rabbitmq-server, with pika
    rabbitmq_streams    RabbitMQ's streams: the same server, with rstream
    kafka               Kafka, where KAFKA_BOOTSTRAP says: with confluent-kafka
    queues              no brokers: queue.Queue, queue.SimpleQueue and janus, within one process

    serving             starts and stops a server on a free port, with its data in an empty directory
    closed_loop         clients that publish, wait for the answer, and publish again
    arrivals            when messages at an even pace come out again

Nothing of them is left when the script is over, in what it started or, with Kafka, in what it found.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from peers.arrivals import Arrivals
    from peers.closed_loop import Published

_numbers = count()


class Turn(NamedTuple):
    """Seconds for each message: to publish it, to consume it with an ack of its own, or with one ack for many.

    None where acknowledging one by one is nothing that is done.
    """

    publish_s: float
    ack_each_s: float | None
    ack_many_s: float


class Peer(Protocol):
    # Of the product, and of the product with the settings it has here.
    product: str
    name: str
    # On disk before it is told, as ours: what may be compared.
    is_durable: bool
    # None where each turn has a fresh server; otherwise there is one of this name for the whole script, as it takes
    # seconds to start or is there already. Peers of one product may share it.
    kept_as: str | None
    # Enough for a second or so.
    messages: int

    def missing(self) -> str | None:
        """What must be installed for it, if something must."""

    def described(self) -> str:
        """Versions, settings, and how it is used."""

    def serving(self, path: Path) -> AbstractContextManager[str]:
        """A server with its data in `path`; gives its address."""

    def turn(self, address: str, values: Sequence[bytes]) -> Turn:
        """Publishes all of them, then consumes them twice."""

    def publish(self, address: str, batch: Sequence[bytes], clients: int, seconds: float) -> Published:
        """Each client publishes the batch and waits until all of it is acknowledged, again and again, that long."""

    def create(self, address: str, topic: str) -> None:
        """For `produce` and `consume`."""

    def produce(self, address: str, topic: str, rate: int, count: int) -> None:
        """So many a second, as `pacing.due` gives them; in a process of its own."""

    def consume(self, address: str, topic: str, arrivals: Arrivals, ready: Callable[[], None]) -> None:
        """Tells of its being `ready`, then receives and acknowledges until the arrivals are over."""


def new_name() -> str:
    """Of a topic, stream or queue that nobody has used, also in a server that is kept, or is somebody else's."""
    return f"bench-{os.getpid()}-{next(_numbers)}"
