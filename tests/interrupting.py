"""An interrupt (Ctrl-C) at a chosen point of a call, wherever the interpreter may look for one."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

# Between a call and what is called, there is none.
_POINTS = frozenset({"call", "return", "c_return"})
# Where the interpreter of today really looks. A function that returns does not.
LOOKS = frozenset({"call", "c_return"})


def is_interrupted(
    call: Callable[[], object], point: int, modules: tuple[str, ...], points: frozenset[str] = _POINTS
) -> bool:
    """False if the call was over before the point had come. Counts those in these modules, on this thread."""
    left = point

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left
        if event in points and frame.f_globals.get("__name__", "").startswith(modules):
            left -= 1
            if left < 0:
                raise KeyboardInterrupt

    # A finalizer that a collection runs in between would swallow the interrupt.
    gc.disable()
    sys.setprofile(profile)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
        gc.enable()
    return False
