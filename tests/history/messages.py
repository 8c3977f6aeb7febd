"""What was sent, and what is in the logs: nothing lost, nothing made up, nothing twice, nothing out of order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from history import violation as v
from history.entries import Entry, of
from history.violation import Violation

Place = tuple[str, int, int]


class Send(NamedTuple):
    value: str
    topic: str
    key: str | None
    deliver_at: int | None
    invoked_at: int
    # "open" if it never came to an end.
    outcome: str
    place: Place | None
    ended_at: int | None

    @property
    def process(self) -> str:
        return self.value.rpartition("-")[0]

    @property
    def counter(self) -> int:
        return int(self.value.rpartition("-")[2])


def sends_of(entries: Sequence[Entry]) -> dict[str, Send]:
    found: dict[str, Send] = {}
    for entry in of(entries, "send"):
        value = entry["value"]
        if entry["type"] == "invoke":
            assert value not in found, f"{value} was sent twice: the history is no use"
            key, deliver_at = entry.get("key"), entry.get("deliver_at")
            found[value] = Send(value, entry["topic"], key, deliver_at, entry["at"], "open", None, None)
        else:
            send = found[value]
            place = (send.topic, entry["partition"], entry["offset"]) if entry["type"] == "ok" else None
            found[value] = send._replace(outcome=entry["type"], place=place, ended_at=entry["at"])
    return found


def check_messages(entries: Sequence[Entry]) -> Iterator[Violation]:
    sends = sends_of(entries)
    yield from _one_value_each(entries, sends)
    yield from _still_there(entries)
    for replica in of(entries, "replica", "ok"):
        if any(send.topic == replica["topic"] for send in sends.values()):
            yield from _one_log(replica, sends)


def _one_log(replica: Entry, sends: dict[str, Send]) -> Iterator[Violation]:
    """Below the high watermark: what lies beyond it is nobody's yet."""
    node, topic, partition = replica["process"], replica["topic"], replica["partition"]
    where = f"{topic}:{partition} on {node}"
    committed = replica["committed"][0]
    stored = {offset: value for offset, _, value in replica["messages"] if offset < committed}
    yield from _lost(where, stored, [s for s in sends.values() if s.place and s.place[:2] == (topic, partition)])
    offsets: dict[str, list[int]] = {}
    for offset, value in stored.items():
        offsets.setdefault(value, []).append(offset)
    for value, places in offsets.items():
        if value not in sends:
            yield Violation(v.PHANTOM, f"{value} at {places} of {where}")
            continue
        if sends[value].outcome == "fail":
            yield Violation(v.FAILED_STORED, f"{value} at {places} of {where}")
        if len(places) > 1:
            yield Violation(v.DUPLICATE, f"{value} at {places} of {where}")
    yield from _order(where, [sends[value] for _, value in sorted(stored.items()) if value in sends])


def _lost(where: str, stored: dict[int, str], acknowledged: list[Send]) -> Iterator[Violation]:
    lost = [send for send in acknowledged if send.place and stored.get(send.place[2]) != send.value]
    kept = [send.place[2] for send in acknowledged if send.place and stored.get(send.place[2]) == send.value]
    for send in lost:
        assert send.place is not None
        offset = send.place[2]
        if kept and offset < min(kept):
            kind = v.LOST_PREFIX
        elif kept and offset < max(kept):
            kind = v.LOST_MIDDLE
        else:
            kind = v.LOST_TAIL
        there = stored.get(offset, "nothing")
        yield Violation(kind, f"{send.value}, told to be at {offset} of {where}, where there is {there}")


def _order(where: str, stored: list[Send]) -> Iterator[Violation]:
    """Of one producer and key. Of those without a key in a partition, too: they are sent one after the other."""
    last: dict[tuple[str, str | None], Send] = {}
    for send in stored:
        before = last.get((send.process, send.key))
        if before is not None and before.counter > send.counter:
            yield Violation(v.ORDER, f"{send.value} behind {before.value} in {where}")
        last[send.process, send.key] = send


def _one_value_each(entries: Sequence[Entry], sends: dict[str, Send]) -> Iterator[Violation]:
    """By whatever anybody was ever told of an offset."""
    told: dict[Place, tuple[str, str]] = {}
    reported: set[Place] = set()
    for place, value, by in _evidence(entries, sends):
        known = told.setdefault(place, (value, by))
        if known[0] != value and place not in reported:
            reported.add(place)
            yield Violation(v.TWO_VALUES, f"{':'.join(map(str, place))} is {known[0]} by {known[1]}, {value} by {by}")


def _still_there(entries: Sequence[Entry]) -> Iterator[Violation]:
    """What anybody has got from a log was committed, and stays."""
    kept: dict[tuple[str, int], set[int]] = {}
    for replica in of(entries, "replica", "ok"):
        place = replica["topic"], replica["partition"]
        kept.setdefault(place, set()).update(offset for offset, _, _ in replica["messages"])
    gone: dict[Place, str] = {}
    for (topic, partition, offset), value, by in _seen(entries):
        if (topic, partition) in kept and offset not in kept[topic, partition]:
            gone.setdefault((topic, partition, offset), f"{value} at {topic}:{partition}:{offset}, by {by}")
    for what in gone.values():
        yield Violation(v.VANISHED, what)


def _evidence(entries: Sequence[Entry], sends: dict[str, Send]) -> Iterator[tuple[Place, str, str]]:
    for send in sends.values():
        if send.place is not None:
            yield send.place, send.value, f"the answer to {send.process}"
    yield from _seen(entries)
    for entry in of(entries, "replica", "ok"):
        for offset, _, value in entry["messages"]:
            if offset < entry["committed"][0]:
                yield (entry["topic"], entry["partition"], offset), value, f"the log of {entry['process']}"


def _seen(entries: Sequence[Entry]) -> Iterator[tuple[Place, str, str]]:
    for entry in of(entries, "poll", "ok"):
        for each in entry["messages"]:
            place = each["topic"], each["partition"], each["offset"]
            yield place, each["value"], f"a delivery to {entry['process']}"
    for entry in of(entries, "read", "ok"):
        for offset, value in entry["values"]:
            yield (entry["topic"], entry["partition"], offset), value, f"a read of {entry['process']}"
