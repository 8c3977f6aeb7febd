"""The history of a run, in memory, by true time; each entry is part of the trace, too."""

from __future__ import annotations

import json
from typing import Any

from history.entries import Entry
from simulation.world.clocks import true_us
from simulation.world.loop import WorldLoop


class Notes:
    def __init__(self, loop: WorldLoop) -> None:
        self._loop = loop
        self.entries: list[Entry] = []

    def note(self, process: str, op: str, type: str, **fields: Any) -> Entry:
        entry = {"at": true_us(self._loop), "process": process, "op": op, "type": type, **fields}
        self.entries.append(entry)
        if op != "replica":
            self._loop.note(f"{process}: {op} {type} {json.dumps(fields)}")
        return entry
