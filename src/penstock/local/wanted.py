"""The partitions that a request is about."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.broker.partition import Partition
from penstock.broker.topic import Topic


def wanted(topic: Topic, numbers: Sequence[int] | None) -> Sequence[tuple[int, Partition]]:
    """Exactly those, in that order: NotLeader if one is led elsewhere. None: all that are led here."""
    return topic.numbered if numbers is None else [(number, topic.partition(number)) for number in numbers]
