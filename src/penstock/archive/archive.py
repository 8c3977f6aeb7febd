"""An archive of topics in Parquet files: opened, read by whoever likes, written by commits.

A commit is one file that appears under the next number, as a whole or not at all. Whoever is second to a number looks
at what came first, and either goes on behind it or hears what is in the way. So an archive needs no server and no lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Lock

import pyarrow as pa

from penstock.archive import layout
from penstock.archive.layout import Checkpoint, Commit, FileEntry, Format
from penstock.archive.ledger import Ledger
from penstock.archive.place import Place
from penstock.archive.reading import read_file
from penstock.clock import Clock, SystemClock
from penstock.errors import ArchiveConflict, ArchiveCorrupt, ArchiveNotFound, InvalidInput, MessagesMissing

# Delta Lake writes one every 10 commits; ours are smaller.
CHECKPOINT_EVERY = 32


class Archive:
    """Made with `Archive.open`. Any thread may use it. What others commit is seen after `refresh`."""

    def __init__(self, place: Place, clock: Clock, checkpoint_every: int) -> None:
        self.place = place
        self.clock = clock
        self._checkpoint_every = checkpoint_every
        self._ledger = Ledger()
        # The last commit that is in the ledger, as it was read.
        self._last = b""
        self._is_replaced = False
        self._refreshing = Lock()

    @classmethod
    def open(
        cls,
        uri: str | os.PathLike[str],
        *,
        create: bool = False,
        clock: Clock | None = None,
        checkpoint_every: int = CHECKPOINT_EVERY,
    ) -> Archive:
        """A directory, or a URI. ArchiveNotFound if there is none there, unless it is to be made."""
        place = Place(uri)
        if create:
            place.check_writable()
            if place.size(layout.FORMAT_NAME) is None:
                place.publish(layout.FORMAT_NAME, layout.encoded(Format()))
        layout.decoded(layout.FORMAT_NAME, cls._read_format(place), Format)
        archive = cls(place, clock or SystemClock(), checkpoint_every)
        archive.refresh()
        return archive

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.place.uri} at commit {self._ledger.commit}>"

    # --- what there is -----------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Takes up what was committed since; all there is, if another archive is in that place now."""
        with self._refreshing:
            if not self._is_still_there():
                layout.decoded(layout.FORMAT_NAME, self._read_format(self.place), Format)
                self._ledger, self._last, self._is_replaced = Ledger(), b"", True
            try:
                self._ledger = self._refreshed(self._ledger)
            except ArchiveCorrupt:
                # A listing is not of one moment: it may have a commit, and not have the one before it.
                self._ledger = self._refreshed(self._ledger)

    def _is_still_there(self) -> bool:
        """Whether the archive was not made anew, or set back to an older state."""
        if not self._last:
            return True
        found = self._commit_read(self._ledger.commit)
        if found is None:
            # Nobody needs it any more if a later checkpoint stands for it, which is read then.
            _, checkpoints = layout.numbers_in(self.place.names(layout.MANIFEST))
            return bool(checkpoints) and checkpoints[-1] > self._ledger.commit
        return found == self._last

    def _commit_read(self, number: int) -> bytes | None:
        try:
            return self.place.read(layout.commit_name(number))
        except FileNotFoundError:
            return None

    @staticmethod
    def _read_format(place: Place) -> bytes:
        try:
            return place.read(layout.FORMAT_NAME)
        except FileNotFoundError as error:
            raise ArchiveNotFound(f"there is no archive in {place.uri}", archive=place.uri) from error

    def _refreshed(self, ledger: Ledger) -> Ledger:
        commits, checkpoints = layout.numbers_in(self.place.names(layout.MANIFEST))
        last = self._last
        if checkpoints and checkpoints[-1] > ledger.commit:
            name = layout.checkpoint_name(checkpoints[-1])
            ledger = Ledger.of(layout.decoded(name, self.place.read(name), Checkpoint))
            last = self._commit_read(ledger.commit) or b""
        fresh = [number for number in commits if number > ledger.commit]
        if fresh:
            ledger = ledger.copy()
        for number in fresh:
            name = layout.commit_name(number)
            if number != ledger.commit + 1:
                missing = layout.commit_name(ledger.commit + 1)
                raise ArchiveCorrupt(f"{missing} of the archive {self.place.uri} is missing", file=missing)
            last = self.place.read(name)
            ledger.apply(layout.decoded(name, last, Commit))
        self._last = last
        return ledger

    @property
    def ledger(self) -> Ledger:
        """As of the last `refresh`; it never changes."""
        return self._ledger

    def files(self, topic_id: str | None = None) -> list[FileEntry]:
        """All that count, or those of one topic; by partition and offset."""
        return [entry for entry in self._ledger.files() if topic_id is None or entry.topic_id == topic_id]

    def topics(self) -> dict[str, str]:
        """The ids of all topics there are, with their names. One that was made anew is there twice."""
        return {entry.topic_id: entry.topic for entry in self._ledger.files()}

    def covered(self, topic_id: str) -> dict[int, int]:
        """Of each partition that there is something of: the offset from which on nothing is archived."""
        ledger = self._ledger
        return {
            partition: ledger.of_partition(topic_id, partition)[-1].end_offset
            for partition in ledger.partitions(topic_id)
        }

    def last_batch(self, writer_id: str) -> int | None:
        """The last one that this writer has committed."""
        return self._ledger.writers.get(writer_id)

    def path_of(self, entry: FileEntry) -> str:
        """Where the file is, for whoever reads it with something else."""
        return self.place.full(entry.path)

    # --- reading -----------------------------------------------------------------------------------------

    def read(
        self, topic_id: str, partition: int, first: int, until: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The messages with offsets [first, until), with the columns of `layout.COLUMNS` or some of them.

        MessagesMissing if some of that is not covered. A file that was rewritten meanwhile is no trouble.
        """
        offset = first
        while offset < until:
            entry = self._ledger.at(topic_id, partition, offset)
            if entry is None:
                raise MessagesMissing(
                    f"the archive {self.place.uri} has nothing of partition {partition} at offset {offset}",
                    partition=partition,
                    first=offset,
                    end=min(until, self._ledger.next_first(topic_id, partition, offset) or until),
                )
            try:
                for batch in read_file(self.place, entry, offset, until, columns):
                    yield batch.data
                    offset = batch.next_offset
                offset = entry.end_offset
            except FileNotFoundError as error:
                self.refresh()
                if self._ledger.at(topic_id, partition, offset) == entry:
                    raise ArchiveCorrupt(
                        f"{entry.path} of the archive {self.place.uri} is missing", file=entry.path
                    ) from error

    def offset_at(self, entry: FileEntry, time_us: int) -> int:
        """The first offset of that file that was appended at or after a time; the file has one."""
        offset = entry.first_offset
        for batch in self.read(entry.topic_id, entry.partition, offset, entry.end_offset, ["append_time", "offset"]):
            times = batch.column("append_time").cast(pa.int64()).to_numpy()
            row = int(times.searchsorted(time_us))
            if row < len(times):
                return int(batch.column("offset")[row].as_py())
        raise ArchiveCorrupt(f"{entry.path} has not the times that the manifest says", file=entry.path)

    # --- writing -----------------------------------------------------------------------------------------

    def commit(
        self, writer_id: str, batch_id: int | None, entries: Iterable[FileEntry], *, allow_gaps: bool = False
    ) -> int:
        """Makes files part of the archive: all of them or none. The number of the commit in which they are.

        A writer counts its batches upwards. One that it has committed before is recognised, and nothing happens: the
        files of the first time stand. With None it is the next one. ArchiveConflict if another writer covers some of it
        already, or if there would be a gap behind what is there, unless those messages are lost and `allow_gaps` says
        so.
        """
        added = tuple(entries)
        if not writer_id or not isinstance(writer_id, str):
            raise InvalidInput(f"a writer has an id, not {writer_id!r}", argument="writer_id")
        is_number = isinstance(batch_id, int) and not isinstance(batch_id, bool) and batch_id >= 0
        if batch_id is not None and not is_number:
            raise InvalidInput(f"a batch is a number from 0 on, not {batch_id!r}", argument="batch_id")
        for entry in added:
            entry.check()

        def made(ledger: Ledger) -> Commit | None:
            last = ledger.writers.get(writer_id, -1)
            number = last + 1 if batch_id is None else batch_id
            if number <= last:
                if not ledger.has_all(added):
                    raise ArchiveConflict(
                        f"batch {number} of {writer_id} was committed before, and had other offsets; its batches go "
                        f"on after {last}",
                        writer=writer_id,
                        batch=last,
                    )
                return None
            ledger.check(added, allow_gaps=allow_gaps)
            self._check_files(added)
            return self._next(ledger, writer=writer_id, batch=number, added=added)

        return self.save(made)

    def save(self, made: Callable[[Ledger], Commit | None]) -> int:
        """Commits what `made` says of the archive as it is, as often as somebody else is faster."""
        self.place.check_writable()
        while True:
            self.refresh()
            if self._is_replaced:
                raise ArchiveConflict(
                    f"the archive in {self.place.uri} was made anew, or set back to an older state, while it was being "
                    "written: open it again, and look what it has",
                    archive=self.place.uri,
                )
            commit = made(self._ledger)
            if commit is None:
                return self._ledger.commit
            if self.place.publish(layout.commit_name(commit.commit), layout.encoded(commit)):
                self.refresh()
                if commit.commit % self._checkpoint_every == 0:
                    self._write_checkpoint(commit.commit)
                return commit.commit

    def rewrite(self, old: Sequence[FileEntry], new: Sequence[FileEntry]) -> int:
        """The same messages in other files."""

        def made(ledger: Ledger) -> Commit:
            ledger.check_rewrite(list(old), list(new))
            self._check_files(new)
            return self._next(ledger, added=tuple(new), removed=tuple(each.path for each in old if each.path))

        return self.save(made)

    def forget(self, paths: Sequence[str]) -> int:
        """Removed files that are not on disk any more."""
        return self.save(lambda ledger: self._next(ledger, forgotten=tuple(paths)))

    def _next(
        self,
        ledger: Ledger,
        *,
        writer: str = "",
        batch: int = 0,
        added: tuple[FileEntry, ...] = (),
        removed: tuple[str, ...] = (),
        forgotten: tuple[str, ...] = (),
    ) -> Commit:
        return Commit(
            commit=ledger.commit + 1,
            time_us=self.clock.now_us(),
            writer=writer,
            batch=batch,
            added=added,
            removed=removed,
            forgotten=forgotten,
        )

    def _check_files(self, entries: Iterable[FileEntry]) -> None:
        for entry in entries:
            size = self.place.size(entry.path) if entry.path else 0
            if size != entry.bytes:
                there = "is not there" if size is None else f"has {size} bytes, not {entry.bytes}"
                raise InvalidInput(f"{entry.path} {there}: nothing is committed", file=entry.path)

    def _write_checkpoint(self, number: int) -> None:
        # Of just that commit: whoever has come since makes its own.
        ledger = self._ledger
        if ledger.commit == number:
            self.place.publish(layout.checkpoint_name(number), layout.encoded(ledger.checkpoint()), replace=True)
