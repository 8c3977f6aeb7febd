"""`spark.readStream.format("penstock")`: what a streaming query asks on the driver, and reads on the executors.

Spark keeps one process for the driver's part, in which the client stays connected. A micro-batch costs one trip to the
broker there for each topic, and none for planning: whether what was planned is still there is seen by who reads it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from penstock.spark.asked import Asked
from penstock.spark.offsets import Place, Places, Written, read_back, written
from penstock.spark.pacing import Partition, allotted, within_bytes
from penstock.spark.planning import Range, cut, ranges_between, report_foreign, report_other
from penstock.spark.reading import read
from penstock.spark.schema import Wanted
from penstock.spark.subscription import Seen
from penstock.spark.telling import telling


class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, asked: Asked, wanted: Wanted) -> None:
        self._asked = asked
        self._wanted = wanted
        # As it was when `prepareForTriggerAvailableNow` was called: nothing later is read.
        self._fixed: dict[str, Seen] | None = None
        self._latest: Written | None = None
        self._batch_at_s: float | None = None
        self._told: set[str] = set()

    # --- on the driver -----------------------------------------------------------------------------------

    @telling
    def initialOffset(self) -> Written:  # noqa: N802
        client, seen = self._asked.connecting.client(), self._look_at_start()
        self._asked.start.check_names(seen)
        offsets = self._asked.start.offsets(client, seen, self._asked.losses)
        return self._written({topic: Place(now.id, offsets[topic], now.holes) for topic, now in seen.items()})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """One of those that were asked for: Spark hands it back, and the others are known here."""
        pace = self._asked.pace
        if pace.offsets_max is not None:
            return ReadMaxRows(pace.offsets_max)
        if pace.bytes_max is not None:
            return ReadMaxBytes(pace.bytes_max)
        if pace.offsets_min is not None:
            return ReadMinRows(pace.offsets_min)
        return ReadAllAvailable()

    @telling
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._fixed = self._look()

    @telling
    def latestOffset(self, start: Written, limit: ReadLimit) -> Written:  # noqa: N802
        begin = read_back(start, self._asked.table)
        seen = self._look() if self._fixed is None else self._fixed
        ends = self._ends(begin, seen)
        self._latest = self._written(ends)
        if isinstance(limit, ReadAllAvailable):
            return self._latest
        waiting = _waiting(begin, ends, seen)
        total = sum(waiting.values())
        if self._is_too_little(total):
            return start
        most = self._most(waiting, seen, total)
        if most >= total:
            return self._latest
        return self._written(_shortened(ends, waiting, allotted(waiting, most)))

    def reportLatestOffset(self) -> Written | None:  # noqa: N802
        """What the last look found: without asking again."""
        return self._latest

    @telling
    def partitions(self, start: Written, end: Written) -> list[InputPartition]:
        table, subscription = self._asked.table, self._asked.subscription
        ranges = ranges_between(read_back(start, table), read_back(end, table), subscription, self._asked.losses)
        self._batch_at_s = time.monotonic()
        return list(cut(ranges, self._asked.cut))

    def commit(self, end: Written) -> None:
        """Nothing to be done: the broker keeps what its retention says, and Spark knows how far it is."""

    def stop(self) -> None:
        """The client belongs to the process, which ends now."""

    def _look(self) -> dict[str, Seen]:
        return self._asked.subscription.look(self._asked.connecting.client())

    def _look_at_start(self) -> dict[str, Seen]:
        """Spark asks where to start after `prepareForTriggerAvailableNow`: what came in between is not read, either."""
        seen = self._look() if self._fixed is None else self._fixed
        self._asked.subscription.check_all(seen)
        return seen

    def _written(self, places: Mapping[str, Place]) -> Written:
        return written(places, self._asked.table)

    def _ends(self, begin: Places, seen: Mapping[str, Seen]) -> Places:
        """Everything that is there now, checked against where the query is."""
        ends: Places = {}
        for topic, place in begin.items():
            now = seen.get(topic)
            if not self._asked.subscription.has(topic):
                report_foreign(topic, self._asked.subscription, self._asked.losses)
            elif now is None:
                self._report_once(f"the topic {topic}, which this query reads, was deleted", topic)
                ends[topic] = place
            elif now.id != place.id:
                report_other(topic, self._asked.losses)
            else:
                self._check_places(topic, place, now)
                behind = {number: max(now.ends.get(number, 0), at) for number, at in place.offsets.items()}
                ends[topic] = Place(now.id, {**now.ends, **behind}, place.holes)
        return ends | {topic: Place(now.id, now.ends) for topic, now in seen.items() if topic not in ends}

    def _check_places(self, topic: str, place: Place, now: Seen) -> None:
        for number, at in place.offsets.items():
            held = now.partitions.get(number)
            if held is None:
                self._report_once(f"partition {number} of {topic} was read, and is not any more", f"{topic}:{number}")
            elif not held.start <= at <= held.end:
                self._report_once(
                    f"the next message of partition {number} of {topic} is at offset {at}, and what is there has "
                    f"{held.start} to {held.end}: retention may be too short for this query",
                    f"{topic}:{number}",
                )
            elif (whole_from := held.lost(at, place.holes.get(number, 0))) > at:
                self._report_once(
                    f"offsets {at} to {whole_from} of partition {number} of {topic} were to be read, and retention has "
                    "left single messages of them, which are for later: it may be too short for this query",
                    f"{topic}:{number}",
                )

    def _report_once(self, what: str, about: str) -> None:
        """Every look finds it again."""
        if self._asked.losses.fails or about not in self._told:
            self._told.add(about)
            self._asked.losses.report(what)

    def _is_too_little(self, total: int) -> bool:
        """Also for `maxTriggerDelay`. With availableNow nobody waits for more."""
        pace = self._asked.pace
        if pace.offsets_min is None or self._fixed is not None or total >= pace.offsets_min:
            return False
        if self._batch_at_s is None:
            self._batch_at_s = time.monotonic()
        return time.monotonic() - self._batch_at_s < pace.delay_us_max / 1e6

    def _most(self, waiting: Mapping[Partition, int], seen: Mapping[str, Seen], total: int) -> int:
        pace = self._asked.pace
        most = total if pace.offsets_max is None else pace.offsets_max
        if pace.bytes_max is not None and total:
            sizes = {(topic, number): _bytes_each(seen[topic], number) for topic, number in waiting}
            most = min(most, within_bytes(waiting, sizes, pace.bytes_max))
        return most

    # --- on the executors --------------------------------------------------------------------------------

    @telling
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        yield from read(self._asked, self._wanted, partition)

    def __getstate__(self) -> dict[str, Any]:
        """Executors need to know what to read, and nothing of how far the driver is."""
        return {**self.__dict__, "_fixed": None, "_latest": None, "_told": set()}


def _waiting(begin: Places, ends: Places, seen: Mapping[str, Seen]) -> dict[Partition, int]:
    """Offsets not read yet. What retention has deleted of them does not wait any more."""
    waiting = {}
    for topic, place in ends.items():
        known = begin.get(topic)
        for number, end in place.offsets.items():
            at = known.offsets.get(number, 0) if known is not None and known.id == place.id else 0
            held = seen[topic].partitions.get(number) if topic in seen else None
            first = at if held is None else max(at, held.start)
            if end > first:
                waiting[topic, number] = end - first
    return waiting


def _shortened(ends: Places, waiting: Mapping[Partition, int], shares: Mapping[Partition, int]) -> Places:
    shorter = {}
    for topic, place in ends.items():
        offsets = {
            number: end - waiting.get((topic, number), 0) + shares.get((topic, number), 0)
            for number, end in place.offsets.items()
        }
        shorter[topic] = Place(place.id, offsets, place.holes)
    return shorter


def _bytes_each(now: Seen, number: int) -> float:
    held = now.partitions[number]
    return (held.bytes or 0) / max(held.end - held.start, 1)
