"""Which node leads which partition, as far as is known here.

What is known never goes back: a partition is taken from an answer only if that is of a later leader (a larger epoch),
or of the same one and later. So it does not matter which node was asked, or how far behind it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from penstock.client.placement import FindPlacement, Placed, Placement, TopicPlacement
from penstock.errors import PartitionNotFound, PenstockError, TopicNotFound
from penstock.net.routing.failures import is_misplaced, is_unknown
from penstock.net.routing.nodes import Nodes
from penstock.net.routing.pace import Attempts


class KnownTopic(NamedTuple):
    """`since` has the revision that told of each partition. `leaders` are those of any of them, and `is_led` if all
    have one."""

    id: str
    revision: int
    partitions: dict[int, Placed]
    since: dict[int, int]
    leaders: frozenset[str]
    is_led: bool


class Atlas:
    """Belongs to one event loop, except for `leader_of`."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._topics: dict[str, KnownTopic] = {}
        # As brokers have said when something was published: a node that says where may know of fewer.
        self._counts: dict[str, int] = {}
        self._flights: dict[tuple[str, ...], asyncio.Task[None]] = {}
        self._latest = 0

    # --- as it is known ----------------------------------------------------------------------------------

    def leader_of(self, topic: str, number: int) -> str | None:
        """From any thread."""
        known = self._topics.get(topic)
        placed = None if known is None else known.partitions.get(number)
        return None if placed is None else placed.leader

    def numbers(self, topic: str) -> list[int]:
        """All there are, though it may not be known who leads some. TopicNotFound if it is not known."""
        known = self._of(topic).partitions
        return list(range(max(max(known, default=0) + 1, self._counts.get(topic, 0))))

    def leaders(self, topics: Iterable[str]) -> set[str]:
        """Of any of their partitions."""
        return {leader for topic in topics if topic in self._topics for leader in self._topics[topic].leaders}

    def knows(self, topics: Iterable[str]) -> bool:
        return all(topic in self._topics for topic in topics)

    def lacks(self, topics: Iterable[str]) -> bool:
        """Something is not known, or is led by nobody as far as is known."""
        return not all(topic in self._topics and self._topics[topic].is_led for topic in topics)

    def has_moved(self, topic: str, placed: Placed) -> bool:
        """Somebody leads it who came later, or it is gone."""
        known = self._topics.get(topic)
        now = None if known is None else known.partitions.get(placed.number)
        return now is None or now.epoch > placed.epoch

    def names(self) -> list[str]:
        return sorted(self._topics)

    @property
    def revision(self) -> int:
        """Of the latest answer."""
        return self._latest

    def snapshot(self) -> Mapping[str, KnownTopic]:
        return dict(self._topics)

    def stable_leaders(self, topic: str, before: Mapping[str, KnownTopic]) -> Iterator[tuple[int, str]]:
        """Partitions whose leader is the one that it was then, and who that is."""
        was, now = before.get(topic), self._topics.get(topic)
        if was is not None and now is not None and was.id == now.id:
            for number, placed in now.partitions.items():
                old = was.partitions.get(number)
                if old is not None and placed.leader and (placed.leader, placed.epoch) == (old.leader, old.epoch):
                    yield number, placed.leader

    def note(self, topic: str, partitions: int) -> None:
        """It has so many, says somebody who knows."""
        if partitions > self._counts.get(topic, 0):
            self._counts[topic] = partitions

    def forget(self, topic: str) -> None:
        self._topics.pop(topic, None)
        self._counts.pop(topic, None)

    async def placed(self, topic: str, number: int, doubted: Placed | None) -> Placed:
        """`doubted` has turned out to be wrong: others are asked, and may say the same."""
        known = self._topics.get(topic)
        placed = None if known is None else known.partitions.get(number)
        if placed is None or placed == doubted:
            await self.refresh(topic)
            placed = self._of(topic).partitions.get(number)
        if placed is None:
            count = len(self.numbers(topic))
            if not 0 <= number < count:
                raise PartitionNotFound(
                    f"{topic} has partitions 0 to {count - 1}, not {number!r}", topic=topic, partitions=count
                )
            # There is one: nobody is known to lead it.
            return Placed(number, "", 0, (), ())
        return placed

    def _of(self, topic: str) -> KnownTopic:
        known = self._topics.get(topic)
        if known is None:
            raise TopicNotFound.named(topic)
        return known

    # --- asking ------------------------------------------------------------------------------------------

    async def refresh(self, *topics: str) -> None:
        """Asks where they are; without names, where all are. One question at a time serves all who ask the same."""
        await asyncio.shield(self._flight(topics))

    async def refresh_patiently(self, attempts: Attempts, *topics: str, anew: bool = False) -> None:
        """Until somebody answers. With `anew`, the question is asked from now on: an earlier one that is under way may
        bring what is older than what the caller has heard meanwhile."""
        if anew and topics in self._flights:
            await asyncio.wait([self._flights[topics]])
        while True:
            try:
                await self.refresh(*topics)
                return
            except PenstockError as error:
                if not (is_misplaced(error) or is_unknown(error)):
                    raise
                await attempts.pause(error)

    def refresh_soon(self, topic: str, then: Callable[[], None]) -> None:
        """Without waiting; `then` is called when it is done, or has failed."""
        self._flight((topic,)).add_done_callback(lambda flight: then())

    def _flight(self, topics: tuple[str, ...]) -> asyncio.Task[None]:
        flight = self._flights.get(topics)
        if flight is None:
            flight = self._flights[topics] = asyncio.get_running_loop().create_task(self._ask(topics))
            flight.add_done_callback(lambda flight: self._landed(topics, flight))
        return flight

    def _landed(self, topics: tuple[str, ...], flight: asyncio.Task[None]) -> None:
        self._flights.pop(topics, None)
        if not flight.cancelled():
            # Nobody may have waited for it.
            flight.exception()

    async def _ask(self, topics: tuple[str, ...]) -> None:
        latest = self._latest
        self._learn(topics, await self._nodes.look(FindPlacement(topics), lambda one: one.revision >= latest))

    def _learn(self, asked: tuple[str, ...], placement: Placement) -> None:
        self._latest = max(self._latest, placement.revision)
        self._nodes.learn(placement.revision, placement.nodes)
        found = {topic.name: topic for topic in placement.topics}
        for name in asked or [name for name in self._topics if name not in found]:
            known = self._topics.get(name)
            if name not in found and known is not None and placement.revision >= known.revision:
                self.forget(name)
        for topic in placement.topics:
            self._learn_of(topic, placement.revision)

    def _learn_of(self, topic: TopicPlacement, revision: int) -> None:
        known = self._topics.get(topic.name)
        if known is not None and known.id != topic.id:
            if revision < known.revision:
                return
            # Deleted, and made again.
            known = None
            self._counts.pop(topic.name, None)
        partitions = {} if known is None else dict(known.partitions)
        since = {} if known is None else dict(known.since)
        for placed in topic.partitions:
            old = partitions.get(placed.number)
            if old is None or (placed.epoch, revision) >= (old.epoch, since[placed.number]):
                partitions[placed.number], since[placed.number] = placed, revision
        latest = revision if known is None else max(revision, known.revision)
        leaders = {placed.leader for placed in partitions.values()}
        # Replaced as a whole: threads look into it.
        self._topics[topic.name] = KnownTopic(
            topic.id, latest, partitions, since, frozenset(leaders - {""}), "" not in leaders
        )

    async def close(self) -> None:
        flights = list(self._flights.values())
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)
