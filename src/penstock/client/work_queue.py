"""The messages of one `Consumer.run`: on their way from the shelf to the workers, and from there to the broker.

A strand is what must be handled one after the other: messages of one key, or all of a partition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from itertools import chain
from typing import NamedTuple

from penstock.client.answers import Ack
from penstock.client.lease import Lease
from penstock.client.membership import Membership
from penstock.client.received import Received

# Handled messages whose acknowledgement is under way. Workers pause when there are more.
UNSETTLED_MAX = 10_000

HandledMessages = dict[Lease, list[Received]]


class Handled(NamedTuple):
    """How many messages were handled and acknowledged, and for how many the handler raised an error."""

    done: int
    failed: int


class Failure(NamedTuple):
    """A message whose handler raised an error, and why."""

    message: Received
    reason: str


class WorkQueue:
    """Does no I/O. Its caller holds the lock that workers and the event loop share.

    Invariant: a strand is in `_strands` while one of its messages is handled, is in `ready`, or is being nacked.
    """

    def __init__(self, membership: Membership, ahead: int, schedule_settling: Callable[[], None]) -> None:
        """
        ahead: how many messages may wait for others of their strand while a worker could take the next ones.
        schedule_settling: called when the event loop has something to settle or to fetch.
        """
        self.done = 0
        self.failed = 0
        self.is_over = False
        # Messages of strands whose turn has come.
        self.ready: deque[Received] = deque()
        # Handled, and not known to be settled.
        self.unsettled = 0
        self._membership = membership
        self._take_next = membership.shelf.take_next
        self._ahead = ahead
        self._schedule_settling = schedule_settling
        self._strands: dict[Hashable, deque[Received]] = {}
        self._behind = 0
        self._handled: HandledMessages = {}
        self._failures: list[Failure] = []

    # --- for workers -------------------------------------------------------------------------------------

    def next(self) -> Received | None:
        """The next message that may be handled now."""
        if self.is_over or self._membership.is_closed:
            return None
        while self.ready:
            message = self.ready.popleft()
            if message.lease.is_whole or message._is_ours:
                return message
            self.advance(message)
        while not self.is_full:
            found = self._take_next(True)
            if found is None or not found.lease.is_ordered or self._try_start(found):
                return found
        return None

    def finish(self, message: Received, failure: str | None) -> None:
        """The handler returned, or failed. After a failure the rest of the strand waits until the nack is answered: the
        broker may take it back, too."""
        if failure is not None and message.answered is None:
            self.unsettled += 1
            self._failures.append(Failure(message, failure))
            self._schedule_settling()
            return
        if message.answered is not None:
            self.done += isinstance(message.answered, Ack)
        elif message.lease.is_whole or message._is_ours:
            self.unsettled += 1
            handled = self._handled.get(message.lease)
            if handled is None:
                self._handled[message.lease] = [message]
                self._schedule_settling()
            else:
                handled.append(message)
        if message.lease.is_ordered:
            self.advance(message)

    @property
    def is_full(self) -> bool:
        return self._behind >= self._ahead or self.unsettled >= UNSETTLED_MAX

    # --- strands -----------------------------------------------------------------------------------------

    def _try_start(self, message: Received) -> bool:
        """Whether it may be handled now. If not, it waits behind those of its strand."""
        strand = message.lease.strand(message.key)
        if strand is None:
            return True
        behind = self._strands.get(strand)
        if behind is None:
            self._strands[strand] = deque()
            return True
        behind.append(message)
        self._behind += 1
        return False

    def advance(self, message: Received) -> None:
        """This message is settled or lost: the next one of its strand is ready."""
        strand = message.lease.strand(message.key)
        if strand is None:
            return
        behind = self._strands[strand]
        if behind:
            if self.is_full:
                # Others may take from the shelf again.
                self._schedule_settling()
            self._behind -= 1
            self.ready.appendleft(behind.popleft())
        else:
            del self._strands[strand]

    # --- for the event loop ------------------------------------------------------------------------------

    def take_finished(self) -> tuple[HandledMessages, list[Failure]]:
        """What is to be acknowledged, and what is to be nacked."""
        handled, self._handled = self._handled, {}
        failures, self._failures = self._failures, []
        return handled, failures

    @property
    def is_empty(self) -> bool:
        """Whether everything that was taken is settled."""
        return not (self._strands or self.unsettled or self.ready)

    def waiting(self) -> Iterator[Received]:
        """Taken from the shelf, and not handed to a worker yet."""
        return chain(self.ready, *self._strands.values())

    def leases(self) -> set[Lease]:
        """Those of messages that no worker has now and that are not settled."""
        waiting = chain(self.waiting(), (failure.message for failure in self._failures))
        return {message.lease for message in waiting} | set(self._handled)
