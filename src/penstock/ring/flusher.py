"""The thread that writes a journal: half an interval after something happened, at once if asked, and at the end.

It alone does so, so that whoever waits for a flush can be interrupted, and the flush can't. What wakes it is a
SimpleQueue, which may be put to from anywhere, also from a finalizer that runs in the middle of another put.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Event, Thread, current_thread
from time import perf_counter

from penstock.errors import StorageError


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
        flush: Callable[[], StorageError | None],
        is_urgent: Callable[[], bool],
        finish: Callable[[], StorageError | None],
    ) -> None:
        """`flush` and `finish` are called by the thread only; `finish` is the last call."""
        self._interval_s = interval_s
        self._flush = flush
        self._is_urgent = is_urgent
        self._finish = finish
        self._signals: SimpleQueue[Ticket | None] = SimpleQueue()
        self._is_ending = self._is_over = False
        self._last_error: StorageError | None = None
        self._thread = Thread(target=self._run, name="penstock-ring-journal", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """There is something to be written; or, by now, very much."""
        self._signals.put(None)

    def flush(self) -> StorageError | None:
        """What has happened before this call is written when it returns, or that is what went wrong."""
        ticket = Ticket()
        self._signals.put(ticket)
        # Either it is still to look at the queue, or has said that it will not.
        if not self._is_over:
            ticket.was_answered.wait()
        return ticket.error

    def end(self) -> StorageError | None:
        """The last error, told once. Anybody may call it, any number of times."""
        self._is_ending = True
        self._signals.put(None)
        if current_thread() is self._thread:
            return None
        self._thread.join()
        error, self._last_error = self._last_error, None
        return error

    # --- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        tickets: list[Ticket] = []
        while True:
            self._listen(tickets, None)
            until_s = perf_counter() + self._interval_s / 2
            while not self._is_due(tickets) and (left_s := until_s - perf_counter()) > 0:
                self._listen(tickets, left_s)
            if self._is_ending:
                break
            error = self._flush()
            if error is not None and error.retriable:
                # A full disk may have room later.
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
