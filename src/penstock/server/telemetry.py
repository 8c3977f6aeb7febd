"""The lives of messages for OpenTelemetry: what is read along with the broker, and whom it is handed to.

Nobody waits for any of it. Every second what is new in the deliveries logs is read, on a thread of its own; what is too
much is dropped and counted; and whatever goes wrong here ends in the log of the process, and nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

from penstock.broker.broker import Broker
from penstock.errors import InvalidSetting, Overloaded, PenstockError
from penstock.server.metrics import Counts
from penstock.server.telemetry_spans import Span, Tail

log = logging.getLogger("penstock.telemetry")

ROUND_S = 1.0


class Sink(Protocol):
    """Where spans go. Bounded: what does not fit is dropped, and counted there."""

    def offer(self, spans: Sequence[Span]) -> None: ...

    def close(self) -> None:
        """What is waiting is sent, if that does not take long."""


def sink(endpoint: str, service_name: str, counts: Counts) -> Sink:
    """To a collector. InvalidSetting if what it takes is not installed."""
    try:
        # Here and not at the top: it is an extra.
        from penstock.server.telemetry_otlp import OtlpSink
    except ImportError as error:
        raise InvalidSetting(
            f"telemetry_endpoint needs OpenTelemetry, which is not installed ({error}): "
            "pip install -e '.[otel]' -c constraints.txt in the clone",
            setting="telemetry_endpoint",
        ) from error
    return OtlpSink.to(endpoint, service_name, counts)


class Telemetry:
    """Belongs to the broker's event loop."""

    def __init__(self, broker: Broker, sink: Sink, counts: Counts, *, sample_ratio: float) -> None:
        self._broker = broker
        self._sink = sink
        self._counts = counts
        self._every = max(round(1 / sample_ratio), 1)
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="penstock-telemetry")
        # By the id of their partition: a topic that is made again has others.
        self._tails: dict[str, Tail] = {}
        # Those that could not be read. Not again from the start: most of it has been told.
        self._lost: set[str] = set()
        self._rounds: asyncio.Task[None] | None = None
        self._end = asyncio.Event()

    async def start(self, round_s: float | None = ROUND_S) -> None:
        """From what happens now on. Without `round_s`, somebody else must see to `round`."""
        for identity, tail in self._new():
            await tail.partition.groups.flushed()
            tail.start_here()
            self._tails[identity] = tail
        if round_s is not None:
            self._rounds = self._loop.create_task(self._go_round(round_s))

    async def _go_round(self, round_s: float) -> None:
        while not self._end.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._end.wait(), round_s)
            await self.round()

    def _new(self) -> list[tuple[str, Tail]]:
        """Partitions that were not there before. They are read from their first row on."""
        return [
            (identity, Tail(self._broker.topic(record.name), number, self._every))
            for record in self._broker.topics
            for number, identity in enumerate(record.partitions)
            if identity not in self._tails
            and identity not in self._lost
            and number in self._broker.topic(record.name).here
        ]

    async def round(self) -> None:
        """Everything that is new."""
        there = {identity for record in self._broker.topics for identity in record.partitions}
        self._lost &= there
        self._tails = {
            identity: tail
            for identity, tail in self._tails.items()
            # Led here again after another node led it, a partition is another object.
            if identity in there and not tail.partition.reading.is_closed
        }
        try:
            for identity, tail in self._new():
                if tail.partition.epoch > 1:
                    # The previous leader has exported what happened until now.
                    await tail.partition.groups.flushed()
                    tail.start_here()
                self._tails[identity] = tail
        except PenstockError:
            # A topic is just being made, or deleted. The next round finds it as it is then.
            pass
        for identity, tail in list(self._tails.items()):
            try:
                await self._read(tail)
            except Overloaded:
                # More is waiting for the disk than may. The next round reads it.
                continue
            except Exception:
                # It was deleted in between, or is led elsewhere by now, or can't be read; the others can.
                del self._tails[identity]
                if not tail.partition.reading.is_closed and any(
                    identity in record.partitions for record in self._broker.topics
                ):
                    self._lost.add(identity)
                    log.exception("what happens to messages is not told any more of partition %s", identity)

    async def _read(self, tail: Tail) -> None:
        until, is_idle = tail.partition.deliveries.safe_offset, tail.is_idle
        while not is_idle:
            settled = tail.settled()
            if tail.has_ends:
                await tail.partition.groups.flushed()
            spans = await self._loop.run_in_executor(self._executor, tail.read, settled)
            self._counts.span("dropped", tail.dropped)
            tail.dropped = 0
            if spans:
                self._sink.offer(spans)
            # What has come since is for the next round: the others have their turn.
            is_idle = tail.position >= until

    async def close(self) -> None:
        """Tells what has happened so far. The broker must still be open."""
        self._end.set()
        if self._rounds is not None:
            # Not cancelled: what a round has read would be lost.
            await asyncio.wait([self._rounds])
        # The second one tells of the lives that the first one saw the end of.
        for _ in range(2):
            await self.round()
        await self._loop.run_in_executor(self._executor, self._sink.close)
        self._executor.shutdown(wait=False)
