"""Nothing of a simulated run may come from outside it, and nothing in it may depend on where objects lie in memory.

`guarded` reports what our code does past its environment: clocks, chance, threads, sockets, files. `salt` gives objects
that are hashed by their address other hashes in each process, so that a set of them that is iterated shows up as a
different digest, and not only once in a while.
"""

from __future__ import annotations

import _thread
import gc
import os
import random
import secrets
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

# By module. What is imported from them by name is found in the modules of ours.
_CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "clock_gettime_ns")
_CHANCE = (
    *("random", "randrange", "randint", "choice", "choices", "sample", "shuffle", "uniform", "getrandbits"),
    *("randbytes", "gauss", "expovariate", "triangular", "betavariate", "normalvariate", "seed"),
)
_OUTSIDE: tuple[tuple[ModuleType, tuple[str, ...]], ...] = (
    (time, (*_CLOCKS, "sleep")),
    (_thread, ("start_new_thread",)),
    (os, ("urandom", "getrandom", "stat", "lstat")),
    (random, _CHANCE),
    (secrets, ("token_bytes", "token_hex", "token_urlsafe", "randbits", "randbelow", "choice")),
    (uuid, ("uuid1", "uuid4")),
)
# Of a class, in C or not: what its objects take from outside.
_METHODS = (random.SystemRandom, "random"), (random.SystemRandom, "getrandbits")
_EVENTS = (
    *("socket.", "subprocess.", "os.fork", "open", "os.mkdir", "os.rename", "os.remove", "os.listdir", "os.scandir"),
)

# What is installed, and that this process has its standard files.
_HARMLESS = {("penstock", "__getattr__"), ("penstock.standard_files", "reopen_closed")}

Report = Callable[[str], None]
# An audit hook can't be removed.
_report: Report | None = None
_is_hooked = False


@contextmanager
def guarded(report: Report) -> Iterator[None]:
    global _report, _is_hooked
    undo: list[Callable[[], None]] = []
    for module, names in _OUTSIDE:
        for name in names:
            _guard(f"{module.__name__}.{name}", getattr(module, name), report, undo)
    for owner, name in _METHODS:
        undo.append(_patched(owner, name, _noted(f"{owner.__name__}.{name}", getattr(owner, name), report)))
    undo.append(_patched(random.Random, "seed", _seeded(report)))
    undo.append(_patched(threading.Thread, "start", _started(report)))
    if not _is_hooked:
        sys.addaudithook(_audit)
        _is_hooked = True
    _report = report
    try:
        yield
    finally:
        _report = None
        for each in reversed(undo):
            each()


def _started(report: Report) -> Any:
    """By any module: threads of a pool are started by the standard library."""

    def start(self: threading.Thread) -> None:
        report(f"the thread {self.name}")
        real(self)

    real = threading.Thread.start
    return start


def _seeded(report: Report) -> Any:
    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        caller = sys._getframe(2).f_globals
        if a is None and str(caller.get("__name__", "")).startswith("penstock"):
            report(f"an unseeded Random by {caller['__name__']}")
        real(self, a, version)

    real = random.Random.seed
    return seed


def _guard(name: str, real: Any, report: Report, undo: list[Callable[[], None]]) -> None:
    """Wherever a module of ours has it: as a name, as a default, or as an attribute of its module."""
    guard = _noted(name, real, report)
    module, attribute = sys.modules[name.split(".")[0]], name.split(".")[1]
    for ours in [each for title, each in list(sys.modules.items()) if title.startswith("penstock")]:
        for key, value in list(vars(ours).items()):
            if value is real:
                undo.append(_patched(ours, key, guard))
    undo.append(_patched(module, attribute, guard))
    for function in _with_defaults():
        if any(value is real for value in function.__defaults__ or ()):
            defaults = tuple(guard if value is real else value for value in function.__defaults__ or ())
            undo.append(_patched(function, "__defaults__", defaults))


@cache
def _with_defaults() -> list[FunctionType]:
    """Functions of ours. Looked for once: there are many objects."""
    functions = [each for each in gc.get_objects() if isinstance(each, FunctionType) and each.__defaults__]
    return [each for each in functions if str(each.__module__).startswith("penstock")]


def _patched(place: Any, name: str, value: Any) -> Callable[[], None]:
    before = getattr(place, name)
    setattr(place, name, value)
    return lambda: setattr(place, name, before)


def _noted(name: str, real: Any, report: Report) -> Any:
    def guard(*given: Any, **named: Any) -> Any:
        frame = sys._getframe(1)
        if str(frame.f_globals.get("__name__", "")).startswith("penstock"):
            report(f"{name} by {frame.f_globals['__name__']}.{frame.f_code.co_qualname}")
        return real(*given, **named)

    return guard


def _audit(event: str, given: tuple[Any, ...]) -> None:
    if _report is None or not event.startswith(_EVENTS):
        return
    if event == "open" and str(given[0]).endswith((".py", ".pyc", ".so")):
        # An import, or a traceback.
        return
    report = _report
    frame = sys._getframe(1)
    while frame is not None and not str(frame.f_globals.get("__name__", "")).startswith("penstock"):
        if frame.f_globals.get("__name__") == "importlib._bootstrap_external":
            return
        frame = frame.f_back  # type: ignore[assignment]
    if frame is not None and (frame.f_globals["__name__"], frame.f_code.co_name) not in _HARMLESS:
        report(f"{event} {given[:1]!r} by {frame.f_globals['__name__']}.{frame.f_code.co_qualname}")


def salt(number: int) -> int:
    """How many classes got other hashes."""

    def salted(self: object) -> int:
        return hash((id(self), number))

    classes = [each for each in gc.get_objects() if isinstance(each, type)]
    classes = [each for each in classes if str(each.__module__).startswith("penstock")]
    count = 0
    for each in classes:
        if each.__hash__ is object.__hash__ and each.__eq__ is object.__eq__:
            each.__hash__ = salted  # type: ignore[assignment]
            count += 1
    return count
