"""Those who wait for a turn: threads, and tasks of an event loop. Each is woken once, in the order they came.

Nothing here is under a lock, so that a `put` which nobody waits for pays for one look at an empty deque. This is how no
wake-up is lost: whoever waits stands in line first, looks again, and only then sleeps; whoever brings something puts it
down first, and then looks whether somebody stands in line. Between the two at least one sees the other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from itertools import repeat, starmap
from threading import TIMEOUT_MAX, Event, Lock, Thread
from typing import Any, Protocol

# A signal that comes in the moment before a thread begins to wait is heard when that wait is over, and not before.
_DEAF_S_MAX = 0.5

# Something that may have to wait: yields who waits and how long at most, and is sent whether it was woken.
Waiting = Generator[tuple[Any, float | None], bool, Any]


class Waiter(Protocol):
    def wake(self) -> bool:
        """From any thread. False if nobody may be there any more to be woken: then another one is to be."""


class WaitingThread:
    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = Lock()
        self._lock.acquire()

    def wake(self) -> bool:
        # Twice only by who was interrupted, and can't know: then it may be unlocked already.
        with suppress(RuntimeError):
            self._lock.release()
        return True

    def sleep(self, seconds: float | None) -> bool:
        """Whether it was woken."""
        if seconds is not None:
            return self._lock.acquire(timeout=min(max(seconds, 0), TIMEOUT_MAX))
        while not self._lock.acquire(timeout=_DEAF_S_MAX):
            pass
        return True


class WaitingTask:
    __slots__ = ("_future", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._woken)
        except RuntimeError:
            # Its loop is closed, and the task with it.
            return False
        # One that is stopped may never go on; if it does, the task looks again.
        return self._loop.is_running()

    def _woken(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def sleep(self, seconds: float | None) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._future
        except TimeoutError:
            return False
        return True


class Line:
    """Who stands in line. Whether anybody does is to be seen from `waiters` itself, without a call."""

    __slots__ = ("_leaving", "waiters")

    def __init__(self) -> None:
        self.waiters: deque[Waiter] = deque()
        self._leaving = starmap(self.waiters.popleft, repeat(()))

    def join(self, waiter: Waiter) -> None:
        self.waiters.append(waiter)

    def leave(self, waiter: Waiter) -> None:
        """If it is there: it may have been woken meanwhile."""
        with suppress(ValueError):
            self.waiters.remove(waiter)

    def wake_one(self) -> None:
        waiter: Waiter | None = None
        try:
            # Out of the line without a call, behind which Ctrl-C could come: then nobody would be woken.
            for waiter in self._leaving:
                if waiter.wake():
                    return
        except IndexError:
            return
        except BaseException:
            if waiter is not None:
                waiter.wake()
            raise

    def wake_all(self) -> None:
        # Those who are there now: one that looked and stands in line again is not to be woken without end.
        for _ in range(len(self.waiters)):
            self.wake_one()


def drive(waiting: Waiting) -> Any:
    """In a thread. Whoever is interrupted leaves the line, by `close`."""
    try:
        waiter, most_s = next(waiting)
        while True:
            waiter, most_s = waiting.send(waiter.sleep(most_s))
    except StopIteration as finished:
        return finished.value
    finally:
        waiting.close()


async def drive_async(waiting: Waiting) -> Any:
    """In a task."""
    try:
        waiter, most_s = next(waiting)
        while True:
            waiter, most_s = waiting.send(await waiter.sleep(most_s))
    except StopIteration as finished:
        return finished.value
    finally:
        waiting.close()


class JoinableThread(Thread):
    """Can be joined again after Ctrl-C interrupted a join: Python 3.11 and 3.12 take a thread for ended then. One that
    has not begun need not be waited for."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        super().__init__(target=work, name=name, daemon=True)
        self._has_ended = Event()

    def run(self) -> None:
        try:
            super().run()
        finally:
            self._has_ended.set()

    def join(self, timeout: float | None = None) -> None:
        if self.ident is not None and self._has_ended.wait(timeout):
            super().join()

    def is_alive(self) -> bool:
        return super().is_alive() and not self._has_ended.is_set()
