"""What clients saw, one line of JSON for each thing that happened, in the order in which it did.

{"at": µs, "process": "p1", "op": "send", "type": "invoke", …}      it begins
{"at": µs, "process": "p1", "op": "send", "type": "ok", …}          it was carried out
                                          "fail"                    it was not, and never will be
                                          "info"                    nobody knows

op        invoke                             ok
send      value, topic, key, deliver_at      partition, offset            value is process-counter, and used once
poll      group                              group, messages: [{topic, partition, offset, value, attempt, lease,
                                                                deadline}]
ack       group, topic, partition, offset, attempt, lease
nack      the same; also for whoever rejects a message
look                                         topic, committed: [offset of each partition]
read                                         topic, partition, values: [[offset, value]]
fault     fault, of                          evidence
heal                                         the faults are over
settled                                      what, took_us
death                                        a process ended by itself: code
replica                                      process: the node; topic, partition, committed: [messages, deliveries],
                                             messages: [[offset, epoch, value]],
                                             deliveries: [[offset, epoch, digest]],
                                             events: [[at, tag, group, {…}]] of the deliveries, in their order
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
