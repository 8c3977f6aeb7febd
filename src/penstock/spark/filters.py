"""What of a query's filters tells where to read, so that the rest is not read at all.

Spark hands filters over if `spark.sql.python.filterPushdown.enabled` is set, for batch queries, and evaluates those
that are given back. But it (4.3) keeps one plan for all uses of a DataFrame: if the same one is used with another
filter, or without one, in the same query or a later one, it reads only what the last filter left. So this is only for
those who ask for it, and load a DataFrame for every use.

Topics, partitions and offsets are exactly known. Append times are offsets, too, since they never
run backwards in a partition; Spark looks at these again, which costs little. The producers' timestamps are in no order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from penstock.client.blocking import Client
from penstock.clock import TIME_MAX_US, rfc3339
from penstock.durations import time_us
from penstock.errors import InvalidInput
from penstock.spark.planning import Range
from penstock.spark.tables import Log

_NEVER_NULL = ("id", "topic", "partition", "append_time", "event_offset", "time", "event")
_MOST = 1 << 62


@dataclass
class Within:
    """First and last, both included."""

    first: int = 0
    last: int = _MOST

    def narrow(self, first: int, last: int) -> None:
        self.first, self.last = max(self.first, first), min(self.last, last)

    def __contains__(self, number: int) -> bool:
        return self.first <= number <= self.last


@dataclass
class Where:
    """Nothing outside of it is wanted. Times are in microseconds."""

    log: Log
    topics: frozenset[str] | None = None
    only: frozenset[int] | None = None
    partitions: Within = field(default_factory=Within)
    offsets: Within = field(default_factory=Within)
    times: Within = field(default_factory=Within)

    def push(self, filters: Iterable[Filter]) -> list[Filter]:
        """Those that Spark has to look at all the same."""
        return [each for each in filters if not self._is_done(each)]

    def _is_done(self, given: Filter) -> bool:
        name = ".".join(getattr(given, "attribute", ())).lower()
        value = getattr(given, "value", None)
        if isinstance(given, IsNotNull):
            return name in (*_NEVER_NULL, self.log.position)
        if name == "topic":
            return self._push_topic(given, value)
        if name == "partition" and isinstance(given, In) and all(type(each) is int for each in given.value):
            self.only = frozenset(given.value) if self.only is None else self.only & frozenset(given.value)
            return True
        if name == "id" and isinstance(given, EqualTo | EqualNullSafe):
            self._push_id(value)
            return False
        if name == "append_time":
            self._push_number(given, self.times, _whole(value))
            return False
        within = {"partition": self.partitions, self.log.position: self.offsets}.get(name)
        return within is not None and self._push_number(given, within, _whole(value))

    def _push_topic(self, given: Filter, value: Any) -> bool:
        if isinstance(given, EqualTo | EqualNullSafe) and isinstance(value, str):
            some = frozenset([value])
        elif isinstance(given, In):
            some = frozenset(value)
        else:
            return False
        self.topics = some if self.topics is None else self.topics & some
        return True

    def _push_number(self, given: Filter, within: Within, value: int | None) -> bool:
        if value is None:
            return False
        match given:
            case EqualTo() | EqualNullSafe():
                within.narrow(value, value)
            case GreaterThan():
                within.narrow(value + 1, _MOST)
            case GreaterThanOrEqual():
                within.narrow(value, _MOST)
            case LessThan():
                within.narrow(0, value - 1)
            case LessThanOrEqual():
                within.narrow(0, value)
            case _:
                return False
        return True

    def _push_id(self, value: Any) -> None:
        topic, _, place = str(value).partition(":")
        numbers = place.split(":")
        if len(numbers) == 2 and all(re.fullmatch("[0-9]{1,19}", number) for number in numbers):
            self._push_topic(EqualTo(("topic",), topic), topic)
            for within, number in zip((self.partitions, self.offsets), map(int, numbers), strict=True):
                within.narrow(number, number)

    def has(self, topic: str, partition: int) -> bool:
        return (
            (self.topics is None or topic in self.topics)
            and (self.only is None or partition in self.only)
            and partition in self.partitions
        )

    def narrowed(self, client: Client, ranges: Iterable[Range]) -> list[Range]:
        offsets, times = self.offsets, self.times
        found = []
        for each in ranges:
            if not self.has(each.topic, each.partition):
                continue
            first, end = max(each.start, offsets.first), min(each.end, offsets.last + 1)
            if first < end and times != Within():
                first = max(first, _offset_at(client, each, times.first, first))
                end = min(end, _offset_at(client, each, times.last + 1, end))
            if first < end:
                found.append(each.part(first, end))
        return found


def _offset_at(client: Client, where: Range, time: int, otherwise: int) -> int:
    """Of what was appended first then or later."""
    if not 0 < time <= TIME_MAX_US:
        return otherwise
    reader = client.reader(where.topic, from_time=rfc3339(time), partitions=[where.partition])
    return reader.offsets()[where.partition][0]


def _whole(value: Any) -> int | None:
    """None of a time that no message can have: it narrows nothing, and Spark sees what it means."""
    if type(value) is int:
        return value
    if isinstance(value, datetime) and value.utcoffset() is not None:
        with suppress(InvalidInput):
            return time_us(value)
    return None
