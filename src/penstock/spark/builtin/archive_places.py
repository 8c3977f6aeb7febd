"""Where archiving goes on: behind what the archive has. It is asked at every start, so nothing else has to know it."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.archive import Archive
from penstock.errors import ArchiveConflict
from penstock.spark.losses import Losses
from penstock.spark.offsets import Place, Places
from penstock.spark.subscription import Seen
from penstock.spark.tables import Held


def places(archive: Archive, seen: Mapping[str, Seen], losses: Losses) -> Places:
    """Of each partition the first offset that is not archived: the start of its log, if nothing of it is."""
    found = {}
    for topic, now in seen.items():
        covered = archive.covered(now.id)
        offsets = {
            number: _place(archive, f"partition {number} of {topic}", covered.get(number, held.start), held, losses)
            for number, held in now.partitions.items()
        }
        # What is missing has been told by now.
        found[topic] = Place(now.id, offsets, now.holes)
    return found


def _place(archive: Archive, which: str, at: int, held: Held, losses: Losses) -> int:
    if at > held.end:
        raise ArchiveConflict(
            f"{which} is archived up to offset {at} in {archive.place.uri}, and its log ends at {held.end}: the broker "
            "was set back to an older state, and would give offsets a second time. Use another archive for it",
            covered=at,
            end=held.end,
        )
    if at < held.start:
        losses.report(
            f"offsets {at} to {held.start} of {which} were deleted before they were archived: with archive=required "
            "the broker keeps what is not archived yet"
        )
    elif (whole_from := held.lost(at)) > at:
        losses.report(
            f"of offsets {at} to {whole_from} of {which} retention has left single messages, which are for later, and "
            "deleted the others before they were archived: with archive=required the broker keeps what is not archived "
            "yet"
        )
    return max(at, held.start)
