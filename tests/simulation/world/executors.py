"""Executors without threads: a job begins some time after it was handed in, and its result comes later."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent import futures
from functools import partial
from random import Random
from typing import Any

from greenlet import GreenletExit

from simulation.world.jobs import Job
from simulation.world.loop import Process

_Job = tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]
# Until a thread wakes, and what it takes to do the work.
_WAKE_US, _WORK_US = (10, 150), (20, 1_000)


class WorldExecutor(futures.Executor):
    def __init__(self, process: Process, threads: int, rng: Random) -> None:
        self._process = process
        self._idle = threads
        self._rng = rng
        self._jobs: deque[_Job] = deque()
        self._is_shut_down = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> futures.Future[Any]:
        done: futures.Future[Any] = futures.Future()
        self._hand_in(partial(fn, *args, **named), partial(_resolve, done))
        return done

    def run(self, fn: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        done = self._process.loop.create_future()
        self._hand_in(partial(fn, *args), partial(_resolve_unless_cancelled, done))
        return done

    def _hand_in(self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        if self._is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        self._jobs.append((job, done))
        self._start()

    def _start(self) -> None:
        if self._idle and self._jobs:
            self._idle -= 1
            self._process.call_later(self._rng.randint(*_WAKE_US), self._work, *self._jobs.popleft())

    def _work(self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        def work() -> None:
            result, error = None, None
            try:
                result = job()
            except GreenletExit:
                # The run is over.
                return
            except BaseException as raised:
                error = raised
            self._process.call_later(self._rng.randint(*_WORK_US), self._end, done, result, error)

        Job(self._process, work).go_on()

    def _end(self, done: Callable[[Any, BaseException | None], None], result: Any, error: BaseException | None) -> None:
        self._idle += 1
        self._start()
        done(result, error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._is_shut_down = True


def _resolve(done: futures.Future[Any], result: Any, error: BaseException | None) -> None:
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(result)


def _resolve_unless_cancelled(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if done.cancelled():
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(result)
