"""The deliveries log says of itself what was leased, acknowledged and given up: it has to make sense, and to be what
clients were told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from history import violation as v
from history.deliveries import answers_of, deliveries_of
from history.entries import Entry, has_wrong_clocks, of
from history.violation import Violation

# Whoever had something does not have it any more.
_ENDS = "A", "N", "X", "R", "D"


class Journal:
    """Of one partition and group. `has_dates`: deadlines can be compared with when something was written."""

    def __init__(self, where: str, *, has_dates: bool = True) -> None:
        self._where = where
        self._has_dates = has_dates
        # Who has it, and until when.
        self._held: dict[int, tuple[int, int]] = {}
        self.acknowledged: set[int] = set()
        self._given_up: set[int] = set()
        self.leased: set[tuple[int, int]] = set()

    def read(self, at: int, tag: str, event: dict[str, Any]) -> Iterator[Violation]:
        offsets = event.get("offsets", [])
        if tag == "L":
            for offset in offsets:
                yield from self._lease(at, offset, event["lease"], event["deadline"])
        elif tag == "E":
            for offset, (lease, _) in self._held.items():
                if lease == event["lease"]:
                    self._held[offset] = lease, event["deadline"]
        elif tag in _ENDS:
            for offset in offsets:
                self._held.pop(offset, None)
            if tag == "A":
                self.acknowledged.update(offsets)
            elif tag == "D":
                self._given_up.update(offsets)
        elif tag == "S":
            self._held.clear()

    def _lease(self, at: int, offset: int, lease: int, deadline: int) -> Iterator[Violation]:
        self.leased.add((lease, offset))
        if offset in self.acknowledged or offset in self._given_up:
            yield Violation(v.REDELIVERED, f"by the log, offset {offset} of {self._where} is leased again by {lease}")
        before = self._held.get(offset)
        if before is not None and before[1] > at and self._has_dates:
            yield Violation(
                v.OVERLAP, f"by the log, offset {offset} of {self._where} is leased by {lease}, and {before[0]} has it"
            )
        self._held[offset] = lease, deadline


def check_journals(entries: Sequence[Entry]) -> Iterator[Violation]:
    journals: dict[tuple[str, int, str], Journal] = {}
    whole: set[tuple[str, int]] = set()
    has_dates = not has_wrong_clocks(entries)
    for replica in of(entries, "replica", "ok"):
        place = replica["topic"], replica["partition"]
        if "events" not in replica or place in whole:
            continue
        whole.add(place)
        for at, tag, group, event in replica["events"]:
            where = f"{place[0]}:{place[1]} for {group}"
            yield from journals.setdefault((*place, group), Journal(where, has_dates=has_dates)).read(at, tag, event)
    yield from _as_clients_were_told(entries, journals, whole)


def _as_clients_were_told(
    entries: Sequence[Entry], journals: dict[tuple[str, int, str], Journal], whole: set[tuple[str, int]]
) -> Iterator[Violation]:
    nothing = Journal("nowhere")
    for each in deliveries_of(entries):
        topic, partition, offset = each.place
        journal = journals.get((topic, partition, each.group), nothing)
        if (topic, partition) in whole and (each.lease, offset) not in journal.leased:
            yield Violation(v.LEASE_UNKNOWN, f"{each.value} to {each.consumer} of {each.group}, lease {each.lease}")
    for answer in answers_of(entries):
        topic, partition, offset = answer.place
        journal = journals.get((topic, partition, answer.group), nothing)
        is_told = answer.op == "ack" and answer.outcome == "ok"
        if is_told and (topic, partition) in whole and offset not in journal.acknowledged:
            yield Violation(v.ACK_LOST, f"of {':'.join(map(str, answer.place))} by {answer.group}")
