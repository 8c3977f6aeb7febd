"""Everything that a history must not have. It knows nothing of how a broker works, but for the names of its events."""

from __future__ import annotations

from collections.abc import Sequence

from history.deliveries import check_deliveries
from history.entries import Entry
from history.journal import check_journals
from history.messages import check_messages
from history.progress import check_progress
from history.replicas import check_replicas
from history.run import check_run
from history.violation import Violation

LATE_US = 10_000_000


def check(
    entries: Sequence[Entry], *, late_us: int = LATE_US, sends_min: int = 1, acks_min: int = 1
) -> list[Violation]:
    """`late_us` is beyond the time at which a delayed message is due, or all is well again."""
    return [
        *check_messages(entries),
        *check_replicas(entries),
        *check_deliveries(entries, late_us=late_us),
        *check_journals(entries),
        *check_progress(entries),
        *check_run(entries, sends_min=sends_min, acks_min=acks_min),
    ]
