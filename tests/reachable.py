"""How much a thing holds: the sizes of all containers that can be reached from it, by the attributes they are in."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Set
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

from pyroaring import BitMap64

_LEAVES = (
    *(str, bytes, bytearray, memoryview, int, float, complex, type(None), type, ModuleType),
    *(threading.Thread, asyncio.AbstractEventLoop, asyncio.Task),
)


def sizes(*roots: object) -> Counter[str]:
    """By `Class.attribute`: how many entries there are in all containers together that the attribute leads to."""
    found: Counter[str] = Counter()
    seen: dict[int, object] = {}
    waiting = deque((type(root).__name__, root) for root in roots)
    while waiting:
        path, thing = waiting.popleft()
        if isinstance(thing, _LEAVES) or id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if isinstance(thing, BitMap64):
            found[path] += len(thing)
            continue
        if isinstance(thing, Mapping | Set | list | tuple | deque):
            if not isinstance(thing, tuple):
                found[path] += len(thing)
            # A copy: a thread may be at it.
            inside = [*thing.keys(), *thing.values()] if isinstance(thing, Mapping) else list(thing)
            waiting.extend((path, one) for one in inside)
            continue
        waiting.extend(_attributes(path, thing))
    return found


def _attributes(path: str, thing: object) -> Iterator[tuple[str, Any]]:
    match thing:
        case MethodType():
            yield path, thing.__self__
        case partial():
            yield from ((path, one) for one in (thing.func, *thing.args, *thing.keywords.values()))
        case FunctionType():
            for cell in thing.__closure__ or ():
                try:
                    yield path, cell.cell_contents
                except ValueError:
                    continue
        case _:
            if not type(thing).__module__.startswith("penstock"):
                return
            names = {name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())}
            names.update(getattr(thing, "__dict__", ()), getattr(thing, "__struct_fields__", ()))
            for name in names:
                mangled = f"_{type(thing).__name__.lstrip('_')}{name}" if name.startswith("__") else name
                value = getattr(thing, mangled, None)
                yield f"{type(thing).__name__}.{name}", value
