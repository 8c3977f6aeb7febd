"""Small files of an archive made to large ones, and files that nobody needs removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.archive.archive import Archive
from penstock.archive.layout import MANIFEST, NEW, FileEntry, checkpoint_name, commit_name, date_of, numbers_in
from penstock.archive.reading import has_unknown_columns
from penstock.archive.writing import FILE_BYTES, write_files
from penstock.durations import duration_us
from penstock.errors import ArchiveConflict
from penstock.limits import MIB

SMALL_BYTES = 64 * MIB
GRACE = "1d"


def compact(
    archive: Archive,
    *,
    small_bytes: int = SMALL_BYTES,
    file_bytes: int = FILE_BYTES,
    last_min: int = 2,
    is_enough: Callable[[], bool] = lambda: False,
) -> int:
    """Merges small files that follow each other in a partition, of one day: how many are gone for it.

    Each merged file is one commit, in which it takes the place of the others. Those stay on disk for readers that are
    at them, until `vacuum`. The last files of a partition, to which more may come, are left alone if they are fewer
    than `last_min`. Before each merge `is_enough` is asked whether the rest can wait for another time. Files with
    columns that this version does not know are left to one that does: merged here, they would lose them.
    """
    gone = 0
    archive.refresh()
    for group in list(_groups(archive.files(), small_bytes, file_bytes, last_min)):
        if is_enough():
            break
        if _is_of_a_later_version(archive, group):
            continue
        head = group[0]
        new = write_files(
            archive.place,
            archive.read(head.topic_id, head.partition, head.first_offset, group[-1].end_offset),
            topic=head.topic,
            topic_id=head.topic_id,
            partition=head.partition,
            first_offset=head.first_offset,
            end_offset=group[-1].end_offset,
            # One file, however large the pieces turn out to be together.
            file_bytes=1 << 62,
        )
        try:
            archive.rewrite(group, new)
        except ArchiveConflict:
            # Somebody else was at it.
            for entry in new:
                archive.place.remove(entry.path)
            continue
        gone += len(group) - len(new)
    return gone


def _groups(files: list[FileEntry], small_bytes: int, file_bytes: int, last_min: int) -> Iterator[list[FileEntry]]:
    group: list[FileEntry] = []
    for entry in files:
        fits = (
            group
            and entry.bytes < small_bytes
            and _partition(entry) == _partition(group[0])
            and entry.first_offset == group[-1].end_offset
            and _date(entry) in (None, _date_of(group))
            and sum(each.bytes for each in group) + entry.bytes <= file_bytes
        )
        if fits:
            group.append(entry)
            continue
        is_followed = bool(group) and _partition(group[0]) == _partition(entry)
        if len(group) >= (2 if is_followed else last_min):
            yield group
        group = [entry] if entry.rows and entry.bytes < small_bytes else []
    if len(group) >= last_min:
        yield group


def _is_of_a_later_version(archive: Archive, group: list[FileEntry]) -> bool:
    try:
        return any(has_unknown_columns(archive.place, entry) for entry in group)
    except FileNotFoundError:
        # Merged and removed by somebody else, or lost: reading them tells.
        return False


def _partition(entry: FileEntry) -> tuple[str, int]:
    return entry.topic_id, entry.partition


def _date(entry: FileEntry) -> str | None:
    """None if it has no messages."""
    return date_of(entry.min_append_time) if entry.rows else None


def _date_of(group: list[FileEntry]) -> str | None:
    return next((_date(entry) for entry in group if entry.rows), None)


def vacuum(archive: Archive, *, grace: str = GRACE) -> list[str]:
    """Removes files that have not been part of the archive for so long, and the commits that a checkpoint replaces.

    A writer that takes longer than that from its first file to its commit loses its files: leave it time.
    """
    archive.refresh()
    since_us = archive.clock.now_us() - duration_us(grace)
    ledger = archive.ledger
    live = {entry.path for entry in ledger.files()}
    on_disk = archive.place.files(ending=".parquet")
    gone = [
        file.path
        for file in on_disk
        if file.path not in live and ledger.removed.get(file.path, file.written_us) < since_us
    ]
    for path in gone:
        archive.place.remove(path)
    left = {file.path for file in on_disk} - set(gone)
    forgotten = [path for path in ledger.removed if path not in left]
    if forgotten:
        archive.forget(forgotten)
    return gone + _old_commits(archive, since_us)


def _old_commits(archive: Archive, since_us: int) -> list[str]:
    """What readers have no need of any more, and what was never a commit."""
    found = [file for file in archive.place.files(ending="") if file.path.startswith(f"{MANIFEST}/")]
    names = [file.path.removeprefix(f"{MANIFEST}/") for file in found]
    commits, checkpoints = numbers_in(names)
    # The one before the last stays as well: a reader may have listed it, and not read it yet.
    kept = checkpoints[-2] if len(checkpoints) > 1 else 0
    replaced = {commit_name(number) for number in commits if number <= kept}
    replaced |= {checkpoint_name(number) for number in checkpoints if number < kept}
    replaced |= {file.path for file in found if file.path.startswith(f"{MANIFEST}/{NEW}")}
    gone = [file.path for file in found if file.path in replaced and file.written_us < since_us]
    for path in gone:
        archive.place.remove(path)
    return gone
