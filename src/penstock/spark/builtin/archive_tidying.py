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
# Of the archive, for jobs that never run for so long.
VACUUM_COMMITS = 64


class Tidying:
    def __init__(self, archive: Archive, files_min: int) -> None:
        """`files_min` is how many small files of a partition make a merge worth its while, if more may come behind."""
        self._archive = archive
        self._files_min = files_min
        self._gone = 0
        self._looked_s: float | None = None
        self._looked_at = archive.ledger.commit

    def tidy(self) -> None:
        began_s = time.monotonic()
        self._gone += compact(
            self._archive,
            last_min=self._files_min,
            is_enough=lambda: time.monotonic() - began_s > SECONDS_MAX,
        )
        if self._is_due(began_s):
            # By its grace of a day it is known that nobody has use for the files: no reader, and no task.
            vacuum(self._archive)
            self._gone, self._looked_s, self._looked_at = 0, began_s, self._archive.ledger.commit

    def _is_due(self, now_s: float) -> bool:
        """Also if nothing was merged: what tasks left that died, and what was merged a day ago, is to go some time."""
        if self._looked_s is not None:
            return now_s - self._looked_s >= VACUUM_EVERY_S
        return self._gone > 0 or self._archive.ledger.commit // VACUUM_COMMITS > self._looked_at // VACUUM_COMMITS
