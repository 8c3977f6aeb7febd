"""Commits to an archive until it is killed, and tells of each commit: python writer.py DIR"""

from __future__ import annotations

import sys
from pathlib import Path

from archive.support import written
from penstock.archive import Archive


def work(where: Path) -> None:
    archive = Archive.open(where, create=True, checkpoint_every=3)
    while True:
        first = archive.covered("id").get(0, 0)
        last = archive.last_batch("w")
        archive.commit("w", 0 if last is None else last + 1, written(where, first, first + 10))
        print(first + 10, flush=True)


if __name__ == "__main__":
    work(Path(sys.argv[1]))
