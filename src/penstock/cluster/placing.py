"""Where the replicas of new partitions go: spread over racks first, then over nodes by what they have already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from penstock.broker.settings import TopicSettings
from penstock.cluster.core.record import PartitionRecord
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
            f"{', '.join(sorted(brokers)) or 'none'}; who wants fewer says so (replicas)",
            nodes=sorted(brokers),
        )
