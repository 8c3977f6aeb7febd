"""Every group goes on soon after the faults: within 30 s it receives, or acknowledges, a message of each partition in
which it has a backlog."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from history import violation as v
from history.deliveries import answers_of, deliveries_of, groups_by_topic, letters_of
from history.entries import Entry, of
from history.messages import Place, sends_of
from history.violation import Violation

PROGRESS_US_MAX = 30_000_000

# Group, topic and partition.
_Share = tuple[str, str, int]


class Progress(NamedTuple):
    """Of a group in a partition. `since` is when both were there: a healed cluster, and a backlog. `at` is the first
    delivery or acknowledgement after that; None if there was none."""

    group: str
    topic: str
    partition: int
    value: str
    since: int
    at: int | None


def check_progress(entries: Sequence[Entry]) -> Iterator[Violation]:
    """A history that ends within the 30 s proves nothing: `check_run` demands that such a run drained its groups."""
    end = entries[-1]["at"] if entries else 0
    for each in progress_of(entries):
        deadline = each.since + PROGRESS_US_MAX
        if end > deadline and (each.at is None or each.at > deadline):
            when = "never again" if each.at is None else f"only after {(each.at - each.since) / 1e6:.1f} s"
            yield Violation(
                v.STUCK, f"{each.group} in {each.topic}:{each.partition} went on {when}, with {each.value} to deliver"
            )


def progress_of(entries: Sequence[Entry]) -> list[Progress]:
    healed = next((entry["at"] for entry in of(entries, "heal")), None)
    if healed is None:
        return []
    events = _events(entries)
    found = []
    for share, (since, value) in _backlogs(entries, healed).items():
        after = [at for at in events.get(share, ()) if at > since]
        found.append(Progress(*share, value, since, min(after, default=None)))
    return found


def _events(entries: Sequence[Entry]) -> dict[_Share, list[int]]:
    found: dict[_Share, list[int]] = {}
    for delivery in deliveries_of(entries):
        found.setdefault((delivery.group, *delivery.place[:2]), []).append(delivery.at)
    for answer in answers_of(entries):
        if answer.op == "ack" and answer.outcome == "ok" and answer.ended_at is not None:
            found.setdefault((answer.group, *answer.place[:2]), []).append(answer.ended_at)
    return found


def _backlogs(entries: Sequence[Entry], healed: int) -> dict[_Share, tuple[int, str]]:
    """By group and partition: the first message that the group certainly still had to receive once the cluster was
    healed, and since when. Left out: delayed messages, and all that the group may have settled before."""
    letters, settled = letters_of(entries), _perhaps_settled(entries, healed)
    groups = groups_by_topic(entries)
    found: dict[_Share, tuple[int, str]] = {}
    for send in sends_of(entries).values():
        if send.place is None or send.ended_at is None or send.deliver_at is not None:
            continue
        for group in groups.get(send.topic, ()):
            if (group, send.place) in settled or (letters or {}).get((group, send.place)):
                continue
            share, since = (group, *send.place[:2]), max(healed, send.ended_at)
            if share not in found or since < found[share][0]:
                found[share] = since, send.value
    return found


def _perhaps_settled(entries: Sequence[Entry], healed: int) -> set[tuple[str, Place]]:
    """Before the cluster was healed: acknowledged, whatever the outcome; or, if nobody looked for dead letters,
    delivered at all."""
    found = {
        (answer.group, answer.place)
        for answer in answers_of(entries)
        if answer.op == "ack" and answer.invoked_at <= healed
    }
    if letters_of(entries) is None:
        found |= {(each.group, each.place) for each in deliveries_of(entries) if each.at <= healed}
    return found
