"""Small files put together between batches, and what is not needed any more removed.

Whether there is something to do is seen from the archive itself: a job that runs for a moment every hour gets to it as
one that runs for months does.
"""

from __future__ import annotations

import time

from penstock.archive import Archive, compact, vacuum

# More of it waits for the next batch: messages come first.
SECONDS_MAX = 30.0
# All files are listed for it.
VACUUM_EVERY_S = 3_600.0


class Tidying:
    def __init__(self, archive: Archive, files_min: int) -> None:
        """`files_min` is how many small files of a partition make a merge worth its while, if more may come behind."""
        self._archive = archive
        self._files_min = files_min
        self._gone = 0
        self._vacuumed_s: float | None = None

    def tidy(self) -> None:
        began_s = time.monotonic()
        self._gone += compact(
            self._archive,
            last_min=self._files_min,
            is_enough=lambda: time.monotonic() - began_s > SECONDS_MAX,
        )
        if self._gone and (self._vacuumed_s is None or began_s - self._vacuumed_s >= VACUUM_EVERY_S):
            # By its grace of a day it is known that nobody has use for the files: no reader, and no task.
            vacuum(self._archive)
            self._gone, self._vacuumed_s = 0, began_s
