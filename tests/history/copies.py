"""A replica by itself, as it is on a disk: what an entry of a history has of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Protocol

from penstock.broker import events as e
from penstock.broker.letter import obituary_of
from penstock.frame import CONTROL
from penstock.storage.log import Log

NOTHING: dict[str, Any] = {"start": 0, "ends": [0, 0], "messages": [], "deliveries": [], "letters": [], "events": []}
# As entries of a history have them. Rows of other kinds are compared, and not looked into.
_TAGS: dict[type, str] = {
    e.Leased: "L",
    e.Extended: "E",
    e.Acknowledged: "A",
    e.Nacked: "N",
    e.Expired: "X",
    e.Released: "R",
    e.Exhausted: "D",
    e.Started: "S",
}


class Notes(Protocol):
    def note(self, process: str, op: str, type: str, **fields: Any) -> Any: ...


def note_copies(notes: Notes, topic: str, number: int, committed: int, copies: Mapping[str, Mapping[str, Any]]) -> None:
    """Of one partition, by node. `committed` is the high watermark of messages, as clients were told. Of the deliveries
    nobody is told: all that is on every disk is, once all replicas are in sync and nothing is going on."""
    shortest = min(copy["ends"][1] for copy in copies.values())
    # One node after the other deletes what a snapshot has.
    start = max(copy["start"] for copy in copies.values())
    for name, copy in copies.items():
        fields = {**copy, "events": [event for at, event in copy["events"] if at < shortest]}
        del fields["start"]
        if start:
            del fields["events"]
            fields["deliveries"] = [row for row in copy["deliveries"] if row[0] >= start]
        if not topic.endswith(".dlq"):
            del fields["letters"]
        notes.note(name, "replica", "ok", topic=topic, partition=number, committed=[committed, shortest], **fields)


def copy_of(messages_log: Log, deliveries_log: Log) -> dict[str, Any]:
    messages: list[list[Any]] = []
    letters: list[list[Any]] = []
    for frame in messages_log.frames(messages_log.start_offset):
        batch = frame.batch()
        for offset, message in zip(frame.offsets(batch).tolist(), batch.messages(), strict=True):
            messages.append([offset, frame.leader_epoch, (message.value or b"").decode()])
            obituary = obituary_of(message)
            if obituary is not None:
                letters.append([obituary.group, obituary.topic, obituary.partition, obituary.offset])
    deliveries: list[list[Any]] = []
    events: list[tuple[int, list[Any]]] = []
    for frame in deliveries_log.frames(deliveries_log.start_offset):
        batch = frame.batch()
        for offset, message in zip(frame.offsets(batch).tolist(), batch.messages(), strict=True):
            digest = blake2b(message.value or b"", digest_size=8).hexdigest()
            deliveries.append([offset, frame.leader_epoch, digest])
            # A snapshot says again what rows before it have said.
            if not frame.flags & CONTROL:
                events += [(offset, told) for told in _events(message.value, message.timestamp)]
    ends = [messages_log.end_offset, deliveries_log.end_offset]
    return {
        "start": deliveries_log.start_offset,
        "ends": ends,
        "messages": messages,
        "deliveries": deliveries,
        "letters": letters,
        "events": events,
    }


def _events(value: bytes | None, at_us: int) -> Iterator[list[Any]]:
    for event, at in e.from_value(value, at_us):
        tag = _TAGS.get(type(event))
        if tag is not None:
            told: dict[str, Any] = {}
            for field in ("lease", "deadline_us"):
                if hasattr(event, field):
                    told[field.removesuffix("_us")] = getattr(event, field)
            if hasattr(event, "offsets"):
                told["offsets"] = list(e.unpack(event.offsets))
            yield [at, tag, event.group, told]
