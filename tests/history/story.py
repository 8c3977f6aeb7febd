"""A history made by hand: a short run in which all is well, to be spoilt in one place."""

from __future__ import annotations

from typing import Any

from history.entries import Entry

TOPIC, GROUP, NODES = "t", "g", ("a", "b", "c")
SECOND = 1_000_000


class Story:
    """One partition, three nodes. Offset 0 is where an epoch begins; messages are from 1 on."""

    def __init__(self) -> None:
        self.now = 0
        self.entries: list[Entry] = []
        self.note("g", "group", "ok", group=GROUP, topics=[TOPIC])

    def note(self, process: str, op: str, type: str, **fields: Any) -> Entry:
        self.now += 1_000
        entry = {"at": self.now, "process": process, "op": op, "type": type, **fields}
        self.entries.append(entry)
        return entry

    def wait(self, us: int) -> None:
        self.now += us

    # --- clients -----------------------------------------------------------------------------------------

    def send(self, value: str, offset: int, outcome: str = "ok", **fields: Any) -> None:
        process = value.rpartition("-")[0]
        self.note(process, "send", "invoke", value=value, topic=TOPIC, **{"key": "k", **fields})
        where = {"partition": 0, "offset": offset} if outcome == "ok" else {}
        self.note(process, "send", outcome, value=value, **where)

    def deliver(
        self, value: str, offset: int, lease: int, *, to: str = "c1", attempt: int = 1, for_us: int = 10**6
    ) -> None:
        self.note(to, "poll", "invoke", group=GROUP)
        one = {"topic": TOPIC, "partition": 0, "offset": offset, "value": value, "attempt": attempt, "lease": lease}
        self.note(to, "poll", "ok", group=GROUP, messages=[{**one, "deadline": self.now + for_us}])

    def answer(self, op: str, offset: int, lease: int, outcome: str = "ok", by: str = "c1") -> None:
        fields = {"group": GROUP, "topic": TOPIC, "partition": 0, "offset": offset, "lease": lease}
        self.note(by, op, "invoke", **fields)
        self.note(by, op, outcome, **fields)

    def look(self, committed: int, by: str = "looker") -> None:
        self.note(by, "look", "ok", topic=TOPIC, committed=[committed])

    # --- the run -----------------------------------------------------------------------------------------

    def fault(self, kind: str = "kill_leader", evidence: object = True) -> None:
        self.note("fault 1", "fault", "invoke", fault=kind, of="a")
        self.note("fault 1", "fault", "ok", fault=kind, of="a", evidence=evidence)

    def settle(self, took_us: int = SECOND) -> None:
        self.note("run", "heal", "ok")
        self.wait(took_us)
        for what in ("writable", "drained", "in sync"):
            self.note("run", "settled", "ok", what=what, took_us=took_us)

    def replicas(
        self, values: dict[int, str], events: list[list[Any]], letters: list[int] | None = None
    ) -> dict[str, Entry]:
        """The same on all nodes, and what each has, to be changed. `letters` are the offsets of those given up."""
        end = max(values, default=0) + 1
        found: dict[str, Entry] = {}
        for node in NODES:
            found[node] = self.note(
                node,
                "replica",
                "ok",
                topic=TOPIC,
                partition=0,
                committed=[end, len(events)],
                ends=[end, len(events)],
                messages=[[offset, 1, value] for offset, value in values.items()],
                deliveries=[[offset, 1, f"row {offset}"] for offset in range(len(events))],
                events=[list(event) for event in events],
            )
        for node in NODES:
            self.note(
                node,
                "replica",
                "ok",
                topic=f"{TOPIC}.dlq",
                partition=0,
                committed=[len(letters or []), 0],
                ends=[len(letters or []), 0],
                messages=[],
                deliveries=[],
                letters=[[GROUP, TOPIC, 0, offset] for offset in letters or []],
            )
        return found


def leased(at: int, lease: int, *offsets: int, for_us: int = SECOND) -> list[Any]:
    return [at, "L", GROUP, {"lease": lease, "deadline": at + for_us, "offsets": list(offsets)}]


def row(at: int, tag: str, lease: int, *offsets: int) -> list[Any]:
    return [at, tag, GROUP, {"lease": lease, "offsets": list(offsets)}]
