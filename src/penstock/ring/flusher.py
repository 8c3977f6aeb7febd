"""The thread that writes a journal: half an interval after something happened, at once if asked, and at the end.

The other half is for the flush itself. Where that is not enough, be it for the disk or because other threads compute
and every step waits for the interpreter, it begins earlier, by how long the last ones took.

It alone does so, so that whoever waits for a flush can be interrupted, and the flush can't. What wakes it is a
SimpleQueue, which may be put to from anywhere, also from a finalizer that runs in the middle of another put.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Event, current_thread
from time import perf_counter

from penstock.errors import StorageError
from penstock.ring.waiting import JoinableThread

# How long a flush may take is thought to be so many times what the longest of the last ones took.
_CAUTION = 1.5
# The longest is forgotten slowly.
_KEPT = 0.9
# Not earlier than after this part of the interval: each flush costs something, however little it writes.
_WAIT_MIN = 0.1


def wait_s(interval_s: float, flush_s: float) -> float:
    """How long after something happened it is to be written, if that takes `flush_s`."""
    return min(max(interval_s - _CAUTION * flush_s, _WAIT_MIN * interval_s), interval_s / 2)


class Ticket:
    """Of somebody who waits for a flush."""

    def __init__(self) -> None:
        self.was_answered = Event()
        self.error: StorageError | None = None

    def answer(self, error: StorageError | None) -> None:
        self.error = error
        self.was_answered.set()


class Flusher:
    def __init__(
        self,
        interval_s: float,
        *,
        since: Callable[[], float],
        flush: Callable[[], StorageError | None],
        is_urgent: Callable[[], bool],
        finish: Callable[[], StorageError | None],
    ) -> None:
        """`flush` and `finish` are called by the thread only; `finish` is the last call.

        `since`: when the oldest thing happened that is to be written, by `perf_counter`; 0 if there is none.
        """
        self._interval_s = interval_s
        self._since = since
        # From when it was to begin until it was done.
        self._flush_s = 0.0
        self._flush = flush
        self._is_urgent = is_urgent
        self._finish = finish
        self._signals: SimpleQueue[Ticket | None] = SimpleQueue()
        self._is_ending = self._is_over = self._is_told = False
        self._last_error: StorageError | None = None
        self._thread = JoinableThread(self._run, "penstock-ring-journal")
        self._thread.start()

    def ask(self) -> None:
        """There is something to be written; or, by now, very much."""
        self._signals.put(None)

    def flush(self) -> StorageError | None:
        """What has happened before this call is written when it returns, or that is what went wrong."""
        ticket = Ticket()
        self._signals.put(ticket)
        # Either it is still to look at the queue, or has said that it will not.
        if self._is_over:
            return self._last_error
        ticket.was_answered.wait()
        return ticket.error

    def end(self) -> StorageError | None:
        """The last error, told once. Anybody may call it, any number of times."""
        self._is_ending = True
        self._signals.put(None)
        if current_thread() is self._thread:
            return None
        self._thread.join()
        if self._is_told:
            return None
        self._is_told = True
        return self._last_error

    # --- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        tickets: list[Ticket] = []
        not_before_s = 0.0
        while True:
            self._listen(tickets, None)
            now_s = perf_counter()
            due_s = max((self._since() or now_s) + wait_s(self._interval_s, self._flush_s), not_before_s, now_s)
            while not self._is_due(tickets) and (left_s := due_s - perf_counter()) > 0:
                self._listen(tickets, left_s)
            if self._is_ending:
                break
            due_s = min(due_s, perf_counter())
            error = self._flush()
            now_s = perf_counter()
            self._flush_s = max(now_s - due_s, _KEPT * self._flush_s)
            if error is not None and error.retriable:
                # A full disk may have room later.
                not_before_s = now_s + self._interval_s / 2
                self.ask()
            self._answer(tickets, error)
        self._last_error = self._finish()
        self._is_over = True
        while not self._signals.empty():
            self._listen(tickets, 0)
        self._answer(tickets, self._last_error)

    def _is_due(self, tickets: list[Ticket]) -> bool:
        return bool(tickets) or self._is_ending or self._is_urgent()

    def _listen(self, tickets: list[Ticket], most_s: float | None) -> None:
        try:
            ticket = self._signals.get(timeout=most_s)
        except Empty:
            return
        if ticket is not None:
            tickets.append(ticket)

    def _answer(self, tickets: list[Ticket], error: StorageError | None) -> None:
        for ticket in tickets:
            ticket.answer(error)
        tickets.clear()
