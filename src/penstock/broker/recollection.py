"""What whoever leads a partition has to know of the messages that are there: from the headers of all their frames.

    producers    what came last from each, so that nothing is stored twice
    holes        offsets without messages
    specials     where frames begin that have lanes or delays

To read a million headers takes seconds, in which nobody would lead. So a replica that follows reads them as they come,
a few at a time, and has little left to read when it is elected.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from itertools import islice
from threading import Lock

from pyroaring import BitMap64

from penstock.broker.producers import Producers
from penstock.errors import PenstockError
from penstock.frame import HAS_DELAYS, HAS_HIGH, HAS_LOW, FrameFacts
from penstock.storage.commit import Committed
from penstock.storage.log import Log

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

    def __init__(self, log: Log) -> None:
        self._log = log
        self._lock = Lock()
        self._is_taken = False
        self._begin()

    def _begin(self) -> None:
        self.producers: Producers[Where] = Producers()
        self.holes = BitMap64()
        # All of them from `first_offset` to `next_offset`, in order.
        self.specials = array("q")
        self.first_offset = self.next_offset = self._log.start_offset
        self._truncations = self._log.truncations

    @property
    def is_behind(self) -> bool:
        return not self._is_taken and self._log.end_offset - self.next_offset >= _BEHIND

    def go_on(self, now_us: int, frames_max: int) -> bool:
        """With the next frames. Whether there are more."""
        with self._lock:
            if self._is_taken:
                return False
            try:
                return self._go_on(now_us - PRODUCER_EXPIRY_US, frames_max)
            except PenstockError:
                # Retention has taken what was being read, or it is damaged: who leads will see.
                self._begin()
                return False

    def _go_on(self, since_us: int, frames_max: int) -> bool:
        log = self._log
        if log.truncations != self._truncations:
            # What was read may not be there any more.
            self._begin()
        read = 0
        for head in islice(log.heads(offset=self.next_offset), frames_max):
            facts = head.facts()
            self._note(facts, since_us)
            if facts.flags & SPECIAL:
                self.specials.append(facts.base_offset)
            self.next_offset = facts.base_offset + facts.span
            read += 1
        if len(self.specials) > _SPECIALS_MAX:
            del self.specials[: _SPECIALS_MAX // 2]
            self.first_offset = self.specials[0]
        if log.truncations != self._truncations:
            self._begin()
        return read == frames_max

    def take(self, now_us: int) -> None:
        """By whoever leads the partition from now on: up to the end. Nobody else goes on with it.

        No producers from what retention has left over of others: they would seem to be where they were long ago.
        """
        with self._lock:
            self._is_taken = True
            log = self._log
            if log.truncations != self._truncations:
                self._begin()
            unwritten = log.unwritten_hole
            self.holes.add_range(unwritten.start, unwritten.stop)
            since_us = now_us - PRODUCER_EXPIRY_US
            for head in log.heads(since_us=since_us, offset=self.next_offset):
                self._note(head.facts(), since_us)
            # By these leaders have begun: a log that others copy has one for each.
            for epoch, offset in log.lineage:
                # A copy may begin in the middle of an epoch, with a message.
                first = next(log.heads(offset=offset), None) if epoch and offset not in self.holes else None
                if first is not None:
                    self._note_hole(first.facts())

    def _note(self, facts: FrameFacts, since_us: int) -> None:
        self._note_hole(facts)
        if facts.producer.id and facts.append_time >= since_us and facts.base_offset >= self._log.whole_from:
            where = Committed(facts.base_offset, facts.append_time)
            self.producers.recall(facts.producer, facts.span, where)

    def _note_hole(self, facts: FrameFacts) -> None:
        if not facts.messages:
            self.holes.add_range(facts.base_offset, facts.base_offset + facts.span)

    def specials_from(self, offset: int) -> array[int]:
        """And the one before, which may reach that far. Of frames that were merged since, all that they were."""
        return self.specials[max(bisect_left(self.specials, offset) - 1, 0) :]
