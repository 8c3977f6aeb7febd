"""What an archive holds: the sum of its commits.

Invariant: the ranges that the files of a partition cover do not overlap, and are in order. `check` refuses a commit
that would break it, `apply` believes what was committed.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.archive.layout import Checkpoint, Commit, FileEntry
from penstock.errors import ArchiveConflict, InvalidInput

_Key = tuple[str, int]


class Since(NamedTuple):
    """Where messages of a time on may start: `entry` is the first file with such a message, if there is one; in
    [`offset`, first of that file) there may be more of them that the archive does not have."""

    entry: FileEntry | None
    offset: int
    is_certain: bool


def _first(entry: FileEntry) -> int:
    return entry.first_offset


class Ledger:
    def __init__(self) -> None:
        self.commit = 0
        self.writers: dict[str, int] = {}
        # Files that were removed, and when; they may still be on disk.
        self.removed: dict[str, int] = {}
        self._files: dict[_Key, list[FileEntry]] = {}

    # --- made of commits ---------------------------------------------------------------------------------

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Ledger:
        ledger = cls()
        ledger.commit = checkpoint.commit
        ledger.writers = dict(checkpoint.writers)
        ledger.removed = dict(checkpoint.removed)
        for entry in checkpoint.files:
            ledger._add(entry)
        return ledger

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(commit=self.commit, files=tuple(self.files()), writers=self.writers, removed=self.removed)

    def copy(self) -> Ledger:
        copy = Ledger()
        copy.commit = self.commit
        copy.writers, copy.removed = dict(self.writers), dict(self.removed)
        copy._files = {key: list(files) for key, files in self._files.items()}
        return copy

    def apply(self, commit: Commit) -> None:
        assert commit.commit == self.commit + 1
        gone = set(commit.removed)
        if gone:
            # A rewrite covers with its new files what the old ones did.
            for key in {(entry.topic_id, entry.partition) for entry in commit.added}:
                first, end = _hull(entry for entry in commit.added if (entry.topic_id, entry.partition) == key)
                self._files[key] = [
                    entry for entry in self._files[key] if not (first <= entry.first_offset and entry.end_offset <= end)
                ]
            self.removed |= dict.fromkeys(sorted(gone), commit.time_us)
        for entry in commit.added:
            self._add(entry)
        for path in commit.forgotten:
            self.removed.pop(path, None)
        if commit.writer:
            self.writers[commit.writer] = commit.batch
        self.commit = commit.commit

    def _add(self, entry: FileEntry) -> None:
        insort(self._files.setdefault((entry.topic_id, entry.partition), []), entry, key=_first)

    # --- what may be added -------------------------------------------------------------------------------

    def check(self, added: Iterable[FileEntry], *, allow_gaps: bool) -> None:
        """InvalidInput or ArchiveConflict."""
        reached: dict[_Key, int] = {}
        for entry in sorted(added, key=lambda each: (each.topic_id, each.partition, each.first_offset)):
            entry.check()
            key = entry.topic_id, entry.partition
            files = self._files.get(key, [])
            first, end = entry.first_offset, entry.end_offset
            behind = self.next_first(*key, first)
            is_taken = self.at(*key, first) or first < reached.get(key, 0) or (behind is not None and behind < end)
            if is_taken:
                raise _conflict(entry, files, "are there already, at least in part; another writer may have come first")
            follows = (not files and key not in reached) or first == reached.get(key) or self.at(*key, first - 1)
            if not follows and not allow_gaps:
                raise _conflict(
                    entry, files, "would leave a gap in front of them; if that is lost, say so (allow_gaps)"
                )
            reached[key] = end

    def has_all(self, entries: Iterable[FileEntry]) -> bool:
        """Whether everything that these cover is covered."""
        return all(
            self.covered_until(entry.topic_id, entry.partition, entry.first_offset) >= entry.end_offset
            for entry in entries
        )

    def check_rewrite(self, old: list[FileEntry], new: list[FileEntry]) -> None:
        """The new files are to be the old ones in another form."""
        live = set(self.files())
        if not set(old) <= live:
            raise ArchiveConflict("files that were to be rewritten are not in the archive any more")
        is_same = _hull(old) == _hull(new) and sum(each.rows for each in old) == sum(each.rows for each in new)
        if not is_same:
            raise InvalidInput("a rewrite holds the same messages of the same offsets as before")

    # --- what there is -----------------------------------------------------------------------------------

    def files(self) -> Iterator[FileEntry]:
        for key in sorted(self._files):
            yield from self._files[key]

    def of_partition(self, topic_id: str, partition: int) -> list[FileEntry]:
        return self._files.get((topic_id, partition), [])

    def partitions(self, topic_id: str) -> list[int]:
        return sorted(partition for identity, partition in self._files if identity == topic_id)

    def at(self, topic_id: str, partition: int, offset: int) -> FileEntry | None:
        """What covers that offset."""
        files = self.of_partition(topic_id, partition)
        place = bisect_right(files, offset, key=_first) - 1
        return files[place] if place >= 0 and offset < files[place].end_offset else None

    def covered_until(self, topic_id: str, partition: int, offset: int) -> int:
        """Where what is covered from `offset` on without a gap ends; `offset` itself if it is not covered."""
        while (entry := self.at(topic_id, partition, offset)) is not None:
            offset = entry.end_offset
        return offset

    def next_first(self, topic_id: str, partition: int, offset: int) -> int | None:
        """The first offset behind it that is covered."""
        files = self.of_partition(topic_id, partition)
        place = bisect_right(files, offset, key=_first)
        return files[place].first_offset if place < len(files) else None

    def since(self, topic_id: str, partition: int, time_us: int) -> Since:
        """Times in a log never go back, so neither do they in its files."""
        # What lies before it is older, or covered, or both.
        known = 0
        for entry in self.of_partition(topic_id, partition):
            is_next = entry.first_offset <= known
            if entry.rows and entry.max_append_time >= time_us:
                return Since(entry, known, is_next or entry.min_append_time < time_us)
            if is_next or entry.rows:
                known = entry.end_offset
        return Since(None, known, False)


def _conflict(entry: FileEntry, files: list[FileEntry], reason: str) -> ArchiveConflict:
    covered = files[-1].end_offset if files else 0
    return ArchiveConflict(
        f"{entry.topic} partition {entry.partition} is archived up to {covered}: offsets {entry.first_offset} to "
        f"{entry.end_offset} {reason}",
        topic=entry.topic,
        partition=entry.partition,
        covered=covered,
    )


def _hull(entries: Iterable[FileEntry]) -> tuple[int, int]:
    """From where to where, if they follow each other without a gap."""
    ordered = sorted(entries, key=_first)
    for one, other in itertools.pairwise(ordered):
        if one.end_offset != other.first_offset:
            raise InvalidInput("files that are rewritten together follow each other without a gap")
    return ordered[0].first_offset, ordered[-1].end_offset
