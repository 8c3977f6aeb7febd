"""What clients saw, one line of JSON for each thing that happened, in the order in which it did.

{"at": µs, "process": "p1", "op": "send", "type": "invoke", …}      it begins
{"at": µs, "process": "p1", "op": "send", "type": "ok", …}          it was carried out
                                          "fail"                    it was not, and never will be
                                          "info"                    nobody knows

op        invoke                             ok
send      value, topic, key, deliver_at      partition, offset            value is process-counter, and used once
group     group, topics, and its ordering if it has one
poll      group                              group, messages: [{topic, partition, offset, value, attempt, lease,
                                                                deadline}]
ack       group, topic, partition, offset, attempt, lease
nack      the same; also for whoever rejects a message
look                                         topic, committed: [offset of each partition]
read                                         topic, partition, values: [[offset, value]]
fault     fault, of                          evidence
heal                                         the faults are over
settled                                      what, took_us
clock                                        of a node: behind_us, ahead_us: how wrong it was at most
death                                        a process ended by itself: code
replica                                      process: the node; topic, partition, committed: [messages, deliveries],
                                             messages: [[offset, epoch, value]],
                                             deliveries: [[offset, epoch, digest]],
                                             events: [[at, tag, group, {…}]] of the deliveries, in their order; left out
                                             if some were deleted
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


def now_us() -> int:
    return time.time_ns() // 1_000


class Recorder:
    """Used by one thread."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        self.entries: list[Entry] = []

    def note(self, process: str, op: str, type: str, **fields: Any) -> Entry:
        entry = {"at": now_us(), "process": process, "op": op, "type": type, **fields}
        self.entries.append(entry)
        self._file.write(json.dumps(entry) + "\n")
        return entry

    def close(self) -> None:
        self._file.close()


@contextmanager
def recording(path: Path) -> Iterator[Recorder]:
    recorder = Recorder(path)
    try:
        yield recorder
    finally:
        recorder.close()


def read_entries(path: Path) -> list[Entry]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def of(entries: Iterable[Entry], op: str, type: str | None = None) -> Iterator[Entry]:
    return (entry for entry in entries if entry["op"] == op and type in (None, entry["type"]))


def has_wrong_clocks(entries: Iterable[Entry]) -> bool:
    """Whether the wall clock of a node was stepped, or wrong: dates that nodes wrote can't be compared then."""
    return any(
        (entry["op"] == "fault" and entry["fault"] == "step_clock") or (entry["op"] == "clock" and _is_wrong(entry))
        for entry in entries
    )


def _is_wrong(clock: Entry) -> bool:
    return bool(clock["behind_us"] or clock["ahead_us"])


def ahead_us_max(entries: Iterable[Entry]) -> int | None:
    """By how much a node's wall clock may have been ahead. None if nobody knows."""
    entries = list(entries)
    known = [entry["ahead_us"] for entry in of(entries, "clock")]
    if not known and has_wrong_clocks(entries):
        return None
    return max(known, default=0)
