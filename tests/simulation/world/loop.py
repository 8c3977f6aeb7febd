"""An event loop of virtual time, on which all simulated processes take their turns.

A ContextVar names the process that a callback belongs to. Callbacks of one process run in their order, as on any event
loop; which process has the next turn is chosen by the seed. A turn costs a little time, otherwise time passes only when
no process has anything to do.

Killing a process drops its callbacks and timers, and keeps them: no `finally` block may run in a process that is dead.
"""

from __future__ import annotations

import asyncio
import gc
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from random import Random
from typing import Any, TypeVar
from weakref import WeakSet
from zlib import crc32

T = TypeVar("T")

# Microseconds that a turn takes.
TURN_US_MIN, TURN_US_MAX = 5, 40
# Between one look at whether the run has ended and the next.
_TURNS_AT_ONCE = 64
_numbers = count(1)
_current: ContextVar[Process] = ContextVar("process")


class Deadlock(AssertionError):
    """No process has anything to do, now or later."""


def _number_of(self: Any) -> int:
    """A hash that is not an address, so that sets have the same order in every run."""
    try:
        number: int = self._number
    except AttributeError:
        number = self._number = next(_numbers)
    return number


class _Future(asyncio.Future[Any]):
    __hash__ = _number_of
    __eq__ = object.__eq__


class _Task(asyncio.Task[Any]):
    __hash__ = _number_of
    __eq__ = object.__eq__


class Process:
    """A simulated process: what it has to do, and whether it does it."""

    def __init__(self, loop: WorldLoop, name: str, host: str) -> None:
        self.name = name
        self.number = loop.next_process()
        self.host = host
        self.loop = loop
        self.ready: deque[asyncio.Handle] = deque()
        self.is_listed = False
        self.is_dead = False
        self.is_paused = False
        self._pauses = 0
        self._stands_until_us = 0
        self.default_executor: Any = None
        # Those that have not ended.
        self.tasks: set[asyncio.Task[Any]] = set()
        # That are open.
        self.files: WeakSet[Any] = WeakSet()
        # Of the machine that it runs on: a `WorldClock`.
        self.clock: Any = None
        self.context = Context()
        self.context.run(_current.set, self)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self.loop.create_task(work, name=self.name, context=self.context.copy())

    def call_soon(self, callback: Callable[..., Any], *arguments: Any) -> None:
        self.loop.call_soon(callback, *arguments, context=self.context.copy())

    def call_later(self, delay_us: int, callback: Callable[..., Any], *arguments: Any) -> None:
        handle = events.TimerHandle(0, callback, arguments, self.loop, self.context.copy())
        self.loop.fire_at(self.loop.now_us + delay_us, handle, self)

    def kill(self) -> None:
        """Without another step. The loop keeps what it had."""
        self.is_dead = True
        self.loop.graveyard.append(self)

    def pause(self) -> None:
        self.is_paused = True
        self._pauses += 1

    def resume(self) -> None:
        self._pauses -= 1
        self.is_paused = self._pauses > 0
        self.loop.list(self)

    def stand_still(self, us: int) -> None:
        """Behind this step, for so much longer: what it did takes as long."""
        until_us = max(self._stands_until_us, self.loop.now_us) + us
        if self._stands_until_us <= self.loop.now_us:
            self.pause()
            self.loop.world.call_later(us, self._go_on)
        self._stands_until_us = until_us

    def _go_on(self) -> None:
        left_us = self._stands_until_us - self.loop.now_us
        if left_us > 0:
            self.loop.world.call_later(left_us, self._go_on)
        else:
            self.resume()


def current_process() -> Process:
    return _current.get()


class WorldLoop(asyncio.BaseEventLoop):
    def __init__(self, seed: str) -> None:
        super().__init__()
        self.now_us = 1_000_000
        self.turns = 0
        # Of everything that has happened: two runs with the same are the same.
        self.digest = 0
        # Called with what is for people.
        self.tell: Callable[[str], None] | None = None
        self.graveyard: list[object] = []
        # What callbacks raised.
        self.errors: list[str] = []
        self.network: Any = None
        self._random = Random(f"loop {seed}").random
        self._runnable: list[Process] = []
        self._timers: list[tuple[int, int, asyncio.TimerHandle, Process]] = []
        self._cancelled_timers = 0
        self._timer_numbers = count()
        self.next_process = partial(next, count())
        self._current = Process(self, "world", "world")
        self.world = self._current
        self.set_task_factory(_make_task)

    def note(self, line: str) -> None:
        """For people; and part of the digest."""
        self.digest = hash((self.digest, self.now_us, crc32(line.encode())))
        if self.tell is not None:
            self.tell(f"{self.now_us / 1e6:10.6f} {line}")

    # --- scheduling --------------------------------------------------------------------------------------

    def time(self) -> float:
        clock = _current.get(self.world).clock
        return (self.now_us if clock is None or clock.is_even else clock.local_us()) / 1e6

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        if context is None:
            context = copy_context()
        process = context.get(_current, self.world)
        handle = events.Handle(callback, args, self, context)
        if process.is_dead:
            self.graveyard.append(handle)
            return handle
        process.ready.append(handle)
        if not process.is_listed and not process.is_paused:
            self.list(process)
        return handle

    call_soon_threadsafe = call_soon

    def list(self, process: Process) -> None:
        if process.ready and not process.is_listed and not process.is_paused:
            process.is_listed = True
            self._runnable.append(process)

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        if context is None:
            context = copy_context()
        process = context.get(_current, self.world)
        handle = events.TimerHandle(when, callback, args, self, context)
        # Rounded up: a timer is never early by `time`.
        clock = process.clock
        due_us = -int(-when * 1e6 // 1) if clock is None or clock.is_even else clock.true_us(when * 1e6)
        self.fire_at(max(due_us, self.now_us), handle, process)
        return handle

    def fire_at(self, due_us: int, handle: asyncio.TimerHandle, process: Process) -> None:
        heappush(self._timers, (due_us, next(self._timer_numbers), handle, process))

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._cancelled_timers += 1
        if self._cancelled_timers > 1_000 and self._cancelled_timers * 2 > len(self._timers):
            self._timers = [timer for timer in self._timers if not timer[2].cancelled()]
            heapify(self._timers)
            self._cancelled_timers = 0

    def _run_once(self) -> None:
        for _ in range(_TURNS_AT_ONCE):
            if not self._runnable:
                self._wait()
            runnable = self._runnable
            number = int(self._random() * len(runnable))
            process = runnable[number]
            runnable[number] = runnable[-1]
            runnable.pop()
            process.is_listed = False
            if not (process.is_dead or process.is_paused):
                self._take_turn(process)
            self.now_us += int(TURN_US_MIN + self._random() * (TURN_US_MAX - TURN_US_MIN))
            if self._timers and self._timers[0][0] <= self.now_us:
                self._fire()
            if self._stopping:
                return

    def _take_turn(self, process: Process) -> None:
        ready = process.ready
        self.turns += 1
        count = len(ready)
        self.digest = hash((self.digest, self.now_us, process.number, count))
        for _ in range(count):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()
                if process.is_dead or process.is_paused:
                    break
        if ready:
            self.list(process)

    def _wait(self) -> None:
        while not self._runnable:
            if not self._timers:
                raise Deadlock("no process has anything to do, now or later")
            self.now_us = max(self.now_us, self._timers[0][0])
            self._fire()

    def _fire(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self.now_us:
            _, _, handle, process = heappop(timers)
            if handle.cancelled():
                self._cancelled_timers -= 1
            elif process.is_dead:
                self.graveyard.append(handle)
            else:
                process.ready.append(handle)
                self.list(process)

    # --- what the outside would do -----------------------------------------------------------------------

    def run_in_executor(self, executor: Executor | None, func: Any, *args: Any) -> Any:
        process = _current.get()
        chosen = process.default_executor if executor is None else executor
        return chosen.run(func, *args)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **more: Any) -> Any:
        return await self.network.connect(_current.get(), protocol_factory, host, port)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **more: Any) -> Any:
        return self.network.listen(_current.get(), protocol_factory, host, port)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        process = _current.get(self.world)
        self.errors.append(f"{process.name}: {context.get('message')}: {context.get('exception')!r}")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """In the process of the world itself. The garbage collector would run finalizers at times of its own."""
        gc.collect()
        gc.disable()
        return self.run_until_complete(self.world.start(work))


def _make_task(loop: Any, work: Any, **more: Any) -> asyncio.Task[Any]:
    task = _Task(work, loop=loop, **more)
    context = more.get("context")
    process = _current.get(loop.world) if context is None else context[_current]
    process.tasks.add(task)
    task.add_done_callback(process.tasks.discard)
    return task
