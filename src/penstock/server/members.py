"""Consumers that somebody at a door stands for. They are members for a session, and heard of as long as they are here.

Who stands for them differs: a connection of the native protocol, until it is lost; elsewhere a poll or a stream that
waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from penstock.errors import PenstockError
from penstock.server.site import Site

# Group and consumer.
Member = tuple[str, str]


class Members:
    def __init__(self, site: Site) -> None:
        self._site = site
        # How many stand for each.
        self._here: Counter[Member] = Counter()
        # Of those that were added.
        self._topics: dict[Member, Sequence[str]] = {}

    def __len__(self) -> int:
        return len(self._here)

    def has(self, group: str, consumer: str) -> bool:
        return (group, consumer) in self._here

    def add(self, group: str, consumer: str, topics: Sequence[str]) -> None:
        """Until it is discarded, however often it is added."""
        self._here[group, consumer] = 1
        self._topics[group, consumer] = topics

    def discard(self, group: str, consumer: str) -> None:
        self._here.pop((group, consumer), None)
        self._topics.pop((group, consumer), None)

    def check(self, check: Callable[[str, Sequence[str]], None]) -> None:
        """Those whose group and topics are refused leave."""
        leaving: list[Member] = []
        for (group, consumer), topics in list(self._topics.items()):
            try:
                check(group, topics)
            except PenstockError:
                self.discard(group, consumer)
                leaving.append((group, consumer))
        self._leave(leaving)

    @contextmanager
    def waiting(self, group: str, consumer: str) -> Iterator[None]:
        """Several may, for the same one."""
        self._here[group, consumer] += 1
        try:
            yield
        finally:
            self._here[group, consumer] -= 1
            if not self._here[group, consumer]:
                del self._here[group, consumer]

    def keep_alive(self) -> list[Member]:
        """Those who are none any more. They have to join again, and hear so when they ask for messages."""
        lost = []
        for group, consumer in self._here:
            try:
                self._site.heartbeat(group, consumer)
            except PenstockError:
                lost.append((group, consumer))
        return lost

    def leave(self) -> None:
        """All of them."""
        leaving = list(self._here)
        self._here.clear()
        self._topics.clear()
        self._leave(leaving)

    def _leave(self, leaving: Iterable[Member]) -> None:
        """At once, before anybody of the same name can join, and each group is assigned once."""
        groups: dict[str, list[str]] = {}
        for group, consumer in leaving:
            groups.setdefault(group, []).append(consumer)
        for group, consumers in groups.items():
            try:
                self._site.broker.leave(group, *consumers)
            except PenstockError:
                # The group is gone.
                pass
