"""What a report looks at: of each partition the messages of a period, and all that happened so far.

It is settled once, in offsets: every figure of a report is of the same messages and the same events, however long it
takes and whatever is published meanwhile.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.client.blocking import Client
from penstock.errors import Forbidden, InvalidInput, TopicNotFound
from penstock.spark.connecting import Connecting
from penstock.spark.subscription import Subscription
from penstock.spark.tables import DELIVERIES, MESSAGES


@dataclass(frozen=True)
class Asked:
    """Topics by their names or by a pattern. Times are microseconds; messages are appended at `since` or later, and
    before `until`. `keys_max` are how many keys of each topic are listed.
    """

    connecting: Connecting
    topics: Sequence[str] = ()
    pattern: str | None = None
    since_us: int | None = None
    until_us: int | None = None
    keys_max: int = 10

    def check(self) -> None:
        """What is wrong without a look at the broker."""
        self.connecting.check()
        if bool(self.topics) == (self.pattern is not None):
            raise InvalidInput(
                "a report is of topics by their names, or of those that match a pattern: say one of both"
            )
        if self.since_us is not None and self.until_us is not None and self.since_us >= self.until_us:
            raise InvalidInput("the period ends before it begins: the first time must be before the second")
        try:
            re.compile(self.pattern or "")
        except re.error as error:
            raise InvalidInput(f"the pattern {self.pattern!r} is not a regular expression: {error}") from error

    def subscription(self, table: str) -> Subscription:
        told = ", ".join(self.topics) if self.pattern is None else f"pattern {self.pattern}"
        return Subscription(told, table, tuple(sorted(set(self.topics))), self.pattern)


class Stretch(NamedTuple):
    """Of one partition: messages [first, end) of a log that starts at `start`; events [event_first, event_end)."""

    topic: str
    partition: int
    start: int
    first: int
    end: int
    event_first: int
    event_end: int
    stored_bytes: int

    @property
    def reaches_back(self) -> bool:
        """To the first message there is: those that are gone may have been of the period, too."""
        return self.first == self.start


@dataclass(frozen=True)
class Scope:
    stretches: Sequence[Stretch]
    # By topic and group, of the groups there are now; empty if we may not know.
    lags: Mapping[tuple[str, str], int]

    @property
    def topics(self) -> list[str]:
        return sorted({each.topic for each in self.stretches})

    def of(self, topic: str) -> list[Stretch]:
        return [each for each in self.stretches if each.topic == topic]

    def options(self, table: str) -> dict[str, str]:
        """For Spark, to read exactly this."""
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for each in self.stretches:
            number = str(each.partition)
            is_messages = table == MESSAGES
            starts.setdefault(each.topic, {})[number] = each.first if is_messages else each.event_first
            ends.setdefault(each.topic, {})[number] = each.end if is_messages else each.event_end
        return {
            "include": table,
            "subscribe": ",".join(self.topics),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(ends),
            # What retention takes while we read is counted as gone.
            "failOnDataLoss": "false",
        }


def scope_of(client: Client, asked: Asked) -> Scope:
    """TopicNotFound if one that was named is not there, or none matches."""
    # Events first: of messages that are published in between, nothing is known yet.
    events = asked.subscription(DELIVERIES).look_for_all(client)
    messages = asked.subscription(MESSAGES).look_for_all(client)
    found = []
    for topic in sorted(messages.keys() & events.keys()):
        period = _period(client, asked, topic)
        for number, held in messages[topic].partitions.items():
            if number not in events[topic].partitions:
                continue
            first, end = (held.start, held.end) if period is None else period[number]
            end = min(end, held.end)
            known = events[topic].partitions[number]
            first = min(max(first, held.start), end)
            found.append(Stretch(topic, number, held.start, first, end, known.start, known.end, held.bytes or 0))
    if not found:
        raise TopicNotFound(f"no topic matches the pattern {asked.pattern!r}")
    return Scope(found, _lags(client, {each.topic for each in found}))


def _period(client: Client, asked: Asked, topic: str) -> dict[int, tuple[int, int]] | None:
    if asked.since_us is None and asked.until_us is None:
        return None
    return client.reader(topic, from_time=asked.since_us, to_time=asked.until_us).offsets()


def _lags(client: Client, topics: set[str]) -> dict[tuple[str, str], int]:
    try:
        groups = client.groups()
    except Forbidden:
        return {}
    return {
        (topic, group.name): sum(by_partition)
        for group in groups
        for topic, by_partition in group.lag.items()
        if topic in topics
    }
