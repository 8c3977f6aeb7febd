"""Where the replicas of new partitions go: spread over racks first, then over nodes by what they have already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from penstock.broker.catalog import TopicRecord
from penstock.broker.names import DEAD_LETTERS
from penstock.broker.settings import TopicSettings, check_room
from penstock.cluster.core.election import Live, first
from penstock.cluster.core.record import Member, PartitionRecord
from penstock.cluster.members import Members
from penstock.cluster.partitions import Partitions
from penstock.cluster.registration import Broker
from penstock.errors import InvalidSetting, NotEnoughReplicas

REPLICAS_DEFAULT = 3


def replicas_of(settings: TopicSettings, nodes: int) -> int:
    return settings.replicas or max(1, min(REPLICAS_DEFAULT, nodes))


def min_isr_of(settings: TopicSettings, replicas: int) -> int:
    """Of a partition with so many replicas. By default one of three may be away."""
    return settings.min_isr or (2 if replicas >= REPLICAS_DEFAULT else 1)


def check_min_isr(settings: TopicSettings, replicas: int) -> None:
    if (settings.min_isr or 1) > replicas:
        raise InvalidSetting(
            f"min_isr is at most the number of replicas, {replicas}, not {settings.min_isr}", setting="min_isr"
        )


class Load:
    """How many replicas, and how many of them preferred leaders, each node has."""

    def __init__(self, records: Iterable[PartitionRecord] = ()) -> None:
        self._replicas: Counter[str] = Counter()
        self._leaders: Counter[str] = Counter()
        for record in records:
            self.add(record.target or record.replicas)

    def add(self, replicas: Sequence[str]) -> None:
        self._replicas.update(replicas)
        self._leaders[replicas[0]] += 1

    def replicas(self, node: str) -> int:
        return self._replicas[node]

    def choose(self, count: int, brokers: Mapping[str, Broker]) -> tuple[str, ...]:
        """The leader is the one with the fewest leaders; then those with the fewest replicas, of other racks first."""
        chosen: list[str] = []
        while len(chosen) < count:
            racks = {brokers[node].rack for node in chosen if brokers[node].rack}
            left = [node for node in brokers if node not in chosen]

            def cost(node: str, racks: set[str] = racks) -> tuple[bool, int, int, str]:
                is_near = brokers[node].rack in racks
                leads = self._leaders[node] if not chosen else 0
                return is_near, leads, self._replicas[node], node

            chosen.append(min(left, key=cost))
        self.add(chosen)
        return tuple(chosen)


def check_enough(wanted: int, brokers: Mapping[str, Broker]) -> None:
    if wanted > len(brokers):
        raise NotEnoughReplicas(
            f"{wanted} replicas are wanted, and {len(brokers)} nodes are alive and not being drained: "
            f"{', '.join(sorted(brokers)) or 'none'}. Start more nodes, or have fewer replicas (`--replicas`, in "
            "Python `replicas=…`); those of a topic that is there: `penstock cluster reassign`",
            nodes=sorted(brokers),
        )


def _beside(sibling: PartitionRecord, record: TopicRecord, live: Live) -> PartitionRecord:
    """Dead letters are where their messages are, on fewer nodes than are wanted if those are, and on as many disks at
    least. Where nobody leads the messages, nobody leads their letters, and whoever does then leads both."""
    count = min(len(sibling.replicas), len(sibling.target or sibling.replicas))
    least = min(max(min_isr_of(record.settings, count), sibling.min_isr), count)
    # A move that is under way takes them along.
    made = PartitionRecord(
        record.name, sibling.number, sibling.replicas, least, target=sibling.target, leaving=sibling.leaving
    )
    if sibling.leader is not None and sibling.leader in live:
        in_sync = tuple(Member(node, live[node].disk) for node in made.hosting if node in live)
        return made.elected(sibling.leader, live[sibling.leader].incarnation, in_sync)
    return made.elected(sibling.leader or sibling.replicas[0], sibling.incarnation, sibling.isr)


class Placing:
    """For the partitions of new topics, or more of them, as the cluster is now."""

    def __init__(self, members: Members, partitions: Partitions) -> None:
        self._members = members
        self._partitions = partitions
        # Of a node. They are taken to be alike: each decides by its own.
        self.partitions_max: int | None = None

    def place(self, record: TopicRecord, added: Mapping[str, int]) -> dict[str, PartitionRecord]:
        """Of new partitions, by their ids and numbers."""
        brokers = self._members.usable
        wanted = replicas_of(record.settings, self._nodes_for(record.name))
        if record.name.endswith(DEAD_LETTERS):
            # They must go somewhere.
            wanted = min(wanted, max(1, len(brokers)))
        known = self._members.known | brokers.keys()
        if wanted > len(known):
            raise InvalidSetting(
                f"replicas is at most the number of nodes that have joined, {len(known)}, not {wanted}",
                setting="replicas",
            )
        beside = self._placed_of(record.name.removesuffix(DEAD_LETTERS)) if record.name.endswith(DEAD_LETTERS) else {}
        if not beside.keys() >= set(added.values()):
            check_enough(wanted, brokers)
        if not record.name.endswith(DEAD_LETTERS):
            check_min_isr(record.settings, wanted)
        load = Load(self._partitions.records())
        live = self._members.live
        placed = {}
        for identity, number in added.items():
            if (sibling := beside.get(number)) is not None:
                placed[identity] = _beside(sibling, record, live)
            else:
                replicas = load.choose(wanted, brokers)
                least = min(min_isr_of(record.settings, len(replicas)), len(replicas))
                placed[identity] = first(record.name, number, replicas, least, live)
        if self.partitions_max is not None and not record.name.endswith(DEAD_LETTERS):
            for node in {node for one in placed.values() for node in one.replicas}:
                check_room(load.replicas(node), self.partitions_max, node)
        return placed

    def check_room_for(self, moved: Mapping[str, Sequence[str]]) -> None:
        """Raise TooManyPartitions if these moves, by partition id, would give a node more replicas than it takes."""
        if self.partitions_max is None:
            return
        load, gaining = Load(), set[str]()
        for identity, placed in self._partitions.items():
            before = placed.record.target or placed.record.replicas
            after = moved.get(identity, before)
            load.add(after)
            gaining.update(set(after).difference(before))
        for node in sorted(gaining):
            check_room(load.replicas(node), self.partitions_max, node)

    def _nodes_for(self, topic: str) -> int:
        """Not fewer because one is down at the moment: whoever means that says so. Dead letters must go somewhere."""
        members = self._members
        return len(members.usable if topic.endswith(DEAD_LETTERS) else members.known - members.draining)

    def _placed_of(self, topic: str) -> dict[int, PartitionRecord]:
        """Its partitions, by number."""
        return {record.number: record for record in self._partitions.records() if record.topic == topic}
