"""Who leads how much: what one node gives up goes to those who lead least, and not all of it to one.

Of a partition's dead letters: to whoever leads their messages, for what is given up is buried there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from penstock.broker.names import DEAD_LETTERS
from penstock.cluster.core.election import Live, Rank, is_led
from penstock.cluster.core.record import PartitionRecord
from penstock.cluster.partitions import Placed

Identified = tuple[str, Placed]


def messages_first(partitions: Iterable[Identified]) -> list[Identified]:
    """And their dead letters behind them, so that it is known where to."""
    return sorted(partitions, key=lambda each: each[1].record.topic.endswith(DEAD_LETTERS))


class Leading:
    def __init__(self, records: Iterable[PartitionRecord], live: Live) -> None:
        self._leads: Counter[str] = Counter()
        self._leaders: dict[tuple[str, int], str] = {}
        for record in records:
            if is_led(record, live):
                self.add(record)

    def add(self, record: PartitionRecord) -> None:
        """As it is led, or will be: no longer by whom it was counted for before."""
        leader = record.successor or record.leader
        assert leader is not None
        place = record.topic, record.number
        before = self._leaders.get(place)
        self._leaders[place] = leader
        if not record.topic.endswith(DEAD_LETTERS):
            self._leads[leader] += 1
            if before is not None:
                self._leads[before] -= 1

    def rank(self, record: PartitionRecord) -> Rank:
        """For whoever is to lead it: the lowest is best."""
        if record.topic.endswith(DEAD_LETTERS):
            beside = self._leaders.get((record.topic.removesuffix(DEAD_LETTERS), record.number))
            return lambda node: node != beside
        return self._leads.__getitem__
