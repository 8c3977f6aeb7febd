"""Which lines of functions a run executes. Of modules and classes themselves, an import executes all."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

SOURCE = Path(__file__).parents[3] / "src" / "penstock"
# Without a line that is new.
_CALLS = 100
PARTS = "cluster", "broker", "net/routing"

# Of a file, relative to `SOURCE`.
Lines = dict[str, set[int]]


class Covered:
    """A function is traced line by line until all its lines were executed, or no other one was in its last calls: what
    is reported is a little less than what was executed. What `known` has is not looked for again."""

    def __init__(self, known: Lines) -> None:
        self.lines: Lines = {}
        self._known = known
        self._traced: dict[CodeType, _Function | None] = {}

    @contextmanager
    def tracing(self) -> Iterator[None]:
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(None)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code not in self._traced:
            place = _place_of(code.co_filename)
            self._traced[code] = None if place is None else _Function(code, place, self._known, self.lines)
        function = self._traced[code]
        if function is None:
            return None
        function.calls_left -= 1
        if not function.missing or not function.calls_left:
            self._traced[code] = None
            return None
        return function.happened


class _Function:
    def __init__(self, code: CodeType, place: str, known: Lines, lines: Lines) -> None:
        self.missing = _lines_of(code) - known.get(place, set())
        self.calls_left = _CALLS
        self._lines = lines.setdefault(place, set())

    def happened(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and frame.f_lineno in self.missing:
            self.missing.discard(frame.f_lineno)
            self._lines.add(frame.f_lineno)
            self.calls_left = _CALLS
        return self.happened if self.missing else None


def _place_of(path: str) -> str | None:
    if not path.startswith(str(SOURCE)):
        return None
    place = path[len(str(SOURCE)) + 1 :]
    return place if place.startswith(PARTS) else None


def _lines_of(code: CodeType) -> set[int]:
    # The first is its `def`.
    return {line for _, _, line in code.co_lines() if line is not None and line != code.co_firstlineno}


def _functions_in(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            # Of a class or a module it has no names of its own.
            if each.co_flags & 0x2:
                yield each
            yield from _functions_in(each)


def report(covered: Lines) -> Iterator[str]:
    """A line of text for each file, and for each part."""
    for part in PARTS:
        done = there = 0
        for path in sorted((SOURCE / part).rglob("*.py")):
            place = str(path.relative_to(SOURCE))
            code = compile(path.read_text(), str(path), "exec")
            lines = set().union(*[_lines_of(each) for each in _functions_in(code)])
            found = lines & covered.get(place, set())
            done, there = done + len(found), there + len(lines)
            if lines:
                yield f"{len(found) / len(lines):7.1%} of {len(lines):5,} lines of {place}"
        yield f"{done / there:7.1%} of {there:5,} lines of {part} in all"
