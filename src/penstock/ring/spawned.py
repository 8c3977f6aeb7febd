"""A worker process, as the ring sees it: started, given parcels one at a time, and ended."""

from __future__ import annotations

import select
import signal
from collections.abc import Callable
from contextlib import ExitStack
from math import inf
from multiprocessing import connection, get_context, resource_tracker
from threading import Lock
from time import monotonic
from typing import Any

import msgspec

from penstock.decoding import msgpack_decoder
from penstock.errors import WorkerFailed
from penstock.ring.child import main
from penstock.ring.exchange import ANSWERED, BROKEN, Memory, Outcome, send

# How long one that has nothing more to do may take to end by itself, and one that was told to by a signal.
ENDING_S = 10.0
TERMINATING_S = 1.0
_LOOK_S = 0.1

# Spawned, not forked: there are threads here.
_context = get_context("spawn")
# Whoever starts a process also looks after those that have ended; two must not learn of the same end at once.
_starting = Lock()
_outcomes = msgpack_decoder(Outcome)


class Ended(Exception):
    """It has ended; the text says how. `was_given`: it may have begun with the parcel."""

    def __init__(self, reason: str, *, was_given: bool) -> None:
        super().__init__(reason)
        self.was_given = was_given


class Spawned:
    """`order`, `is_async`: see `child.main`."""

    def __init__(self, order: bytes, is_async: bool, name: str) -> None:
        with ExitStack() as undo:
            try:
                self._pipe, theirs = _context.Pipe()
                undo.callback(self._pipe.close)
                with theirs:
                    self._memory = Memory.make()
                    if self._memory is not None:
                        undo.callback(self._memory.close)
                    arguments = (theirs, self._memory, order, is_async)
                    self._process = _context.Process(target=main, args=arguments, name=name)
                    with _starting:
                        _hold_back_ctrl_c()
                        self._process.start()
            except Exception as error:
                raise WorkerFailed(f"a worker process could not be started: {error}") from error
            undo.pop_all()
        # `Connection.poll` makes one each time, which takes as long as all the rest of a small parcel.
        self._poll: Callable[[float], list[Any]] | None = None
        if hasattr(select, "poll"):
            poller = select.poll()
            poller.register(self._pipe.fileno(), select.POLLIN)
            self._poll = poller.poll

    def wait_ready(self) -> None:
        """WorkerFailed if it can't be."""
        try:
            message = self._received()
        except (EOFError, ConnectionError):
            raise WorkerFailed(
                f"{self._ended()} before it was ready; what it wrote to stderr says why. A script that starts workers "
                'must do so below `if __name__ == "__main__":`'
            ) from None
        if message[:1] == BROKEN:
            reason, traceback = msgspec.msgpack.decode(message[1:])
            raise WorkerFailed(f"a worker process can't load the handler: {reason}", traceback=traceback)

    def handle(self, parcel: bytes) -> Outcome:
        """Ended if it has, or does meanwhile."""
        try:
            send(self._pipe, self._memory, parcel)
        except ConnectionError:
            raise Ended(self._ended(), was_given=False) from None
        try:
            message = self._received()
        except (EOFError, ConnectionError):
            raise Ended(self._ended(), was_given=True) from None
        assert message[:1] == ANSWERED
        return _outcomes.decode(memoryview(message)[1:])

    def _received(self) -> bytes:
        """EOFError if it has ended. The pipe alone does not tell: what it has started may hold the other end."""
        while not self._heard():
            with _starting:
                has_ended = self._process.exitcode is not None
            # Only now: its last words may have come before its end.
            if has_ended and not self._pipe.poll():
                raise EOFError
        return self._pipe.recv_bytes()

    def _heard(self) -> bool:
        """Whether there is something in the pipe; looks for at most `_LOOK_S`."""
        if self._poll is None:
            return self._pipe.poll(_LOOK_S)
        return bool(self._poll(_LOOK_S * 1000))

    def _ended(self) -> str:
        self._wait(ENDING_S)
        code = self._process.exitcode
        if code is None:
            return "the worker process ended"
        if code >= 0:
            return f"the worker process ended with exit code {code}"
        try:
            return f"the worker process was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"the worker process was ended by signal {-code}"

    def end(self) -> None:
        """It has nothing more to do, and ends; by force if it does not in time."""
        self._pipe.close()
        if not self._wait(ENDING_S):
            self.terminate()
            if not self._wait(TERMINATING_S):
                self.kill()
                self._wait(None)
        if self._memory is not None:
            self._memory.close()

    def _wait(self, most_s: float | None) -> bool:
        """Whether it has ended. The sentinel alone does not tell: those it has forked may hold it."""
        until_s = inf if most_s is None else monotonic() + most_s
        while True:
            left_s = until_s - monotonic()
            is_told = connection.wait([self._process.sentinel], min(max(left_s, 0), _LOOK_S))
            with _starting:
                if is_told:
                    self._process.join()
                if is_told or self._process.exitcode is not None:
                    return True
            if left_s <= 0:
                return False

    def terminate(self) -> None:
        with _starting:
            self._process.terminate()

    def kill(self) -> None:
        with _starting:
            self._process.kill()


def _hold_back_ctrl_c() -> None:
    """From a process that this thread starts, until it ignores it. Here another thread is woken by it."""
    if hasattr(signal, "pthread_sigmask"):
        # It lets all signals through when it starts, so it has to be running.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
