"""The copies of a partition are one log, as far as it is committed; and how far that is never goes back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from history import violation as v
from history.entries import Entry, of
from history.violation import Violation

_LOGS = "messages", "deliveries"


def check_replicas(entries: Sequence[Entry]) -> Iterator[Violation]:
    copies: dict[tuple[str, int], list[Entry]] = {}
    for replica in of(entries, "replica", "ok"):
        copies.setdefault((replica["topic"], replica["partition"]), []).append(replica)
    for (topic, partition), found in copies.items():
        for number, name in enumerate(_LOGS):
            yield from _one_log(f"{name} of {topic}:{partition}", number, name, found)
    yield from _never_back(entries)


def _one_log(where: str, number: int, name: str, copies: list[Entry]) -> Iterator[Violation]:
    committed = max(copy["committed"][number] for copy in copies)
    for copy in copies:
        end = copy["ends"][number]
        if end < committed:
            yield Violation(v.BEHIND, f"{where} end at {end} on {copy['process']}, and {committed} is committed")
    rows = [{offset: (epoch, value) for offset, epoch, value in copy[name] if offset < committed} for copy in copies]
    first = copies[0]["process"]
    for copy, other in zip(copies[1:], rows[1:], strict=True):
        different = sorted(at for at in rows[0].keys() | other.keys() if rows[0].get(at) != other.get(at))
        if different:
            at = different[0]
            yield Violation(
                v.DIVERGED,
                f"{where} at {at}: {rows[0].get(at)} on {first}, {other.get(at)} on {copy['process']}; "
                f"{len(different)} in all",
            )


def _never_back(entries: Sequence[Entry]) -> Iterator[Violation]:
    """As one client sees it, who asks one time after the other."""
    last: dict[tuple[str, str, int], int] = {}
    for entry in of(entries, "look", "ok"):
        for partition, committed in enumerate(entry["committed"]):
            key = entry["process"], entry["topic"], partition
            if committed < last.get(key, 0):
                yield Violation(
                    v.WENT_BACK,
                    f"of {entry['topic']}:{partition} from {last[key]} to {committed}, seen by {entry['process']}",
                )
            last[key] = committed
    for replica in of(entries, "replica", "ok"):
        for (_, topic, partition), committed in last.items():
            if (topic, partition) == (replica["topic"], replica["partition"]) and replica["ends"][0] < committed:
                yield Violation(
                    v.WENT_BACK,
                    f"of {topic}:{partition}, which was {committed}: {replica['process']} ends at {replica['ends'][0]}",
                )
