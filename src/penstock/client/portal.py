"""An event loop on a thread of its own, for code that has none: how the blocking client runs the async one."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401 (see at_end_of_main_thread)
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial, wraps
from threading import Event, Lock, RLock, Thread, current_thread, get_ident
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast

import uvloop

from penstock.client import forks
from penstock.client.words import CLIENT_CLOSED
from penstock.errors import LogClosed, PenstockError
from penstock.standard_files import reopen_closed

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_STOP_S_MAX = 2.0
# A signal that comes in the moment before a thread begins to wait is heard when that wait is over, and not before.
_DEAF_S_MAX = 0.5
_OVER = object()


class Portal:
    """From its making until `stop`. Any thread may `run` something in it, except its own."""

    def __init__(self) -> None:
        reopen_closed()
        # Re-entrant: a collection of garbage may abandon a portal at any point, also here.
        self._lock = RLock()
        self._is_stopped = False
        self._loop: asyncio.AbstractEventLoop
        self._end: asyncio.Event
        is_running = Event()
        self._thread = Thread(target=self._live, args=[is_running], name="penstock", daemon=True)
        self._thread.start()
        is_running.wait()
        _portals.add(self)
        # The thread is in this process only.
        forks.guard(self)

    def _live(self, is_running: Event) -> None:
        # A runner cancels and awaits whatever is left when its work is over.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._stay(is_running))

    async def _stay(self, is_running: Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        is_running.set()
        await self._end.wait()

    @property
    def is_running(self) -> bool:
        return not self._is_stopped

    def run(
        self,
        work: Coroutine[Any, Any, R],
        wait_s: float | None = None,
        *,
        ends: bool = False,
        undo: Callable[[R], None] | None = None,
    ) -> R:
        """Waits for it, for ever unless `wait_s` is given. If the waiting is interrupted, so is the work; with `ends`,
        this returns only when the work has ended, unless it is interrupted once more.

        undo: called on the event loop with a result that an interrupted caller does not receive. The interpreter raises
        KeyboardInterrupt only after a call returns: a caller that returns the result at once needs no more than this.
        """
        call = _Call(work)
        try:
            self._begin(call)
            return call.outcome(wait_s)
        except asyncio.CancelledError as error:
            raise LogClosed("the client was closed meanwhile") from error
        except BaseException:
            if not call.is_done or undo is not None:
                with suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(call.cancel, undo)
                if ends:
                    with suppress(Exception, asyncio.CancelledError):
                        call.outcome(None)
            raise

    def _begin(self, call: _Call[R]) -> None:
        try:
            with self._lock:
                self.check()
                self._loop.call_soon_threadsafe(call.begin, self._loop)
        except PenstockError:
            call.refuse()
            raise

    def iterate(self, items: AsyncIterator[T], undo: Callable[[T], None] | None = None) -> Iterator[T]:
        """One at a time, as they are asked for. For `undo` see `run`."""
        try:
            while (item := self.run(_next(items), undo=_unless_over(undo))) is not _OVER:
                yield item  # type: ignore[misc]
        finally:
            if isinstance(items, AsyncGenerator) and not forks.is_inherited(self):
                self.abandon(items.aclose(), stops=False)

    def check(self) -> bool:
        """That something can be run: LogClosed if not."""
        if self._is_stopped:
            raise LogClosed(CLIENT_CLOSED)
        if self._thread.ident == get_ident():
            raise LogClosed("a blocking call on the client's own event loop would never end: use penstock.aio there")
        return True

    def abandon(self, work: Coroutine[Any, Any, object], *, stops: bool = True) -> None:
        """Done some time, without anybody waiting, and then nothing more. For what nobody refers to any more."""
        with self._lock:
            if not self.is_running:
                work.close()
                return
            self._is_stopped = stops
            self._loop.call_soon_threadsafe(self._abandoned, work, stops)

    def _abandoned(self, work: Coroutine[Any, Any, object], stops: bool) -> None:
        task = self._loop.create_task(work)
        task.add_done_callback(lambda task: self._over(task, stops))

    def _over(self, task: asyncio.Task[object], stops: bool) -> None:
        if not task.cancelled():
            # Looked at, so that nobody complains that it was not. There is nobody to tell.
            task.exception()
        if stops:
            self._end.set()

    def stop(self, wait_s: float | None = None) -> None:
        """Whatever is still running is cancelled."""
        with self._lock:
            if self.is_running:
                self._is_stopped = True
                self._loop.call_soon_threadsafe(self._end.set)
        if self._thread is not current_thread():
            self._thread.join(wait_s)


class _Call(Generic[R]):
    """Work on the loop that another thread waits for. A lock is all it takes; a future of threads has much more."""

    __slots__ = ("_ending", "_task", "_work", "is_done")

    def __init__(self, work: Coroutine[Any, Any, R]) -> None:
        self._work = work
        self._task: asyncio.Task[R] | None = None
        self.is_done = False
        # Released when it is done.
        self._ending = Lock()
        self._ending.acquire()

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._task = loop.create_task(self._work)
        self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[R]) -> None:
        if not task.cancelled():
            # Looked at: whoever waited may have given up.
            task.exception()
        self._done()

    def refuse(self) -> None:
        self._work.close()
        self._done()

    def _done(self) -> None:
        self.is_done = True
        self._ending.release()

    def cancel(self, undo: Callable[[R], None] | None) -> None:
        if self._task is None:
            # Interrupted before it was asked for.
            if not self.is_done:
                self.refuse()
            return
        if undo is not None:
            self._task.add_done_callback(partial(_undo, undo))
        self._task.cancel()

    def outcome(self, wait_s: float | None) -> R:
        if wait_s is None:
            # An interrupted wait may have acquired the lock, and the next one must not wait for it.
            while not self.is_done:
                self._ending.acquire(timeout=_DEAF_S_MAX)
        elif not self.is_done and not self._ending.acquire(timeout=wait_s):
            raise TimeoutError
        assert self._task is not None
        return self._task.result()


def _undo(undo: Callable[[R], None], task: asyncio.Task[R]) -> None:
    if not task.cancelled() and task.exception() is None:
        undo(task.result())


_portals: weakref.WeakSet[Portal] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """What is still running ends quietly."""
    for portal in list(_portals):
        if not forks.is_inherited(portal):
            portal.stop(_STOP_S_MAX)


def at_end_of_main_thread(function: Callable[[], None]) -> None:
    """Called while there are still threads to work with.

    What `atexit` calls is too late for that: the pools of `concurrent.futures`, among them the one a broker writes to
    the disk with, are told of the end by the same list as this one, and the last one in it is the first one told. That
    is why their module is imported above. The list has no public name; without it there is only `atexit`.
    """
    getattr(threading, "_register_atexit", atexit.register)(function)


async def _next(items: AsyncIterator[T]) -> T | object:
    return await anext(items, _OVER)


def _unless_over(undo: Callable[[T], None] | None) -> Callable[[T | object], None] | None:
    if undo is None:
        return None

    def undo_item(item: T | object) -> None:
        if item is not _OVER:
            undo(cast(T, item))

    return undo_item


class _Async(Protocol):
    """What a blocking twin has: the async one, and the portal to its loop."""

    _portal: Portal
    _inner: Any


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Any, P], R]:
    """The blocking twin of an async method, with the same arguments and the same description."""

    @wraps(method)
    def call(self: _Async, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._portal.run(method(self._inner, *args, **kwargs))

    return call


def closing(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, None]],
) -> Callable[Concatenate[Any, P], None]:
    """The blocking twin of `close`. In a forked child it does nothing: the parent closes what is its own."""
    close = blocking(method)

    @wraps(method)
    def call(self: _Async, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if not forks.is_inherited(self._portal):
            close(self, *args, **kwargs)

    return call


def making(
    method: Callable[Concatenate[Any, P], T], twin: Callable[[T, Portal, Any], R]
) -> Callable[Concatenate[Any, P], R]:
    """The blocking twin of a method that makes something: what it makes belongs to the loop, and gets a twin, too."""

    async def made(inner: Any, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(inner, *args, **kwargs)

    @wraps(method)
    def call(self: _Async, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return twin(self._portal.run(made(self._inner, *args, **kwargs)), self._portal, self)

    return call
