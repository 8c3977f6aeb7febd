"""What must hold at every step of a replica, looked at from outside of all nodes.

- One process leads at an epoch, and what it has committed never goes back.
- Whoever serves has committed the frame that begins its epoch, and no earlier epoch has committed beyond that frame:
  before it does, and ever after.

An unclean election gives all of this up, for that partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from history import violation as v
from history.violation import Violation
from penstock.cluster.core.events import Event
from penstock.cluster.core.extent import LOGS, Both
from penstock.cluster.core.leader import Leader
from penstock.cluster.hosted import Hosted
from simulation.world.loop import WorldLoop

# Kinds of violations that no history shows.
TWO_LEADERS = "two processes lead at one epoch"
SERVES_EARLY = "a leader serves before the beginning of its epoch is committed"
BEYOND = "an epoch has committed more than a later one began with"
REPLAY = "the state of a group is not what its log says"
LEASED = "leased, though no consumer is there"
MEMBERS = "a member of a group, though no consumer is there"
LEFT = "left open or under way, though all clients are gone"


class Reign:
    """Of one leader, at one epoch."""

    def __init__(self, incarnation: str, node: str) -> None:
        self.incarnation = incarnation
        self.node = node
        self.committed: Both = (0, 0)
        # Where the frames are that begin it, once it serves.
        self.firsts: Both | None = None


class Invariants:
    def __init__(self, loop: WorldLoop) -> None:
        self.violations: list[Violation] = []
        self._loop = loop
        # By partition and epoch.
        self._reigns: dict[str, dict[int, Reign]] = {}
        # Who served last, by partition.
        self.serving: dict[str, Hosted] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        real = Hosted.step

        def step(hosted: Hosted, event: Event) -> None:
            real(hosted, event)
            if isinstance(hosted.replica.role, Leader):
                self._look(hosted)

        Hosted.step = step  # type: ignore[method-assign]
        try:
            yield
        finally:
            Hosted.step = real  # type: ignore[method-assign]

    def _look(self, hosted: Hosted) -> None:
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
        begins = hosted.is_shown and reign.firsts is None
        if committed == reign.committed and not begins:
            return
        if any(now < before for now, before in zip(committed, reign.committed, strict=True)):
            self._note(v.WENT_BACK, hosted, f"from {reign.committed} to {committed}")
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

    def _note(self, kind: str, hosted: Hosted, what: str) -> None:
        self.note(kind, f"{hosted.shown} at epoch {hosted.epoch} on {hosted.replica.site.node}: {what}")

    def note_all(self, kind: str, hosted: Hosted, found: list[str]) -> None:
        for what in found:
            self._note(kind, hosted, what)

    def note(self, kind: str, what: str) -> None:
        told = f"{what}, at {self._loop.now_us / 1e6:.3f} s"
        self._loop.note(f"{kind}: {told}")
        self.violations.append(Violation(kind, told))
