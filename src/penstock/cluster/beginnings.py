"""In which partitions groups have begun: in all of them before anybody hears that it has joined, so that what is
published then is not missed; later where nobody leads one, or where too few have it to write to it.

What a coordinator knows of that is gone with it. The next one asks those who lead the partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from penstock.broker.broker import Broker
from penstock.client.cluster_requests import FindGroups, GroupsIn
from penstock.client.placement import StartGroup
from penstock.cluster.consumers import ClusterConsumers
from penstock.cluster.tasks import start
from penstock.errors import (
    ClusterError,
    ConnectionLost,
    GroupNotFound,
    LogFollows,
    NotEnoughReplicas,
    NotFound,
    NotLeader,
    Overloaded,
    PenstockError,
)

log = logging.getLogger("penstock.cluster")

RETRY_S, RETRY_S_MAX = 0.05, 1.0
# Until whoever leads a partition has answered, for somebody who waits; and for whom it can be done later.
PATIENCE_S, BRIEF_S = 20.0, 1.0
# When a group was made is by one node's clock, and when messages were published by another's. Between them there may be
# so much; a group that begins late gets what was published so long before it, rather than too little.
SKEW_US = 5_000_000
# Since a group was made. No node's session is shorter: nobody can have looked after it, and have died since.
YOUNG_US = 1_000_000
# What whoever leads a partition, or did a moment ago, may answer, and another time does not.
PASSING = (ClusterError, ConnectionLost, LogFollows, Overloaded)


class Leaders(Protocol):
    def leads(self, topic: str, partition: int) -> bool:
        """Whether anybody does."""

    async def ask(self, topic: str, partition: int, request: Any) -> Any: ...

    def broke(self, error: PenstockError) -> None:
        """The node can't go on."""


class _Begun:
    """Of a group in a topic: in which partitions; how many there were when it was new, 0 if it was not; when that was,
    and where those ended then that were led."""

    def __init__(self, count: int, since_us: int, ends: Mapping[int, int]) -> None:
        self.numbers: set[int] = set()
        self.count = count
        self.since_us = since_us
        self.ends = ends


class Beginnings:
    """Belongs to one event loop."""

    def __init__(self, leaders: Leaders, broker: Broker, consumers: ClusterConsumers) -> None:
        self._leaders = leaders
        self._broker = broker
        self._consumers = consumers
        # Of groups whose members this node looks after, by group and the id of a topic.
        self._begun: dict[tuple[str, str], _Begun] = {}
        self._growing: dict[tuple[str, str], asyncio.Task[None]] = {}
        # And the group's generation: one that was created anew meanwhile has begun nowhere.
        self._joining: dict[tuple[str, str, int], asyncio.Task[_Begun]] = {}
        self._loop = asyncio.get_running_loop()

    def forget(self, group: str) -> None:
        for key in [key for key in self._begun if key[0] == group]:
            del self._begun[key]

    def forget_deleted(self) -> None:
        """Drop what is known of topics that are gone."""
        there = {topic.record.id for topic in self._broker.replicated.open.values()}
        for key in [key for key in self._begun if key[1] not in there]:
            del self._begun[key]

    @property
    def groups(self) -> set[str]:
        return {group for group, _ in self._begun}

    def knows(self, group: str, topic: str) -> bool:
        return (group, self._broker.topic(topic).record.id) in self._begun

    async def begin(self, group: str, topic: str) -> None:
        """Of a group that somebody else may look after."""
        await self._started(group, topic, PATIENCE_S)

    async def join(self, group: str, topic: str) -> None:
        """Before one of its members does. Those who ask at the same time wait for the same."""
        if self.knows(group, topic):
            return
        generation = self._broker.group_record(group).generation
        key = group, self._broker.topic(topic).record.id, generation
        if key not in self._joining:
            self._joining[key] = asyncio.ensure_future(self._started(group, topic, BRIEF_S))
            self._joining[key].add_done_callback(partial(self._joined, key))
        begun = await asyncio.shield(self._joining[key])
        # Unless it was deleted meanwhile, and maybe made anew.
        if self._broker.has_group(group) and self._broker.group_record(group).generation == generation:
            self._begun[key[:2]] = begun

    def _joined(self, key: tuple[str, str, int], task: asyncio.Task[_Begun]) -> None:
        del self._joining[key]
        if not task.cancelled():
            # Whoever waited for it may be gone.
            task.exception()

    async def at(self, topic: str, number: int, make: Callable[[], Any], until: float | None = None) -> Any:
        """At whoever leads it, as soon as somebody does. What is not answered by `until` may be done nevertheless."""
        until = self._loop.time() + PATIENCE_S if until is None else until
        pause = RETRY_S
        while True:
            request = make()
            try:
                return await self._asked(topic, number, request, until)
            except (*PASSING, GroupNotFound):
                if self._loop.time() + pause > until:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_S_MAX)

    async def _asked(self, topic: str, number: int, request: Any, until: float) -> Any:
        try:
            async with asyncio.timeout_at(until):
                return await self._leaders.ask(topic, number, request)
        except TimeoutError:
            told = f"whoever leads partition {number} of {topic} has not answered in time"
            raise NotLeader(told, topic=topic, partition=number) from None

    async def _started(self, group: str, topic: str, patience_s: float) -> _Begun:
        """In every partition. Where a group has begun in any of them, it has begun in all that there were; one in which
        it has not is a later one, or nobody led it then. There it begins at the first message that is not older than
        the group, whatever its settings say.

        With little patience, those that do not answer are left for later.
        """
        on_topic, now_us = self._broker.topic(topic), self._consumers.now_us()
        ends = await self._ends_if_new(group, topic, on_topic.count, self._loop.time() + patience_s)
        until = self._loop.time() + patience_s
        begun = _Begun(0 if ends is None else on_topic.count, now_us, ends or {})

        async def start_in(number: int) -> PenstockError | None:
            try:
                await self.at(topic, number, lambda: self._start_of(group, topic, number, begun), until)
            except (*PASSING, GroupNotFound) as error:
                return error
            begun.numbers.add(number)
            return None

        outcomes = await asyncio.gather(*[start_in(number) for number in range(on_topic.count)])
        errors = [error for error in outcomes if error is not None]
        if errors and (patience_s >= PATIENCE_S or not begun.numbers):
            raise errors[-1]
        return begun

    async def _ends_if_new(self, group: str, topic: str, count: int, until: float) -> dict[int, int] | None:
        """Where those end that are led and can be read; None if it has begun before, anywhere: where nobody led a
        partition, it has not, and where it has, nobody may lead it now, or say so. If some don't say, only a group that
        was made just now is taken for new."""
        ends: dict[int, int] = {}
        led = [number for number in range(count) if self._leaders.leads(topic, number)] or [0]

        async def find(number: int) -> bool:
            try:
                found = await self._asked(topic, number, FindGroups(topic, number), until)
            except NotEnoughReplicas:
                # It has a new leader, who may not say what is in it.
                return False
            except PASSING:
                found = await self.at(topic, number, partial(FindGroups, topic, number), until)
            ends[number] = found.end
            return group in found.groups

        asked = [asyncio.ensure_future(find(number)) for number in led]
        failed: PenstockError | None = None
        try:
            for answer in asyncio.as_completed(asked):
                try:
                    if await answer:
                        return None
                except PASSING as error:
                    failed = error
        finally:
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        if failed is not None:
            raise failed
        if len(ends) == count or self._is_young(group):
            return ends
        return ends if await self._is_new_to_the_rest(group, topic, count, ends) else None

    async def _is_new_to_the_rest(self, group: str, topic: str, count: int, ends: dict[int, int]) -> bool:
        """Those that did not say are waited for, as long as an election takes: whoever is taken for an old one gets all
        that was published since the group was made."""
        until = self._loop.time() + PATIENCE_S
        left = [number for number in range(count) if number not in ends]
        finding = [self.at(topic, number, partial(FindGroups, topic, number), until) for number in left]
        for number, found in zip(left, await asyncio.gather(*finding, return_exceptions=True), strict=True):
            if isinstance(found, PASSING) or (isinstance(found, GroupsIn) and group in found.groups):
                return False
            if isinstance(found, BaseException):
                raise found
            ends[number] = found.end
        return True

    def _is_young(self, group: str) -> bool:
        return 0 <= self._consumers.now_us() - self._broker.group_record(group).created_us < YOUNG_US

    def _start_of(self, group: str, topic: str, number: int, begun: _Begun) -> StartGroup:
        """As the group is by then: it may have been deleted, and made anew."""
        is_earlier = number >= begun.count
        since_us = 0 if is_earlier else begun.since_us
        created_us = self._broker.group_record(group).created_us
        return StartGroup(group, topic, (number,), is_earlier, created_us, since_us, begun.ends.get(number))

    # --- later -------------------------------------------------------------------------------------------

    def see_to(self, group: str, topic: str) -> None:
        """That it begins where it has not."""
        key = group, topic
        if key not in self._growing and self._lacking(*key):
            self._growing[key] = start(self._catch_up(*key), self._leaders.broke)

    async def must_have(self, group: str, topic: str, number: int) -> None:
        """Before the partition is given to anybody: messages that come first would not be where it begins."""
        if not self._consumers.has(group):
            return
        await self.join(group, topic)
        if number in self._lacking(group, topic):
            await self._start_late(group, topic, number)

    def _lacking(self, group: str, topic: str) -> list[int]:
        """The partitions in which a group that this node has begun has not begun yet."""
        on_topic = self._broker.replicated.get(topic)
        begun = None if on_topic is None else self._begun.get((group, on_topic.record.id))
        if on_topic is None or begun is None:
            return []
        return [number for number in range(on_topic.count) if number not in begun.numbers]

    async def _start_late(self, group: str, topic: str, number: int) -> None:
        """Where somebody leads it now."""
        begun = self._begun.get((group, self._broker.topic(topic).record.id))
        # Somebody else may look after the group by now.
        if begun is not None:
            request = self._start_of(group, topic, number, begun)
            await self._asked(topic, number, request, self._loop.time() + BRIEF_S)
            begun.numbers.add(number)

    async def _catch_up(self, group: str, topic: str) -> None:
        """Until the group has begun in all partitions, or somebody else looks after it."""
        try:
            while self._consumers.has(group) and (lacking := self._lacking(group, topic)):
                await asyncio.gather(*[self._tried(group, topic, number) for number in lacking])
                if self._lacking(group, topic):
                    await asyncio.sleep(RETRY_S_MAX)
        finally:
            del self._growing[group, topic]

    async def _tried(self, group: str, topic: str, number: int) -> None:
        try:
            await self._start_late(group, topic, number)
        except PenstockError as error:
            level = logging.DEBUG if isinstance(error, (*PASSING, NotFound)) else logging.WARNING
            log.log(level, "%s can't begin in %s:%d: %s", group, topic, number, error.message)

    async def close(self) -> None:
        tasks: list[asyncio.Task[Any]] = [*self._growing.values(), *self._joining.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
