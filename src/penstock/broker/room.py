"""Whether there is room for what somebody wants to publish.

A disk that runs full takes more with it than one broker: other processes, the snapshots that make a start quick, the
rows that say what was acknowledged. So messages are refused while there is still room for all of those, and taken again
as soon as somebody has made some. It is looked at now and then, not for each message.
"""

from __future__ import annotations

from penstock.clock import Clock
from penstock.errors import DiskFull
from penstock.limits import Limits
from penstock.storage.files import Files

LOOK_US = 1_000_000


class Room:
    """Belongs to one event loop."""

    def __init__(self, files: Files, clock: Clock, limits: Limits) -> None:
        self._files = files
        self._clock = clock
        self._percent_min = limits.disk_free_percent_min
        self._looked_us: int | None = None
        self._refusal: DiskFull | None = None

    def check(self) -> None:
        """DiskFull if too little of it is free."""
        now = self._clock.monotonic_us()
        if self._looked_us is None or now - self._looked_us >= LOOK_US:
            self._looked_us = now
            self._refusal = self._looked()
        if self._refusal is not None:
            raise self._refusal.again()

    def _looked(self) -> DiskFull | None:
        free, total = self._files.space()
        # Of some file systems nobody knows how large they are.
        if not total or free * 100 >= total * self._percent_min:
            return None
        return DiskFull(
            f"only {free * 100 / total:.1f} % of the disk is free; messages are taken again when it is "
            f"{self._percent_min} %",
            free_bytes=free,
            free_percent_min=self._percent_min,
        )
