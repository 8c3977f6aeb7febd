"""What a process reads from outside itself: time and randomness.

Assemblies (`connect`, `Server`) take one and hand on its parts; the simulation of a cluster in one process
(`tests/simulation/world`) has others. Connections, timers and waiting are the event loop's.
"""

from __future__ import annotations

import os
import random
from time import perf_counter

from penstock.clock import Clock, SystemClock


def random_id() -> bytes:
    """Sixteen random bytes, for an id that is unique."""
    return os.urandom(16)


class Environment:
    """The operating system's."""

    def __init__(self) -> None:
        self.clock: Clock = SystemClock()

    def new_id(self) -> bytes:
        return random_id()

    def dice(self) -> float:
        """From 0 to 1, to spread what would happen at the same time."""
        return random.random()

    # For durations that are only reported, and for waits shorter than a turn of the loop.
    stopwatch_s = staticmethod(perf_counter)
