"""Looking after the members of groups: one node for each group, and another one when that is gone.

Which node it is follows from the group's name and the nodes that are alive: nobody is elected, and all who know the
same nodes agree. Two that know different ones may both think that it is them; the later term wins at every partition,
and the other is not heard. What a coordinator knows is asked from those who lead the partitions, so nothing of it is
lost with a node: members that join again have what they had.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Protocol

from penstock.broker.broker import Broker
from penstock.broker.catalog import GroupRecord
from penstock.broker.members import Change
from penstock.broker.names import check_name
from penstock.client.cluster_requests import FindGroups
from penstock.client.placement import AssignPartition, Coordinator, CountMessages, FindOwners, Owner, StartGroup
from penstock.client.transport import Transport
from penstock.cluster.consumers import ClusterConsumers
from penstock.cluster.tasks import start
from penstock.errors import (
    ClusterError,
    ConnectionLost,
    GroupNotFound,
    LogFollows,
    NotCoordinator,
    NotFound,
    Overloaded,
    PenstockError,
)

log = logging.getLogger("penstock.cluster")

_RETRY_S, _RETRY_S_MAX = 0.05, 1.0
# Until whoever leads a partition is found, for somebody who waits.
PATIENCE_S = 20.0
# What whoever leads a partition, or did a moment ago, may answer, and another time does not.
_PASSING = (ClusterError, ConnectionLost, LogFollows, Overloaded)


class Surroundings(Protocol):
    """The node, as far as this needs it."""

    @property
    def name(self) -> str: ...

    def term(self) -> int:
        """Whoever has seen later nodes has a larger one."""

    def candidates(self) -> list[str]:
        """Those that may look after groups."""

    def nodes(self) -> list[str]:
        """All that are alive."""

    def leader(self, topic: str, partition: int) -> str | None: ...

    def transport(self, node: str) -> Transport: ...

    async def refreshed(self) -> bool:
        """Everything that is in etcd is known then; False if it can't be read."""

    def broke(self, error: PenstockError) -> None:
        """The node can't go on."""


class Coordination:
    def __init__(self, node: Surroundings, broker: Broker, consumers: ClusterConsumers) -> None:
        self._node = node
        self._broker = broker
        self._consumers = consumers
        consumers.decided = self._decided
        consumers.grown = self._grown
        # In how many partitions groups have begun for sure, by group and the id of a topic.
        self._begun: dict[tuple[str, str], int] = {}
        self._growing: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._beginning: dict[str, asyncio.Lock] = {}
        # Members that have left groups before this node knew of any.
        self._left: dict[str, set[str]] = {}
        # What partitions are to be told, the last word for each.
        self._untold: dict[tuple[str, str, int], AssignPartition] = {}
        self._telling: dict[tuple[str, str, int], asyncio.Task[None]] = {}
        self._loop = asyncio.get_running_loop()
        self._is_closed = False

    # --- who ---------------------------------------------------------------------------------------------

    def of(self, group: str) -> Coordinator:
        names = self._node.candidates()
        best = max(
            names, key=lambda name: (blake2b(f"{group}\0{name}".encode(), digest_size=8).digest(), name), default=""
        )
        return Coordinator(best, self._node.term())

    def _check(self, group: str) -> int:
        """The term in which this node coordinates it."""
        found = self.of(group)
        if found.node != self._node.name:
            raise NotCoordinator(
                f"{found.node or 'no node'} looks after the members of {group}", group=group, coordinator=found.node
            )
        return found.term

    def nodes_changed(self) -> None:
        for group in {*self._consumers.coordinated, *self._left}:
            if self.of(group).node != self._node.name:
                log.info("%s looks after group %s from now on", self.of(group).node, group)
                self._forget(group)

    def _forget(self, group: str) -> None:
        self._consumers.forget(group)
        self._left.pop(group, None)
        for key in [key for key in self._untold if key[0] == group]:
            del self._untold[key]
        for begun in [begun for begun in self._begun if begun[0] == group]:
            del self._begun[begun]

    # --- members -----------------------------------------------------------------------------------------

    async def join(
        self,
        group: str,
        consumer: str,
        topics: Iterable[str],
        session_us: int | None,
        given: Mapping[str, Any],
    ) -> GroupRecord:
        check_name("consumer", consumer)
        names = self._broker.checked_topics(topics)
        self._check(check_name("group", group))
        record = await self._broker.ensure_group(group, **given)
        for name in names:
            # Where others of the group are at it already, it has begun.
            if not self._consumers.is_subscribed(group, name):
                await self._started(group, name)
        async with self._beginning.setdefault(group, asyncio.Lock()):
            self._check(group)
            if not self._consumers.has(group):
                owners = await self._owners(group)
                await self._must_be_as_late_as(owners, group)
                # By the nodes of now: a change of them meanwhile was told to the groups that were there, not to this.
                self._consumers.begin(group, record.settings, owners, self._check(group))
                for left in self._left.pop(group, ()):
                    self._consumers.leave(group, record.settings, left)
        session_us = record.settings.session_us if session_us is None else session_us
        self._consumers.join(group, record.settings, consumer, names, session_us)
        return record

    async def _must_be_as_late_as(self, owners: list[Owner], group: str) -> None:
        """Whoever has decided before may have known later nodes, by which this one may not be the coordinator."""
        if self._consumers.term_of(owners) > self._check(group):
            if not await self._node.refreshed():
                raise NotCoordinator(f"who looks after {group} can't be known while etcd does not answer", group=group)
            # At the next turn of the loop the term is that of the nodes which are known now.
            await asyncio.sleep(0)

    def leave(self, group: str, consumer: str) -> None:
        self._check(group)
        if self._consumers.has(group):
            self._consumers.leave(group, self._broker.group_record(group).settings, consumer)
        else:
            # Those who lead partitions may still speak of it, to whoever asks for the first who joins.
            self._left.setdefault(group, set()).add(consumer)

    async def begin(self, group: str, topic: str) -> None:
        await self._started(group, topic)

    async def count(self, topic: str, ranges: Sequence[tuple[int, int]]) -> int:
        counts = [
            self._at(topic, number, partial(CountMessages, topic, number, first, last))
            for number, (first, last) in enumerate(ranges)
        ]
        return sum(await asyncio.gather(*counts))

    async def _owners(self, group: str) -> list[Owner]:
        """By all who lead anything. Of one that can't be asked, its partitions are given away anew."""
        found: list[Owner] = []
        answers = await asyncio.gather(
            *[self._node.transport(name).call(FindOwners(group)) for name in self._node.nodes()],
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, list):
                found += answer
            elif not isinstance(answer, PenstockError):
                raise answer
        return found

    async def _started(self, group: str, topic: str) -> None:
        """In every partition, before anybody hears that it has joined: what is published then is not missed.

        In the first one last. So a group that has begun there has begun in all that there were, and where it has not,
        the partition is the later one: there it begins at the very first message, whatever its settings say.
        """
        on_topic = self._broker.topic(topic)
        count, identity = on_topic.count, on_topic.record.id
        is_earlier = group in await self._at(topic, 0, lambda: FindGroups(topic, 0))

        def start_in(number: int, is_earlier: bool) -> StartGroup:
            # As it is by then: it may have been deleted, and made anew.
            return StartGroup(group, topic, (number,), is_earlier, self._broker.group_record(group).created_us)

        await asyncio.gather(
            *[self._at(topic, number, partial(start_in, number, is_earlier)) for number in range(1, count)]
        )
        await self._at(topic, 0, partial(start_in, 0, False))
        self._begun[group, identity] = max(count, self._begun.get((group, identity), 0))

    def _grown(self, topic: str) -> None:
        for group in self._consumers.coordinated:
            key = group, topic
            if self._is_behind(*key) and key not in self._growing:
                self._growing[key] = start(self._catch_up(*key), self._node.broke)

    def _is_behind(self, group: str, topic: str) -> bool:
        on_topic = self._broker.replicated.get(topic)
        return on_topic is not None and 0 < self._begun.get((group, on_topic.record.id), 0) < on_topic.count

    async def _catch_up(self, group: str, topic: str) -> None:
        """Until the group has begun in the new partitions, or somebody else looks after it."""
        try:
            while self._consumers.has(group) and self._is_behind(group, topic):
                try:
                    await self._started(group, topic)
                except PenstockError as error:
                    level = logging.DEBUG if isinstance(error, (*_PASSING, NotFound)) else logging.WARNING
                    log.log(level, "%s can't begin in new partitions of %s: %s", group, topic, error.message)
                    await asyncio.sleep(_RETRY_S_MAX)
        finally:
            del self._growing[group, topic]

    async def _at(self, topic: str, number: int, make: Callable[[], Any]) -> Any:
        """At whoever leads it, as soon as somebody does."""
        until, pause = self._loop.time() + PATIENCE_S, _RETRY_S
        while True:
            request = make()
            try:
                return await self._ask(topic, number, request)
            except (*_PASSING, GroupNotFound):
                if self._loop.time() + pause > until:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _RETRY_S_MAX)

    async def _ask(self, topic: str, number: int, request: Any) -> Any:
        leader = self._node.leader(topic, number)
        if leader is None:
            raise NotCoordinator(f"nobody leads partition {number} of {topic} at the moment")
        return await self._node.transport(leader).call(request)

    # --- what was decided --------------------------------------------------------------------------------

    def _decided(self, group: str, change: Change, is_lasting: bool) -> None:
        if self._is_closed:
            return
        part = change.part
        key = group, part.topic, part.number
        self._untold[key] = AssignPartition(
            group, part.topic, part.number, change.new, change.generation, change.reason, is_lasting
        )
        if key not in self._telling:
            self._telling[key] = start(self._tell(key), self._node.broke)

    async def _tell(self, key: tuple[str, str, int]) -> None:
        pause = _RETRY_S
        try:
            while (told := self._untold.get(key)) is not None:
                try:
                    if self._is_behind(*key[:2]):
                        await self._started(*key[:2])
                    is_heard = await self._ask(key[1], key[2], told)
                    if self._untold.get(key) is told:
                        del self._untold[key]
                        if not is_heard:
                            log.warning("another coordinator of group %s has been heard before this one", key[0])
                            # Members join again, here in a later term or elsewhere.
                            self._forget(key[0])
                            await self._node.refreshed()
                    pause = _RETRY_S
                    continue
                except NotFound as error:
                    if key[1] not in self._broker.replicated.open:
                        self._untold.pop(key, None)
                        return
                    log.debug("%s: %s", key, error.message)
                except PenstockError as error:
                    # Told again as long as it is the last word, whatever it is: nobody else would tell it.
                    level = logging.DEBUG if isinstance(error, _PASSING) else logging.WARNING
                    log.log(level, "%s: %s", key, error.message)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _RETRY_S_MAX)
        finally:
            del self._telling[key]

    # --- as leader of partitions -------------------------------------------------------------------------

    async def start_group(self, request: StartGroup) -> None:
        await self._known(request.group, request.created_us)
        group, topic = self._broker.group(request.group, request.topic), self._broker.topic(request.topic)
        for number in request.partitions if request.is_earlier and not group.settings.is_replay else ():
            groups = topic.partition(number).groups
            if not groups.has(request.group):
                await groups.start(request.group, 0)
        await group.start_in(request.partitions)
        for number in request.partitions:
            await topic.partition(number).groups.flushed()
        topic.bell.ring(request.group)

    def groups_in(self, request: FindGroups) -> list[str]:
        return list(self._broker.topic(request.topic).partition(request.partition).groups.groups)

    async def assign(self, request: AssignPartition) -> bool:
        await self._known(request.group)
        groups = self._broker.topic(request.topic).partition(request.partition).groups
        before = groups.owner(request.group)
        if before is not None and before.generation > request.generation:
            return False
        groups.assign(request.group, request.member, request.generation, request.reason, is_lasting=request.is_lasting)
        await groups.flushed()
        self._broker.topic(request.topic).bell.ring(request.group)
        return True

    def owners(self, request: FindOwners) -> list[Owner]:
        found = []
        for topic in self._broker.replicated.open.values():
            for number, partition in topic.numbered:
                owner = partition.groups.owner(request.group)
                if owner is not None:
                    found.append(Owner(topic.name, number, owner.member, owner.generation, owner.is_lasting))
        return found

    async def _known(self, group: str, created_us: int = 0) -> None:
        """Made a moment ago, maybe: by the node that asks."""
        if not self._is_known(group, created_us):
            await self._node.refreshed()
            # What is in the catalog is taken up at the next turn of the loop.
            await asyncio.sleep(0)
            if created_us and not self._is_known(group, created_us):
                raise GroupNotFound(f"there is no group {group}, or another one", group=group)
        await self._broker.dropped(group)

    def _is_known(self, group: str, created_us: int) -> bool:
        return self._broker.has_group(group) and created_us in (0, self._broker.group_record(group).created_us)

    async def close(self) -> None:
        self._is_closed = True
        tasks = [*self._telling.values(), *self._growing.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
