"""The others that a script measures ours beside: which of them are there, and their servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

import harness
from harness import Run
from peers import Peer
from peers.kafka import Kafka
from peers.nats import JetStream
from peers.rabbitmq import QuorumQueues
from peers.rabbitmq_streams import Streams
from peers.redis import RedisStreams

PEERS: tuple[Peer, ...] = (
    RedisStreams(True),
    RedisStreams(False),
    JetStream(True),
    JetStream(False),
    QuorumQueues(),
    Streams(),
    Kafka(True),
    Kafka(False),
)
# There is a bar against these.
RIVALS = ("Redis Streams", "NATS JetStream")


def present(peers: Sequence[Peer] = PEERS) -> list[Peer]:
    """A line for each says what it is, or why it is left out."""
    found = []
    for peer in peers:
        if missing := peer.missing():
            harness.say(f"{peer.name}: skipped, it needs {missing}")
        else:
            harness.say(f"{peer.name}: {peer.described()}")
            found.append(peer)
    return found


class Servers:
    """A fresh one for each turn, or one that is kept until this is left."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._kept = ExitStack()
        self._addresses: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kept.close()

    @contextmanager
    def of(self, peer: Peer) -> Iterator[str]:
        """Its address."""
        if peer.kept_as is None:
            with self._run.folder() as path, peer.serving(path) as address:
                yield address
            return
        if peer.kept_as not in self._addresses:
            path = self._kept.enter_context(self._run.folder())
            self._addresses[peer.kept_as] = self._kept.enter_context(peer.serving(path))
        yield self._addresses[peer.kept_as]
