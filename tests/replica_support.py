"""Replicas for transcripts: what happens to one, and what it would have done, line by line."""

from __future__ import annotations

from penstock.cluster.core.effects import Effect
from penstock.cluster.core.events import Begun, Contact, Event, RecordSeen, Registered, Tick, Wrote
from penstock.cluster.core.extent import Both, Extent
from penstock.cluster.core.lineage import Lineage
from penstock.cluster.core.messages import Fetch
from penstock.cluster.core.record import Member, PartitionRecord
from penstock.cluster.core.replica import Replica
from penstock.cluster.core.site import Site

SECOND_US = 1_000_000
Entry = tuple[int, int] | tuple[int, int, int]
Entries = list[Entry]


def record(leader: str = "a", epoch: int = 5, isr: str = "a b c", **changes: object) -> PartitionRecord:
    members = tuple(Member(node, f"d{node}") for node in isr.split())
    fields = {"replicas": ("a", "b", "c"), "min_isr": 2, **changes}
    return PartitionRecord("t", 0, isr=members, leader=leader, incarnation=f"{leader}1", epoch=epoch, **fields)  # type: ignore[arg-type]


def nodes(names: str) -> dict[str, Registered]:
    return {node: Registered(f"d{node}", f"{node}1") for node in names.split()}


def fetch(
    node: str,
    request: int,
    ends: Both,
    lasts: Both = (5, 5),
    epoch: int = 5,
    starts: Both | None = (0, 0),
    ids: Both = (0, 0),
    **changes: str,
) -> Fetch:
    fields = {"disk": f"d{node}", "incarnation": f"{node}1", **changes}
    return Fetch(node, epoch=epoch, request=request, ends=ends, lasts=lasts, starts=starts, ids=ids, **fields)


class Play:
    """A replica, and the time it is told."""

    def __init__(
        self, node: str, messages: Entries | None = None, deliveries: Entries | None = None, ends: Both = (0, 0)
    ) -> None:
        logs = Extent(0, ends[0], Lineage(messages or [])), Extent(0, ends[1], Lineage(deliveries or []))
        self.replica = Replica(Site(node, f"d{node}", f"{node}1", logs))
        self.now_us = 100 * SECOND_US

    def does(self, event: Event) -> list[Effect]:
        return self.replica.step(self.now_us, event)

    def waits(self, seconds: float) -> None:
        self.now_us += int(seconds * SECOND_US)

    def ticks(
        self, live: str = "a b c", contacts: dict[str, Contact] | None = None, session: float = 5
    ) -> list[Effect]:
        return self.does(Tick(self.now_us + int(session * SECOND_US), nodes(live), contacts or {}))

    def hears(self, names: str) -> dict[str, Contact]:
        """These nodes have just answered a packet of just now."""
        return {node: Contact(0, self.now_us, self.now_us) for node in names.split()}

    def writes(self, log: int, end: int, durable: int | None = None) -> list[Effect]:
        return self.does(Wrote(log, end, end if durable is None else durable))


def new_leader(record: PartitionRecord, revision: int = 7, ends: Both = (10, 4)) -> Play:
    """The node "a", elected at that record, with what it got at epoch 4, and the beginning of its own on disk."""
    play = Play("a", [(4, 0)], [(4, 0)], ends)
    play.ticks()
    play.does(RecordSeen(revision, record))
    play.does(Begun(record.epoch, ends))
    play.writes(0, ends[0] + 1)
    play.writes(1, ends[1] + 1)
    return play


def open_leader(record: PartitionRecord, revision: int = 7) -> Play:
    """The same, and the whole ISR has followed: it serves. Each follower waits, by its first fetch."""
    play = new_leader(record, revision)
    for member in record.isr:
        if member.node != "a":
            play.does(fetch(member.node, 1, (11, 5), epoch=record.epoch))
    return play
