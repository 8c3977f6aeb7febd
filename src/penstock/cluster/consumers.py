"""The consumers of groups, in a cluster.

Who is a member of a group is known to its coordinator alone, which decides who owns which partition, and tells whoever
leads it. A leader hands out messages of a partition to its owner, by what is in the deliveries log: so at most one
member leases from a partition at a time, whoever leads it and whoever coordinates. What a coordinator decides is marked
with its term; one that was replaced, and does not know it yet, is not heard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from penstock.broker.assignor import Part
from penstock.broker.catalog import Catalog
from penstock.broker.members import Change, Members
from penstock.broker.membership import Consumers
from penstock.broker.settings import GroupSettings
from penstock.broker.topic import Topic
from penstock.client.placement import Owner
from penstock.clock import Clock
from penstock.errors import NotCoordinator

# Of the bits of a generation, those that a coordinator counts with itself.
_TERM_SHIFT = 24
# Who has asked how often; forgotten when there are too many.
_TURNS_MAX = 100_000


class ClusterConsumers(Consumers):
    def __init__(self, topics: Mapping[str, Topic], clock: Clock, catalog: Catalog) -> None:
        super().__init__(topics, clock)
        self._catalog = catalog
        self._turns: Counter[tuple[str, str]] = Counter()
        # Told of topics that may have more partitions than they had.
        self.grown: Callable[[str], None] = lambda topic: None
        # Told of groups that this node does not look after any more, or that are gone.
        self.forgotten: Callable[[str], None] = lambda group: None
        # Told of what this node has decided as a coordinator.
        self.decided: Callable[[str, Change, bool], None] = lambda group, change, is_lasting: None

    # --- as coordinator ----------------------------------------------------------------------------------

    def now_us(self) -> int:
        return self._clock.now_us()

    def has(self, group: str) -> bool:
        return group in self._groups

    @property
    def coordinated(self) -> list[str]:
        return list(self._groups)

    @staticmethod
    def term_of(owners: Iterable[Owner]) -> int:
        """The latest in which any of them was decided."""
        return max((owner.generation >> _TERM_SHIFT for owner in owners), default=0)

    def begin(self, group: str, settings: GroupSettings, owners: Collection[Owner], term: int) -> None:
        """This node coordinates the group from now on: who has what, by those who lead the partitions."""
        members = Members(mode=settings.assignment)
        now = self._clock.monotonic_us()
        known = [
            Change(now, owner.generation, Part(owner.topic, owner.partition), None, owner.member, "another coordinator")
            for owner in owners
            if owner.member is not None and owner.is_lasting and owner.topic in self._topics
        ]
        partitions = {name: topic.count for name, topic in self._topics.items()}
        self._groups[group] = members
        # Behind all that was decided before: it may be the same node again, in the same term.
        members.generation = max([term << _TERM_SHIFT, *(owner.generation for owner in owners)])
        changes = members.restore(known, partitions, now, settings.session_us)
        self._write(group, changes)

    def _restored(self, group: str, settings: GroupSettings) -> Members:
        raise NotCoordinator(f"this node does not look after group {group} (any more)", group=group)

    def _write(self, group: str, changes: list[Change]) -> None:
        for change in changes:
            self.decided(group, change, change.new is not None and self._has_session(group, change.new))

    def forget(self, group: str) -> None:
        super().forget(group)
        self.forgotten(group)

    def topic_changed(self, topic: str, partitions: int) -> None:
        super().topic_changed(topic, partitions)
        self.grown(topic)

    def heartbeat(self, group: str, member: str) -> None:
        if group not in self._groups:
            raise NotCoordinator(f"this node does not look after group {group} (any more)", group=group)
        super().heartbeat(group, member)

    # --- as leader of partitions -------------------------------------------------------------------------

    def next_turn(self, group: str, member: str) -> int:
        if len(self._turns) > _TURNS_MAX:
            self._turns.clear()
        self._turns[group, member] += 1
        return self._turns[group, member] - 1

    def leasable(self, group: str, member: str, topic: str) -> list[int]:
        """Of the partitions led here."""
        # Where the group has not begun yet, its coordinator sees to it that it does, and where.
        begun = [each for each in self._on(topic).numbered if each[1].groups.has(group)]
        if self._catalog.group(group).settings.assignment == "shared":
            return [number for number, _ in begun]
        return [number for number, partition in begun if _owner(partition.groups.owner(group)) == member]


def _owner(assigned: object) -> str | None:
    member: str | None = getattr(assigned, "member", None)
    return member
