"""Consumers that somebody at a door stands for. They are members for a session, and heard of as long as they are here.

Who stands for them differs: a connection of the native protocol, until it is lost; elsewhere a poll or a stream that
waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
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

    def __len__(self) -> int:
        return len(self._here)

    def has(self, group: str, consumer: str) -> bool:
        return (group, consumer) in self._here

    def add(self, group: str, consumer: str) -> None:
        """Until it is discarded, however often it is added."""
        self._here[group, consumer] = 1

    def discard(self, group: str, consumer: str) -> None:
        self._here.pop((group, consumer), None)

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
        """All of them, at once."""
        for group, consumer in self._here:
            try:
                self._site.broker.leave(group, consumer)
            except PenstockError:
                # The group is gone.
                pass
        self._here.clear()
