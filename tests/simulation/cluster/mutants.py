"""Deliberately broken builds, one for each rule of replication: the simulation is worth what it catches of them.

Each is a patch of the real code, or of the shell around it, that is in force within a `with` block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from penstock.cluster.core import election, membership, replica
from penstock.cluster.core import leader as leader_module
from penstock.cluster.core.ballot import Ballot
from penstock.cluster.core.effects import Cut, Effect, Follow, Propose, Serve, Trim
from penstock.cluster.core.events import Begun, Contact, RecordSeen, Registered, Stored
from penstock.cluster.core.extent import LOGS, Both
from penstock.cluster.core.follower import Follower
from penstock.cluster.core.leader import Leader
from penstock.cluster.core.messages import Fetch, Part, Reply, Withdraw
from penstock.cluster.core.progress import Progress
from penstock.cluster.core.record import Member, PartitionRecord
from penstock.cluster.core.replica import Replica
from penstock.cluster.core.site import Site
from simulation.cluster.disk import Disk
from simulation.cluster.hosted import Hosted
from simulation.cluster.node import Node
from simulation.cluster.serving import Serving
from simulation.cluster.world import World

Patch = tuple[object, str, object]
MUTANTS: dict[str, Callable[[], list[Patch]]] = {}


def mutant(make: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
    MUTANTS[make.__name__] = make
    return make


@contextmanager
def broken(name: str) -> Iterator[None]:
    before = [(where, what, where.__dict__[what]) for where, what, _ in MUTANTS[name]()]
    try:
        for where, what, how in MUTANTS[name]():
            setattr(where, what, how)
        yield
    finally:
        for where, what, how in before:
            setattr(where, what, how)


@mutant
def truncates_to_the_high_watermark() -> list[Patch]:
    real = Follower.__init__

    def init(self: Follower, site: Site, leader: str, record: PartitionRecord, out: list[Effect]) -> None:
        before = site.request
        real(self, site, leader, record, [])
        # It asks after the cut.
        self._asked, site.request = None, before
        out.append(Follow(leader, record.epoch))
        for log in LOGS:
            own, offset = site.logs[log], max(site.committed[log], site.logs[log].start)
            # After a restart it is not known; Kafka kept it in a file.
            if site.is_settled and site.committed[log] > 0 and offset < own.end:
                own.is_busy = True
                out.append(Cut(log, offset))
        self.ask(out)

    return [(Follower, "__init__", init)]


@mutant
def takes_fetches_and_replies_of_any_epoch() -> list[Patch]:
    """Fetches alone would do little harm: what they say of an earlier epoch ends before the frame that begins this."""

    def replied(self: Follower, now_us: int, reply: Reply, out: list[Effect]) -> None:
        if not reply.is_fenced and self._asked is not None:
            site = self.site
            reply = replace(reply, request=self._asked, incarnation=site.incarnation, epoch=self.epoch)
        real(self, now_us, reply, out)

    real = Follower.replied

    def is_welcome(self: Leader, fetch: Fetch) -> bool:
        registered = self.site.tick.live.get(fetch.node)
        return registered is None or (registered.disk, registered.incarnation) == (fetch.disk, fetch.incarnation)

    return [(Leader, "_is_welcome", is_welcome), (Follower, "replied", replied)]


@mutant
def changes_the_isr_without_waiting_for_etcd() -> list[Patch]:
    def propose(self: Ballot, record: PartitionRecord, out: list[Effect]) -> None:
        out.append(Propose(self.revision, record))
        self.is_proposing = True
        if record.epoch == self.record.epoch:
            self.record = record
            self._count()

    return [(Ballot, "propose", propose)]


@mutant
def counts_the_pending_isr_only() -> list[Patch]:
    def count(self: Ballot) -> None:
        members = self._pending or frozenset(self.record.isr)
        self.voters = tuple(sorted(member for member in members if member.node != self._me))

    return [(Ballot, "_count", count)]


@mutant
def takes_an_unknown_outcome_for_a_win() -> list[Patch]:
    real = Ballot.propose

    def propose(self: Ballot, record: PartitionRecord, out: list[Effect]) -> None:
        real(self, record, out)
        _PROPOSED[id(self)] = record

    def ended(self: Leader, now_us: int, out: list[Effect]) -> None:
        self.ballot.is_proposing = False
        proposed = _PROPOSED.pop(id(self.ballot), None)
        if self.ballot.is_in_doubt and proposed is not None and proposed.epoch == self.epoch:
            self.ballot.seen(self.ballot.revision, proposed)
            self.advance(now_us, out)
        self.review(now_us, out)

    return [(Ballot, "propose", propose), (Leader, "proposal_ended", ended)]


@mutant
def waits_for_an_unknown_outcome() -> list[Patch]:
    """It asks etcd again; that tells nothing of a proposal which was lost on the way."""

    def is_due(self: Ballot, now_us: int, wanted: PartitionRecord) -> bool:
        return real(self, now_us, wanted) and wanted != self.record

    real = Ballot.is_due
    return [(Ballot, "is_due", is_due)]


_PROPOSED: dict[int, PartitionRecord] = {}


@mutant
def acknowledges_below_min_isr() -> list[Patch]:
    def in_sync(now_us: int, leader: Leader) -> PartitionRecord:
        record = leader.ballot.record
        leader.ballot.record = replace(record, min_isr=1)
        wanted = membership.in_sync(now_us, leader)
        leader.ballot.record = record
        return replace(wanted, min_isr=record.min_isr)

    return [(leader_module, "in_sync", in_sync), (Ballot, "has_quorum", property(lambda self: True))]


@mutant
def acknowledges_before_the_fsync() -> list[Patch]:
    def write(self: Hosted, log: int, entries: Any, epochs: Any) -> None:
        own = self.logs[log]
        own.entries += entries
        self._later(
            self.node.sync_delay(), lambda end: setattr(own, "durable", max(own.durable, min(end, own.end))), own.end
        )
        self.step(Stored(log, own.end, epochs))
        self._operated()

    return [(Hosted, "_write", write)]


@mutant
def knows_a_disk_by_its_node() -> list[Patch]:
    return [(Node, "new_disk", lambda self: Disk(f"{self.name}-disk", self.world.partitions))]


@mutant
def elects_whoever_is_there() -> list[Patch]:
    def elect(self: World, record: PartitionRecord, live: Mapping[str, Registered]) -> PartitionRecord | None:
        elected = election.elect(record, live)
        registered = live.get(record.leader or "")
        if elected or (registered and registered.incarnation == record.incarnation):
            return elected
        others = [node for node in record.hosting if node in live]
        if not others:
            return None
        anybody = live[others[0]]
        return record.elected(others[0], anybody.incarnation, (Member(others[0], anybody.disk),))

    return [(World, "elect", elect)]


@mutant
def serves_before_its_epoch_has_begun() -> list[Patch]:
    real = Leader.begun

    def begun(self: Leader, now_us: int, event: Begun, out: list[Effect]) -> None:
        self.is_open = True
        real(self, now_us, event, out)
        self._serve(now_us, out)

    return [(Leader, "begun", begun)]


@mutant
def leases_without_waiting_for_the_commit() -> list[Patch]:
    return [(Serving, "when_leased", lambda self, at, tell: tell())]


@mutant
def compares_lineages_only_once() -> list[Patch]:
    real = Leader._compare
    told: dict[tuple[int, str, int], bool] = {}

    def compare(self: Leader, log: int, fetch: Fetch) -> Part:
        at = id(self), fetch.incarnation, log
        if at in told and self.site.logs[log].start <= fetch.ends[log] <= self.site.logs[log].end:
            return None
        part = real(self, log, fetch)
        if part is not None:
            told[at] = True
        return part

    return [(Leader, "_compare", compare)]


@mutant
def goes_on_leading_after_a_restart() -> list[Patch]:
    real = Replica._record_seen

    def seen(self: Replica, now_us: int, event: Any, out: list[Effect]) -> None:
        if event.record is not None and event.record.leader == self.site.node:
            event = RecordSeen(event.revision, replace(event.record, incarnation=self.site.incarnation))
        real(self, now_us, event, out)

    return [(replica, "_STEPS", {**replica._STEPS, RecordSeen: seen})]


@mutant
def forgets_who_was_to_be_a_replica() -> list[Patch]:
    real = election.reassign

    def reassign(record: PartitionRecord, target: Any, live: Any) -> PartitionRecord | None:
        moved = real(record, target, live)
        return moved and replace(moved, leaving=())

    return [(election, "reassign", reassign)]


@mutant
def tells_where_a_log_starts_with_data_only() -> list[Patch]:
    """A partition that nobody writes to is never deleted from by its followers."""
    return [(Leader, "_is_to_trim", lambda self, ends, starts: False)]


@mutant
def deletes_before_its_followers() -> list[Patch]:
    def trim(self: Leader, out: list[Effect]) -> None:
        for log, own in enumerate(self.site.logs):
            if self.starts[log] > own.trimming_to:
                own.trimming_to = self.starts[log]
                out.append(Trim(log, own.trimming_to))

    return [(Leader, "_trim", trim)]


# These say nothing that is wrong, and no seed sees them: test_cluster_left_alone does.
GO_ON_SERVING = (
    "counts_a_session_from_the_answer",
    "needs_no_follower_while_etcd_is_away",
    "rests_on_some_of_the_voters",
    "trusts_itself_where_all_are_needed",
    "trusts_itself_with_the_only_replica",
    "keeps_the_fetches_of_followers_that_left",
    "keeps_the_fetches_of_an_earlier_stream",
    "counts_a_fetch_from_its_arrival",
)


@mutant
def counts_a_session_from_the_answer() -> list[Patch]:
    real = Node._kept

    def kept(self: Node, sent_us: int, is_alive: bool | None) -> None:
        real(self, self.clock_us(), is_alive)

    return [(Node, "_kept", kept)]


@mutant
def needs_no_follower_while_etcd_is_away() -> list[Patch]:
    return [(Leader, "_serve", _serves_for_ever)]


def _serves_for_ever(self: Leader, now_us: int, out: list[Effect]) -> None:
    if self.is_open and not self.is_handing_over:
        self.until_us = now_us + self.site.timing.trust_us
        out.append(Serve(self.until_us))


def _trusting_itself(does_so: Callable[[PartitionRecord], bool]) -> list[Patch]:
    def serve(self: Leader, now_us: int, out: list[Effect]) -> None:
        (_serves_for_ever if does_so(self.ballot.record) else real)(self, now_us, out)

    real = Leader._serve
    return [(Leader, "_serve", serve)]


@mutant
def rests_on_some_of_the_voters() -> list[Patch]:
    """Too few other replicas are left for a quorum; but others may have joined those."""

    def trusted_until(self: Leader) -> int:
        record = self.ballot.record
        needed = max(len(record.hosting) - record.min_isr, 1)
        confirmed = sorted((p.confirmed_us for p in self.followers.values() if p.ends is not None), reverse=True)
        by_followers = confirmed[needed - 1] + self.site.timing.trust_us if len(confirmed) >= needed else 0
        return max(self.site.tick.session_until_us, by_followers)

    return [(Leader, "_trusted_until", trusted_until)]


@mutant
def trusts_itself_where_all_are_needed() -> list[Patch]:
    """As many as are left without `min_isr` of them would be none, then."""
    return _trusting_itself(lambda record: len(record.hosting) == record.min_isr > 1)


@mutant
def trusts_itself_with_the_only_replica() -> list[Patch]:
    """No other node has a copy; but the topic may be deleted, and created again elsewhere."""
    return _trusting_itself(lambda record: len(record.hosting) == 1)


@mutant
def keeps_the_fetches_of_followers_that_left() -> list[Patch]:
    """Their nodes still send heartbeats."""

    def withdrawn(self: Leader, now_us: int, event: Withdraw, out: list[Effect]) -> None:
        pass

    return [(Leader, "withdrawn", withdrawn)]


@mutant
def keeps_the_fetches_of_an_earlier_stream() -> list[Patch]:
    """Their nodes have left while they were not connected."""

    def contacted(self: Progress, contact: Contact, leaders: Both) -> None:
        real(self, replace(contact, since_us=0), leaders)

    real = Progress.contacted
    return [(Progress, "contacted", contacted)]


@mutant
def counts_a_fetch_from_its_arrival() -> list[Patch]:
    """It may have waited in a socket while the leader was stopped."""

    def contacted(self: Progress, contact: Contact, leaders: Both) -> None:
        real(self, replace(contact, confirmed_us=contact.heard_us), leaders)

    real = Progress.contacted
    return [(Progress, "contacted", contacted)]
