"""Reports what holds the event loop: everything else waits meanwhile.

A timer on the loop measures how late it fires. If it is late, a thread samples the stack of the loop's thread, so that
the log can name the function and the request. Requests pay nothing for it: their names are found in the frames of the
functions that carry them out. What holds the loop for `INTERVAL_S` and `LOGGED_S` together is noticed in any case.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

log = logging.getLogger("penstock")

INTERVAL_S = 0.025
# Shorter ones are the interpreter lock, or other processes.
LATE_S = 0.01
LOGGED_S = 0.025
# Of the same function and request, one line in this time.
QUIET_S = 60


class StallWatch:
    """Of the running event loop, until `close`."""

    def __init__(self, stalled: Callable[[float], None]) -> None:
        """`stalled` is called on the loop with the seconds of each stall of at least `LATE_S`."""
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._stalled = stalled
        self._closed = threading.Event()
        # Where the loop's thread was when the current stall was sampled.
        self.held_by: str | None = None
        # By function and request: until when no line is logged, and how many have been left out.
        self._quiet: dict[str, tuple[float, int]] = {}
        self._schedule()
        self._sampler = threading.Thread(target=self._sample, name="penstock-stalls", daemon=True)
        self._sampler.start()

    def _schedule(self) -> None:
        self._cpu_s = time.thread_time()
        self._due_s = time.monotonic() + INTERVAL_S
        self._timer = self._loop.call_later(INTERVAL_S, self._fire)

    def _fire(self) -> None:
        late_s = time.monotonic() - self._due_s
        if late_s >= LATE_S:
            self._stalled(late_s)
        if late_s >= LOGGED_S:
            self._log(self.held_by or "an unknown function", late_s, time.thread_time() - self._cpu_s)
        # In this order: the sampler must not take a sample of the stall that is over.
        self._schedule()
        self.held_by = None

    def _log(self, place: str, late_s: float, cpu_s: float) -> None:
        # With less CPU time, the machine is busy or the disk is slow; both have metrics of their own.
        if cpu_s < INTERVAL_S + LOGGED_S:
            log.debug("%s held the event loop for %.3f s (%.3f s of CPU)", place, late_s, cpu_s)
            return
        now_s = time.monotonic()
        until_s, left_out = self._quiet.get(place, (now_s, 0))
        if now_s < until_s:
            self._quiet[place] = until_s, left_out + 1
            return
        self._quiet[place] = now_s + QUIET_S, 0
        more = f", and {left_out} times since the last such line" if left_out else ""
        log.warning("%s held the event loop for %.3f s (%.3f s of CPU)%s", place, late_s, cpu_s, more)

    def _sample(self) -> None:
        # Not more often than the timer fires, unless that is late.
        while not self._closed.wait(max(self._due_s + LOGGED_S - time.monotonic(), LOGGED_S / 5)):
            # The first sample of a stall: by the time of later ones, the function may have returned.
            if self.held_by is None and time.monotonic() >= self._due_s + LOGGED_S:
                self.held_by = _place(sys._current_frames().get(self._thread_id))

    def close(self) -> None:
        self._timer.cancel()
        self._closed.set()


def _place(innermost: FrameType | None) -> str | None:
    """The innermost function of Penstock on the stack, or of anything else; behind the request that it works for."""
    frame = innermost
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("penstock."):
        frame = frame.f_back
    frame = frame or innermost
    if frame is None:
        return None
    request = _request(frame)
    return f"{request}{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}"


# Functions that carry out requests, and what of theirs is the name of one.
_REQUESTS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "Session._call": ("request", lambda request: f"native {type(request).__name__}"),
    "Session._carry_out": ("packet", lambda packet: f"native {packet.kind.name}"),
    "Session._publish": ("packet", lambda packet: f"native {packet.kind.name}"),
    "App.answer": ("kind", lambda kind: f"http {kind}"),
    "Reception._carried_out": ("kind", lambda kind: f"grpc {kind}"),
}


def _request(frame: FrameType | None) -> str:
    """Empty if it is none: a timer, or what the broker does by itself."""
    while frame is not None:
        variable, name_of = _REQUESTS.get(frame.f_code.co_qualname, ("", str))
        if variable and frame.f_globals.get("__name__", "").startswith("penstock.server."):
            found = frame.f_locals.get(variable)
            if found is not None:
                return f"{name_of(found)}: "
        frame = frame.f_back
    return ""
