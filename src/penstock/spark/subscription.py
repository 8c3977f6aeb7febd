"""Which topics and partitions a query reads, and how they are right now."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from penstock.client.blocking import Client
from penstock.client.requests import TopicInfo
from penstock.errors import InvalidSetting, PartitionNotFound, TopicNotFound
from penstock.spark.options import Options, refused
from penstock.spark.tables import LOGS, Held

WAYS = ("subscribe", "subscribePattern", "assign")
_ASSIGN_EXAMPLE = '{"orders": [0, 1]}'


class Seen(NamedTuple):
    """A topic as it is now, with those of its partitions that are read. `id` is another one if it is made again."""

    id: str
    partitions: dict[int, Held]

    @property
    def ends(self) -> dict[int, int]:
        return {number: held.end for number, held in self.partitions.items()}

    @property
    def holes(self) -> dict[int, int]:
        return {number: held.whole_from for number, held in self.partitions.items()}


class Subscription(NamedTuple):
    """One of the three ways to name topics. `told` is how it was said, for people."""

    told: str
    table: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] | None = None

    def has(self, topic: str) -> bool:
        if self.pattern is not None:
            return not topic.startswith("__") and re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics

    def look(self, client: Client) -> dict[str, Seen]:
        """Topics that exist. One request per topic, or one in all with a pattern; deliveries take another per topic."""
        listed = {} if self.pattern is None else {info.name: info for info in client.topics() if self.has(info.name)}
        found = {}
        for topic in self.topics or listed:
            # Also one that was listed may be gone at the next trip.
            with suppress(TopicNotFound):
                found[topic] = self._seen(client, listed.get(topic) or client.topic(topic))
        return found

    def look_at(self, client: Client, topic: str, number: int) -> dict[str, Seen]:
        """One partition, if it exists."""
        with suppress(TopicNotFound):
            now = self._seen(client, client.topic(topic))
            if number in now.partitions:
                return {topic: Seen(now.id, {number: now.partitions[number]})}
        return {}

    def look_for_all(self, client: Client) -> dict[str, Seen]:
        found = self.look(client)
        self.check_all(found)
        return found

    def check_all(self, found: Mapping[str, Seen]) -> None:
        """TopicNotFound if one of those that were named is not there."""
        missing = [topic for topic in self.topics if topic not in found]
        if missing:
            raise TopicNotFound(
                f"there is no topic {', '.join(missing)} ({self.told}): make it first, or correct the name",
                topic=missing[0],
            )

    def _seen(self, client: Client, info: TopicInfo) -> Seen:
        wanted = range(len(info.partitions)) if self.assigned is None else self.assigned[info.name]
        for number in wanted:
            if number >= len(info.partitions):
                raise PartitionNotFound(
                    f"{info.name} has partitions 0 to {len(info.partitions) - 1}, not {number} ({self.told})",
                    topic=info.name,
                    partition=number,
                )
        held = LOGS[self.table].held(client, info)
        return Seen(info.id, {number: held[number] for number in wanted})


def subscription_of(options: Options, table: str) -> Subscription:
    given = options.given(WAYS)
    if len(given) != 1:
        told = f"{' and '.join(given)} are given" if given else "none is given"
        raise InvalidSetting(f"topics are named by one of {', '.join(WAYS)}: {told}")
    way = given[0]
    told = f"{way} is {options.text(way)!r}"
    if way == "subscribe":
        return Subscription(told, table, _names(options))
    if way == "subscribePattern":
        return Subscription(told, table, pattern=_pattern(options))
    assigned = _assigned(options)
    return Subscription(told, table, tuple(assigned), assigned=assigned)


def _names(options: Options) -> tuple[str, ...]:
    text = options.text("subscribe")
    names = [name.strip() for name in (text or "").split(",")]
    if not all(names):
        raise refused("subscribe", text, "names of topics with commas between them, as in orders,payments")
    return tuple(sorted(set(names)))


def _pattern(options: Options) -> str:
    text = options.text("subscribePattern") or ""
    try:
        re.compile(text)
    except re.error as error:
        raise refused("subscribePattern", text, f"a regular expression ({error})") from error
    return text


def _assigned(options: Options) -> dict[str, tuple[int, ...]]:
    found = options.json("assign", _ASSIGN_EXAMPLE) or {}
    assigned = {}
    for topic, numbers in found.items():
        is_list = isinstance(numbers, list) and bool(numbers)
        if not is_list or not all(type(number) is int and number >= 0 for number in numbers):
            raise refused("assign", options.text("assign"), f"JSON as in {_ASSIGN_EXAMPLE}")
        assigned[topic] = tuple(sorted(set(numbers)))
    return dict(sorted(assigned.items()))
