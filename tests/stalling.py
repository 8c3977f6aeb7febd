"""A test of a server fails if a callback held the event loop: everything else of the server waits meanwhile."""

from __future__ import annotations

import asyncio
import gc
import resource
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# CPU time of one callback, without that of the kernel: a sync of a slow disk counts there. A request should hold the
# event loop for 10 ms; on a virtual machine that others share, CPU time can be many times as long as it should be.
HELD_CPU_S_MAX = 0.5


class Longest:
    """The callback of the event loop that used the most CPU time, without garbage collections and coroutines of the
    tests."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.name = ""
        # By thread: others collect garbage on their own time.
        self._collected_s: dict[int, float] = defaultdict(float)
        self._collecting_since_s: dict[int, float] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        run = asyncio.events.Handle._run

        def measured(handle: asyncio.Handle) -> None:
            task = getattr(handle._callback, "__self__", handle._callback)  # type: ignore[attr-defined]
            thread = threading.get_ident()
            began, began_user, collected_s = time.thread_time(), user_s(), self._collected_s[thread]
            run(handle)
            # The kernel measures the time of the process alone in ticks.
            cpu_s = min(time.thread_time() - began, user_s() - began_user) - (self._collected_s[thread] - collected_s)
            if cpu_s > self.cpu_s and not _is_of_a_test(task):
                self.cpu_s, self.name = cpu_s, repr(task)

        def collecting(phase: str, info: dict[str, int]) -> None:
            thread = threading.get_ident()
            if phase == "start":
                self._collecting_since_s[thread] = time.thread_time()
            elif thread in self._collecting_since_s:
                self._collected_s[thread] += time.thread_time() - self._collecting_since_s.pop(thread)

        asyncio.events.Handle._run = measured  # type: ignore[method-assign]
        gc.callbacks.append(collecting)
        try:
            yield
        finally:
            gc.callbacks.remove(collecting)
            asyncio.events.Handle._run = run  # type: ignore[method-assign]


def user_s() -> float:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_utime


def _is_of_a_test(task: object) -> bool:
    code = getattr(task.get_coro(), "cr_code", None) if isinstance(task, asyncio.Task) else None
    return code is not None and Path(code.co_filename).is_relative_to(Path(__file__).parent)


@contextmanager
def loop_watched(cpu_s_max: float = HELD_CPU_S_MAX) -> Iterator[None]:
    """AssertionError at the end, unless the body fails by itself."""
    longest = Longest()
    with longest.watched():
        yield
    assert longest.cpu_s < cpu_s_max, f"{longest.name} held the event loop for {longest.cpu_s:.3f} s of CPU"
