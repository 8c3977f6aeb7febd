"""One partition: its messages, and everything that happens to them.

    partitions/<id>/messages      a log of the messages
    partitions/<id>/deliveries    a log of what happened to them

Belongs to one event loop, but is opened and closed on a thread: both read and write the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from pyroaring import BitMap64

from penstock.broker.deliveries import Deliveries
from penstock.broker.journal import Journal
from penstock.broker.producers import Producers
from penstock.clock import Clock
from penstock.errors import PenstockError, Unsupported
from penstock.frame import (
    HAS_DELAYS,
    HAS_HIGH,
    HAS_LOW,
    HAS_TTL,
    NO_PRODUCER,
    SPARSE,
    Frame,
    FrameRun,
    Producer,
)
from penstock.limits import Limits
from penstock.message import Message
from penstock.storage.cache import SegmentCache
from penstock.storage.commit import Committed
from penstock.storage.files import Files
from penstock.storage.log import Log, LogSettings

_Committing = asyncio.Future[Committed]
PRODUCER_EXPIRY_US = 86_400_000_000


class Partition:
    """Opened with `Partition.open`."""

    def __init__(
        self,
        messages: Log,
        deliveries: Log,
        *,
        clock: Clock,
        executor: Executor,
        loop: asyncio.AbstractEventLoop,
        new_id: Callable[[], bytes],
        limits: Limits,
    ) -> None:
        self.messages = messages
        self.deliveries = deliveries
        self._journal = Journal(messages, clock=clock, executor=executor, loop=loop, limits=limits)
        self._producers: Producers[_Committing] = Producers()
        self._loop = loop
        self.groups = Deliveries(deliveries, clock=clock, executor=executor, loop=loop, new_id=new_id)
        self._recall_producers(clock.now_us() - PRODUCER_EXPIRY_US)

    @classmethod
    def open(
        cls,
        files: Files,
        *,
        clock: Clock,
        executor: Executor,
        loop: asyncio.AbstractEventLoop,
        cache: SegmentCache,
        new_id: Callable[[], bytes],
        limits: Limits,
        settings: LogSettings | None = None,
    ) -> Partition:
        messages = Log.open(files.directory("messages"), clock=clock, settings=settings, cache=cache, new_log_id=new_id)
        try:
            deliveries = Log.open(
                files.directory("deliveries"), clock=clock, settings=settings, cache=cache, new_log_id=new_id
            )
        except PenstockError:
            messages.close()
            raise
        try:
            return cls(messages, deliveries, clock=clock, executor=executor, loop=loop, new_id=new_id, limits=limits)
        except PenstockError:
            messages.close()
            deliveries.close()
            raise

    def publish(self, item: Frame | Message) -> asyncio.Future[Committed]:
        """Done when it is on disk. A batch that an idempotent producer sends again is found, not stored again.

        What is handed in first is stored first: there is nothing to await before it is in the queue.
        """
        _check_supported(item)
        producer = item.producer if isinstance(item, Frame) else NO_PRODUCER
        if producer.id == 0:
            return self._journal.commit(item)
        assert isinstance(item, Frame)
        known = self._producers.find(producer, item.count)
        if known is not None:
            # It may still be on its way; whoever asks again shall not hear of it earlier than whoever asked first.
            return asyncio.shield(known)
        committing = self._journal.commit(item)
        self._producers.add(producer, item.count, committing)
        committing.add_done_callback(partial(self._settle, producer))
        return asyncio.shield(committing)

    def _settle(self, producer: Producer, committing: _Committing) -> None:
        if committing.exception() is not None:
            self._producers.forget(producer)

    def frames_of(self, offsets: BitMap64, fresh: FrameRun) -> tuple[list[Frame], BitMap64]:
        """The frames that hold these messages, in order, and which of the messages are still there.

        `fresh` is a run that was read already and may hold some of them, those behind all others. Retention and
        compaction remove messages whether somebody waits for them or not.
        """
        frames: list[Frame] = []
        there = BitMap64()
        read = list(fresh)
        until = read[0].base_offset if read else offsets.max() + 1
        at = max(offsets.min(), self.messages.start_offset)
        while at < until and offsets.range_cardinality(at, until):
            run = self.messages.read(offsets.next_set_bit(at), until=until)
            frames += run
            if not run:
                break
            at = run.next_offset
        frames += read
        held = [frame for frame in frames if offsets.range_cardinality(frame.base_offset, frame.next_offset)]
        for frame in held:
            there |= _offsets_in(frame)
        return held, there & offsets

    def close(self) -> None:
        try:
            self.messages.close()
        finally:
            self.deliveries.close()

    def _recall_producers(self, since_us: int) -> None:
        """From the headers of the frames appended since then."""
        for frame in self.messages.heads(since_us):
            facts = frame.facts()
            if facts.producer.id == 0:
                continue
            where = self._loop.create_future()
            where.set_result(Committed(facts.base_offset, facts.append_time))
            if self._producers.find(facts.producer, facts.span) is None:
                self._producers.add(facts.producer, facts.span, where)


def _check_supported(item: Frame | Message) -> None:
    """Groups know nothing of these yet: they would deliver a delayed message at once, and an expired one at all."""
    if isinstance(item, Frame):
        is_special = bool(item.flags & (HAS_DELAYS | HAS_TTL | HAS_HIGH | HAS_LOW))
    else:
        is_special = isinstance(item, Message) and bool(item.deliver_at or item.expires_at or item.priority)
    if is_special:
        raise Unsupported("delays, expiry and priorities are not supported by the broker yet")


def _offsets_in(frame: Frame) -> BitMap64:
    if not frame.flags & SPARSE:
        return BitMap64(range(frame.base_offset, frame.next_offset))
    return BitMap64(frame.offsets(frame.batch()).tolist())
