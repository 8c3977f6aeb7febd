"""What runs in a worker process: it is given parcels, and says what became of each, until the pipe is closed.

Here a batch is what it is everywhere; only its answers are written down, and told when the handler has returned. So a
process that ends while it works has answered for nothing, and all jobs of its batch are tried again.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from threading import Thread
from traceback import format_exc
from typing import Any

import msgspec

from penstock.clock import SystemClock
from penstock.durations import duration_us
from penstock.handlers import reason_of
from penstock.ring.batch import JobBatch
from penstock.ring.exchange import ANSWERED, BROKEN, READY, Answer, Memory, Outcome, Parcels, as_text
from penstock.ring.handlers import check_returned
from penstock.ring.jobs import Jobs
from penstock.ring.settings import Duration, RingSettings

Call = Callable[[JobBatch], Any]


def main(pipe: Connection, memory: Memory | None, order: bytes, is_async: bool) -> None:
    """`order` is the handler and the type of the jobs, pickled: both by name, as `multiprocessing` does."""
    _leave_ctrl_c_to_the_parent()
    _keep_files_to_itself()
    Thread(target=_end_with_the_parent, name="penstock-ring-parent", daemon=True).start()
    if hasattr(os, "register_at_fork"):
        # That this process has ended is seen from the pipe, which those it has forked must not hold open.
        os.register_at_fork(after_in_child=pipe.close)
    try:
        handler, job_type = pickle.loads(order)
        parcels = Parcels(job_type)
    except BaseException as error:
        reason = as_text(reason_of(error))
        pipe.send_bytes(BROKEN + msgspec.msgpack.encode((reason, as_text(format_exc()))))
        return
    pipe.send_bytes(READY)
    if is_async:
        # One loop for all batches: connections that belong to it can be kept from one to the next.
        with asyncio.Runner() as runner:
            _work(pipe, memory, parcels, lambda batch: runner.run(handler(batch)))
    else:
        _work(pipe, memory, parcels, handler)


def _leave_ctrl_c_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        # Held back by the parent so that this process would not die of it before it got here.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _keep_files_to_itself() -> None:
    """What it starts by `os.system` or the like would have them all, and they would be open for as long as it runs."""
    if os.path.isdir("/dev/fd"):
        for fd in map(int, os.listdir("/dev/fd")):
            # The one of the listing is closed by now.
            with suppress(OSError):
                if fd > 2:
                    os.set_inheritable(fd, False)


def _end_with_the_parent() -> None:
    """Also in the middle of a batch: who has the ring's journal next has its jobs too."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(pipe: Connection, memory: Memory | None, parcels: Parcels, call: Call) -> None:
    try:
        while True:
            attempts, jobs, unread = parcels.receive(pipe, memory)
            outcome = _outcome(attempts, jobs, unread, call)
            pipe.send_bytes(ANSWERED + msgspec.msgpack.encode(outcome))
            # Not to be kept until there are others.
            del jobs
    except (EOFError, ConnectionError):
        return


def _outcome(attempts: list[int] | None, jobs: list[Any], unread: dict[int, str], call: Call) -> Outcome:
    book = AnswerBook()
    if unread:
        book.places = [at for at in range(len(jobs)) if at not in unread]
        book.answers = [Answer("fail", [at], None, as_text(reason)) for at, reason in unread.items()]
        jobs = [jobs[at] for at in book.places]
        attempts = None if attempts is None else [attempts[at] for at in book.places]
    if not jobs:
        return Outcome(book.answers)
    batch = JobBatch(book, jobs, attempts)
    book._in_flight.add(batch)
    error: str | None = None
    raised: tuple[str, str] | None = None
    try:
        check_returned(call(batch))
    except Exception as problem:
        raised = as_text(reason_of(problem)), as_text(format_exc())
        error = None if batch.is_settled else raised[0]
    # From now on it is too late for answers.
    book._in_flight.discard(batch)
    return Outcome(book.answers, error, raised)


class AnswerBook(Jobs):
    """In the place of the ring, for one batch: has what was answered, in that order."""

    def __init__(self) -> None:
        super().__init__(_SETTINGS, _CLOCK, time.monotonic, is_plain=True)
        self.answers: list[Answer] = []
        # Where in the parcel the jobs of the batch are, if it is not all of them.
        self.places: list[int] | None = None

    def _ack(self, batch: JobBatch, positions: Sequence[int]) -> None:
        self._write(batch, positions, "ack")

    def _retry(self, batch: JobBatch, positions: Sequence[int], delay: Duration | None, reason: str) -> None:
        self._write(batch, positions, "retry", None if delay is None else duration_us(delay), reason)

    def _fail(self, batch: JobBatch, positions: Sequence[int], reason: str) -> None:
        self._write(batch, positions, "fail", None, reason)

    def _write(
        self, batch: JobBatch, positions: Sequence[int], kind: Any, delay_us: int | None = None, reason: str = ""
    ) -> None:
        places = list(positions) if self.places is None else [self.places[at] for at in positions]
        self.answers.append(Answer(kind, places, delay_us, as_text(reason)))
        self._settle(batch, positions)


_CLOCK = SystemClock()
_SETTINGS = RingSettings.of(capacity=1, when_full="reject", max_attempts=1, backoff=None, failed_max=0)
