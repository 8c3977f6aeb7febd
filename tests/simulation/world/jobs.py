"""Jobs of executors as threads run them: beside the event loop, and interrupted at file operations and at locks.

A job has a greenlet of its own. Where it waits, the loop goes on, and other jobs do; it is resumed by a timer, so a
seed decides how threads interleave. A process that dies leaves its jobs where they are, for ever.

If the event loop wants a lock that a job holds, the job goes on until it gives the lock up, and the process stands
still for as long as that takes, as a real event loop does.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, cast

from greenlet import getcurrent, greenlet

from simulation.world.loop import Process

# Between one look at a lock and the next: a job does not know when it will be free.
_LOOK_US, _LOOK_US_MAX = 20, 10_000


class Job(greenlet):
    def __init__(self, process: Process, work: Callable[[], None]) -> None:
        super().__init__(work)
        self.gr_context = process.context.copy()
        self._process = process
        self._waits = 0
        self._until_us = 0
        # What somebody who can't wait needs from this job: it does not stop before it has given that up.
        self.wanted: WorldLock | None = None

    def go_on(self) -> None:
        """Until it waits or ends."""
        self.parent = getcurrent()
        self.switch()

    def wait(self, us: int) -> None:
        """Called by the job itself."""
        if self.wanted is not None:
            self._process.stand_still(us)
            return
        self._waits += 1
        self._until_us = self._process.loop.now_us + us
        self._process.call_later(us, self._resume, self._waits)
        self.leave()

    def leave(self) -> None:
        """Called by the job itself."""
        cast(greenlet, self.parent).switch()

    def _resume(self, wait: int) -> None:
        # It may have had to go on before.
        if wait == self._waits and not self.dead:
            self.go_on()

    def give_up(self, lock: WorldLock) -> None:
        """Called by another: on with it, until the lock is free."""
        self._waits += 1
        self._process.stand_still(max(0, self._until_us - self._process.loop.now_us))
        self.wanted = lock
        self.go_on()


def current_job() -> Job | None:
    current = getcurrent()
    return current if isinstance(current, Job) else None


def wait_here(process: Process, us: int) -> None:
    """A job waits; an event loop stands still, and all of its process with it."""
    job = current_job()
    if job is None:
        process.stand_still(us)
    else:
        job.wait(us)


class WorldLock:
    """`threading.Lock`, and `RLock` if it is reentrant."""

    is_reentrant = False

    def __init__(self) -> None:
        self._owner: greenlet | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = getcurrent()
        if self._owner is None:
            self._owner, self._depth = me, 1
            return True
        if self._owner is me and self.is_reentrant:
            self._depth += 1
            return True
        look_us = _LOOK_US
        while self._owner is not None:
            if not blocking:
                return False
            if isinstance(me, Job) and me.wanted is None:
                me.wait(look_us)
                look_us = min(2 * look_us, _LOOK_US_MAX)
            else:
                assert isinstance(self._owner, Job), "an event loop waits for itself"
                self._owner.give_up(self)
        self._owner, self._depth = me, 1
        return True

    def release(self) -> None:
        me = getcurrent()
        assert self._owner is me, "a lock is given up by another than has it"
        self._depth -= 1
        if not self._depth:
            self._owner = None
            if isinstance(me, Job) and me.wanted is self:
                me.wanted = None
                me.wait(1)

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class WorldRLock(WorldLock):
    is_reentrant = True


def _thread_number() -> int:
    """`get_ident`: the loop's, or another."""
    return 0 if current_job() is None else 1


_REAL = {name: getattr(threading, name) for name in ("Lock", "RLock", "get_ident")}
_INSTEAD: dict[str, Any] = {"Lock": WorldLock, "RLock": WorldRLock, "get_ident": _thread_number}


def _real_ones() -> Iterator[tuple[ModuleType, str, Any]]:
    for title, module in list(sys.modules.items()):
        for name, real in _REAL.items():
            if title.startswith("penstock") and vars(module).get(name) is real:
                yield module, name, real


@contextmanager
def simulated_threads() -> Iterator[None]:
    """Locks of the program are such as jobs can wait for, from here on."""
    before = list(_real_ones())
    for module, name, _ in before:
        setattr(module, name, _INSTEAD[name])
    try:
        yield
        late = [f"{module.__name__}.{name}" for module, name, _ in _real_ones()]
        assert not late, f"imported too late, with real locks: {late}"
    finally:
        for module, name, real in before:
            setattr(module, name, real)
