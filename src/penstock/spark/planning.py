"""Stretches of the log to be read, and how they are cut into tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from penstock.spark.asked import Cut
from penstock.spark.losses import Losses
from penstock.spark.offsets import Place
from penstock.spark.subscription import Subscription


class Range(InputPartition):
    """Offsets [start, end) of one partition: one task. `id` is that of the topic.

    Below `hole` messages had been missing before anybody asked for them.
    """

    def __init__(self, topic: str, id: str, partition: int, start: int, end: int, hole: int = 0) -> None:
        super().__init__((topic, partition, start, end))
        self.topic = topic
        self.id = id
        self.partition = partition
        self.start = start
        self.end = end
        self.hole = hole

    def __len__(self) -> int:
        return self.end - self.start

    def part(self, start: int, end: int) -> Range:
        return Range(self.topic, self.id, self.partition, start, end, self.hole)


def ranges_between(
    start: Mapping[str, Place], end: Mapping[str, Place], subscription: Subscription, losses: Losses
) -> list[Range]:
    """What one micro-batch reads. A partition that had not been seen at the start is read from its beginning."""
    found = []
    for topic, place in sorted(end.items()):
        if not subscription.has(topic):
            report_foreign(topic, subscription, losses)
            continue
        begin = start.get(topic)
        if begin is not None and begin.id != place.id:
            report_other(topic, losses)
            begin = None
        for number, until in sorted(place.offsets.items()):
            first = 0 if begin is None else begin.offsets.get(number, 0)
            hole = 0 if begin is None else begin.holes.get(number, 0)
            if first < until:
                found.append(Range(topic, place.id, number, first, until, hole))
    return found


def report_foreign(topic: str, subscription: Subscription, losses: Losses) -> None:
    losses.report(
        f"the checkpoint is of a query that reads the topic {topic}, and this one does not ({subscription.told}): "
        "use a checkpointLocation of its own for each query",
        topic=topic,
    )


def report_other(topic: str, losses: Losses) -> None:
    losses.report(
        f"the topic {topic} is not the one that this query has read: it was deleted and made again meanwhile, or the "
        "checkpoint is of another broker. Use a new checkpointLocation to read it from where startingOffsets say",
        topic=topic,
    )


def cut(ranges: Iterable[Range], how: Cut) -> list[Range]:
    """Longer ranges into more tasks, so that there are about as many as wanted, and none is longer than allowed."""
    whole = [each for each in ranges if len(each)]
    total = sum(map(len, whole))
    parts = []
    for each in whole:
        count = 1
        if how.offsets_max is not None:
            count = -(-len(each) // how.offsets_max)
        if how.tasks_min is not None and how.tasks_min > len(whole):
            # Rounded up: more tasks than wanted are no harm, fewer were asked not to be.
            count = max(count, -(-len(each) * how.tasks_min // total))
        parts += _even(each, min(count, len(each)))
    return parts


def _even(whole: Range, count: int) -> list[Range]:
    edges = [whole.start + len(whole) * number // count for number in range(count + 1)]
    return [whole.part(first, last) for first, last in pairwise(edges)]
