"""What whoever leads a partition has to know of the messages that are there: from the headers of their frames.

    producers    what came last from each, so that nothing is stored twice
    holes        offsets without messages
    specials     where frames begin that have lanes or delays

To read a million headers takes seconds, in which nobody would lead. So a replica that follows reads them as they come,
a few at a time, and has little left to read when it is elected. It begins with those of the last day: of older ones
only lanes and delays count, which whoever leads looks for itself, behind its last snapshot.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from bisect import bisect_left
from itertools import islice
from threading import Lock

from pyroaring import BitMap64

from penstock.broker.producers import Producers
from penstock.errors import Fatal, LogClosed, PenstockError
from penstock.frame import HAS_DELAYS, HAS_HIGH, HAS_LOW, Frame, FrameFacts, Producer
from penstock.storage.commit import Committed
from penstock.storage.log import Log

log = logging.getLogger("penstock.broker")

Committing = asyncio.Future[Committed]
# Of a batch that came before: where it is, or will be.
Where = Committed | Committing
SPECIAL = HAS_DELAYS | HAS_HIGH | HAS_LOW
PRODUCER_EXPIRY_US = 86_400_000_000
# With fewer new offsets than this it is not worth while.
_BEHIND = 256
_SPECIALS_MAX = 1 << 20


class Recollection:
    """Of one log of messages. Goes on from several threads, one at a time."""

    def __init__(self, messages: Log) -> None:
        self._log = messages
        self._lock = Lock()
        self._is_taken = False
        self._begin()

    def _begin(self) -> None:
        # Before where it begins: a truncation in between is noticed then.
        self._truncations = self._log.truncations
        self.producers: Producers[Where] = Producers()
        self.holes = BitMap64()
        # All of them from `first_offset` to `next_offset`, in order.
        self.specials = array("q")
        self.first_offset = self.next_offset = self._log.start_offset
        self._has_begun = False
        self._noted_to = 0
        # Something can't be read, as long as it is the same segments.
        self._stuck_at: tuple[object, ...] | None = None

    @property
    def is_behind(self) -> bool:
        if self._is_taken or self._log.end_offset - self.next_offset < _BEHIND:
            return False
        return self._stuck_at is None or self._stuck_at != self._log.segments

    def go_on(self, frames_max: int) -> bool:
        """With the next frames. Whether there are more."""
        with self._lock:
            if self._is_taken:
                return False
            segments = self._log.segments
            try:
                return self._go_on(frames_max)
            except (Fatal, LogClosed):
                raise
            except PenstockError as error:
                is_other = self._log.segments != segments or self._log.truncations != self._truncations
                self._begin()
                if not is_other:
                    # Whoever leads will hear of it. Retention may help, or a truncation.
                    log.warning("headers that follow can't be read ahead of an election: %s", error.message)
                    self._stuck_at = segments
                return False

    def _go_on(self, frames_max: int) -> bool:
        messages = self._log
        if messages.truncations != self._truncations:
            # What was read may not be there any more.
            self._begin()
        if not self._has_begun:
            # By what is in the log: a clock may be wrong for a while.
            self._has_begun = True
            self.first_offset = self.next_offset = messages.offset_at(messages.last_append_time - PRODUCER_EXPIRY_US)
        read = 0
        for head in islice(messages.heads(offset=self.next_offset), frames_max):
            facts = head.facts()
            self._note(head, facts)
            if facts.flags & SPECIAL:
                self.specials.append(max(facts.base_offset, self.next_offset))
            self.next_offset = facts.base_offset + facts.span
            read += 1
        if len(self.specials) > _SPECIALS_MAX:
            del self.specials[: _SPECIALS_MAX // 2]
            self.first_offset = self.specials[0]
        if messages.truncations != self._truncations:
            self._begin()
        return read == frames_max

    def take(self, now_us: int) -> None:
        """By whoever leads the partition from now on: up to the end. Nobody else goes on with it.

        No producers of more than a day ago, nor from what retention has left over of others: they would seem to be
        where they were long ago. A day before the last append, if the clock of this node is further ahead: it may be
        wrong, and a producer that is forgotten may append twice.
        """
        with self._lock:
            self._is_taken = True
            messages = self._log
            if messages.truncations != self._truncations:
                self._begin()
            unwritten = messages.unwritten_hole
            self.holes.add_range(unwritten.start, unwritten.stop)
            since_us = min(now_us, messages.last_append_time) - PRODUCER_EXPIRY_US
            whole_from = messages.whole_from
            for head in messages.heads(since_us=since_us, offset=self.next_offset):
                self._note(head, head.facts())
            self.producers.keep(
                lambda where: (
                    isinstance(where, Committed) and where.base_offset >= whole_from and where.append_time >= since_us
                )
            )
            # By these leaders have begun: a log that others copy has one for each.
            for offset in [entry.first_offset for entry in messages.lineage if entry.epoch]:
                # A copy may begin in the middle of an epoch, with a message.
                first = None if offset in self.holes else next(messages.heads(offset=offset), None)
                if first is not None:
                    self._note_hole(first.facts())

    def _note(self, frame: Frame, facts: FrameFacts) -> None:
        self._note_hole(facts)
        producer = facts.producer
        if producer.id:
            # What was read before may have been merged with what was not: that is what is new.
            known = max(0, self._noted_to - facts.base_offset)
            rest = Producer(producer.id, producer.epoch, producer.sequence + known)
            where = Committed(facts.base_offset + known, facts.append_time)
            is_as_sent = not known and facts.messages == facts.span
            self.producers.recall(rest, facts.span - known, where, frame.body_crc if is_as_sent else None)
        self._noted_to = facts.base_offset + facts.span

    def _note_hole(self, facts: FrameFacts) -> None:
        if not facts.messages:
            self.holes.add_range(facts.base_offset, facts.base_offset + facts.span)

    def specials_from(self, offset: int) -> array[int]:
        """And the one before, which may reach that far. Of frames that were merged since, all that they were."""
        return self.specials[max(bisect_left(self.specials, offset) - 1, 0) :]
