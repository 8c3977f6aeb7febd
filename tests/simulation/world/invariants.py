"""What must hold at every step of a replica, looked at from outside of all nodes.

- One process leads at an epoch, and what it has committed never goes back.
- A leader that serves has committed the frame that begins its epoch, and no earlier epoch has committed beyond that
  frame: neither before it does, nor ever after.
- What is committed is on the disks of `min_isr` replicas at least, and of all members of the ISR that etcd has.
- Where a leader's logs start never goes back.
- A leader that was replaced serves no client for longer than its session and its followers are trusted.

An unclean election gives all of this up for that partition; the last one holds only as long as etcd tells no lies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from history import violation as v
from history.violation import Violation
from penstock.cluster.core.events import Event
from penstock.cluster.core.extent import LOGS, Both
from penstock.cluster.core.leader import Leader
from penstock.cluster.core.record import PartitionRecord, decode
from penstock.cluster.hosted import Hosted
from penstock.cluster.keys import Keys
from simulation.world.loop import Process, current_process
from simulation.world.world import World

# Kinds of violations that no history shows.
TWO_LEADERS = "two processes lead at one epoch"
SERVES_EARLY = "a leader serves before the beginning of its epoch is committed"
BEYOND = "an epoch has committed more than a later one began with"
REPLAY = "the state of a group is not what its log says"
LEASED = "leased, though no consumer is there"
MEMBERS = "a member of a group, though no consumer is there"
LEFT = "left open or under way, though all clients are gone"
TOO_FEW_DISKS = "committed, and not on enough disks"
NOT_IN_SYNC = "committed, and a member of the ISR does not have it"
START_WENT_BACK = "the start of a log went back"
SERVES_ON = "a leader that was replaced goes on serving"

# A trusted time is measured by clocks that differ by a hundredth.
_CLOCKS_DIFFER, _TURN_US = 1.01, 1_000


class Reign:
    """Of one leader, at one epoch."""

    def __init__(self, incarnation: str, node: str) -> None:
        self.incarnation = incarnation
        self.node = node
        self.committed: Both = (0, 0)
        # Where the frames are that begin it, once it serves.
        self.firsts: Both | None = None
        # When it committed these frames; None before.
        self.opened_us: int | None = None
        # Where its logs began when it served last.
        self.starts: Both = (0, 0)


class Invariants:
    def __init__(self, world: World) -> None:
        self.violations: list[Violation] = []
        self._loop = world.loop
        self._etcd = world.etcd
        # By partition and disk: the replica that used it last, and its process.
        self._replicas: dict[str, dict[str, tuple[Hosted, Process]]] = {}
        # By key, with their revisions.
        self._records: dict[str, tuple[int, PartitionRecord]] = {}
        # By partition and epoch.
        self._reigns: dict[str, dict[int, Reign]] = {}
        # Who served last, by partition.
        self.serving: dict[str, Hosted] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        real = Hosted.step

        def step(hosted: Hosted, event: Event) -> None:
            real(hosted, event)
            self._replicas.setdefault(hosted.identity, {})[hosted.replica.site.disk] = hosted, current_process()
            if isinstance(hosted.replica.role, Leader):
                self._look(hosted, hosted.replica.role)

        Hosted.step = step  # type: ignore[method-assign]
        try:
            yield
        finally:
            Hosted.step = real  # type: ignore[method-assign]

    def _look(self, hosted: Hosted, leader: Leader) -> None:
        site, committed = hosted.replica.site, hosted.replica.committed
        reigns = self._reigns.setdefault(hosted.identity, {})
        if hosted.record is not None and hosted.record.unclean:
            reigns.clear()
            return
        reign = reigns.get(hosted.epoch)
        if reign is None:
            reign = reigns[hosted.epoch] = Reign(site.incarnation, site.node)
        if reign.incarnation != site.incarnation:
            self._note(TWO_LEADERS, hosted, f"{reign.node} and {site.node}, or one after a restart")
        if leader.is_open and reign.opened_us is None:
            reign.opened_us = self._loop.now_us
            trusted_us = int(site.timing.trust_us * _CLOCKS_DIFFER) + _TURN_US
            self._loop.world.call_later(trusted_us, self._look_for_deposed, hosted.identity, hosted.epoch)
        if hosted.is_shown:
            self._look_at_start(hosted, reign, reigns)
            if _serves(hosted):
                self._look_whether_deposed(hosted)
        begins = hosted.is_shown and reign.firsts is None
        if committed == reign.committed and not begins:
            return
        if any(now < before for now, before in zip(committed, reign.committed, strict=True)):
            self._note(v.WENT_BACK, hosted, f"from {reign.committed} to {committed}")
        if committed != reign.committed:
            self._look_at_disks(hosted, leader, committed)
        reign.committed = committed
        if begins:
            self.serving[hosted.identity] = hosted
            reign.firsts = self._firsts(hosted)
        for epoch, other in reigns.items():
            if epoch < hosted.epoch and reign.firsts is not None:
                self._compare(hosted, epoch, other.committed, hosted.epoch, reign.firsts)
            elif epoch > hosted.epoch and other.firsts is not None:
                self._compare(hosted, hosted.epoch, committed, epoch, other.firsts)

    def _firsts(self, hosted: Hosted) -> Both:
        found = [dict(own.lineage.entries).get(hosted.epoch) for own in hosted.replica.site.logs]
        messages, deliveries = [
            committed if first is None or committed <= first else first
            for first, committed in zip(found, hosted.replica.committed, strict=True)
        ]
        if [messages, deliveries] != found:
            self._note(SERVES_EARLY, hosted, f"it begins at {found}, and {hosted.replica.committed} is committed")
        return messages, deliveries

    def _compare(self, hosted: Hosted, epoch: int, committed: Both, later: int, firsts: Both) -> None:
        if any(committed[log] > firsts[log] for log in LOGS):
            self._note(BEYOND, hosted, f"epoch {epoch} has committed {committed}, and {later} begins at {firsts}")

    def _look_at_start(self, hosted: Hosted, reign: Reign, reigns: dict[int, Reign]) -> None:
        """A leader that was replaced and does not know yet may be behind the one that is."""
        starts = hosted.replica.site.starts
        if starts == reign.starts:
            return
        before = [other.starts for epoch, other in reigns.items() if epoch <= hosted.epoch]
        reign.starts = starts
        if any(starts[log] < max(each[log] for each in before) for log in LOGS):
            self._note(START_WENT_BACK, hosted, f"it is {starts}, and was {before}")

    def _look_at_disks(self, hosted: Hosted, leader: Leader, committed: Both) -> None:
        own = hosted.replica.site.logs
        for log in LOGS:
            last = own[log].lineage.within(committed[log] - 1, committed[log])
            having = {
                disk
                for disk, (replica, _) in self._replicas[hosted.identity].items()
                for copy in (replica.replica.site.logs[log],)
                if copy.durable >= committed[log]
                and (copy.start >= committed[log] or copy.lineage.within(committed[log] - 1, committed[log]) == last)
            }
            if len(having) < leader.ballot.record.min_isr:
                self._note(TOO_FEW_DISKS, hosted, f"log {log} up to {committed[log]} is on {sorted(having)}")
            for member in self._record(hosted).isr:
                if member.disk not in having:
                    self._note(NOT_IN_SYNC, hosted, f"log {log} up to {committed[log]}: {member}")

    def _record(self, hosted: Hosted) -> PartitionRecord:
        """As etcd has it."""
        key = Keys().partition(hosted.identity)
        item = self._etcd.fake.read(key).items.get(key)
        assert item is not None or hosted.record is not None
        if item is None:
            # The topic is being deleted.
            return hosted.record  # type: ignore[return-value]
        known = self._records.get(key)
        if known is None or known[0] != item.revision:
            known = self._records[key] = item.revision, decode(item.value)
        return known[1]

    def _look_for_deposed(self, identity: str, epoch: int) -> None:
        """Of earlier epochs than that one, which has been open for as long as leaders are trusted."""
        for hosted, process in self._replicas[identity].values():
            if not process.is_dead and hosted.is_leader and hosted.epoch < epoch and _serves(hosted):
                self._look_whether_deposed(hosted)

    def _look_whether_deposed(self, hosted: Hosted) -> None:
        if self._etcd.lies:
            return
        for epoch, later in self._reigns.get(hosted.identity, {}).items():
            if epoch > hosted.epoch and later.opened_us is not None:
                since_us = self._loop.now_us - later.opened_us
                if since_us > hosted.replica.site.timing.trust_us * _CLOCKS_DIFFER:
                    self._note(SERVES_ON, hosted, f"epoch {epoch} was opened {since_us / 1e6:.3f} s ago")

    def _note(self, kind: str, hosted: Hosted, what: str) -> None:
        self.note(kind, f"{hosted.shown} at epoch {hosted.epoch} on {hosted.replica.site.node}: {what}")

    def note_all(self, kind: str, hosted: Hosted, found: list[str]) -> None:
        for what in found:
            self._note(kind, hosted, what)

    def note(self, kind: str, what: str) -> None:
        told = f"{what}, at {self._loop.now_us / 1e6:.3f} s"
        self._loop.note(f"{kind}: {told}")
        self.violations.append(Violation(kind, told))


def _serves(hosted: Hosted) -> bool:
    """By its clock, it may answer clients."""
    return hosted.is_shown and not hosted.is_closed and hosted._host.now_us() < hosted.serves_until_us
