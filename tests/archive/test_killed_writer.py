"""A writer that is killed: what it was told to be committed is there, and the next one goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from archive.support import offsets_of
from penstock.archive import Archive, vacuum

WRITER = Path(__file__).with_name("writer.py")


def _killed_after(where: Path, commits: int) -> int:
    """How far it has told to be."""
    environment = {**os.environ, "PYTHONPATH": str(WRITER.parents[1])}
    with subprocess.Popen(
        [sys.executable, str(WRITER), str(where)], stdout=subprocess.PIPE, text=True, env=environment
    ) as writer:
        assert writer.stdout is not None
        told = 0
        for _ in range(commits):
            told = int(writer.stdout.readline())
        writer.kill()
    return told


def test_a_killed_writer_loses_nothing_that_it_has_told(tmp_path: Path) -> None:
    told = 0
    for commits in (5, 8):
        told = _killed_after(tmp_path, commits)
        archive = Archive.open(tmp_path)
        # One more may have been committed than was told.
        end = archive.covered("id")[0]
        assert end >= told
        assert offsets_of(archive, 0, end) == list(range(end))
        assert archive.last_batch("w") == end // 10 - 1
    assert told >= 130
    vacuum(archive, grace="0s")
    assert {path.name for path in tmp_path.rglob("*.parquet")} == {Path(each.path).name for each in archive.files()}
    assert offsets_of(Archive.open(tmp_path), 0, end) == list(range(end))
