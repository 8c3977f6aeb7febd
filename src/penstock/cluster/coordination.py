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
# Until whoever leads a partition is found, for somebody who waits; and for whom it can be done later.
PATIENCE_S, BRIEF_S = 20.0, 1.0
# Of a group: whoever says that it leaves need not have been a member.
_LEFT_MAX = 1_000
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


class _Begun:
    """Of a group in a topic: in which partitions; how many there were when it was new, 0 if it was not; and when that
    was. `is_late`: those that are not among the numbers begin later."""

    def __init__(self, count: int, since_us: int) -> None:
        self.numbers: set[int] = set()
        self.count = count
        self.since_us = since_us
        self.is_late = False


class Coordination:
    def __init__(self, node: Surroundings, broker: Broker, consumers: ClusterConsumers) -> None:
        self._node = node
        self._broker = broker
        self._consumers = consumers
        consumers.decided = self._decided
        consumers.grown = self._grown
        # In which partitions groups have begun for sure, by group and the id of a topic.
        self._begun: dict[tuple[str, str], _Begun] = {}
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
                await self._started(group, name, BRIEF_S)
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
        for name in names:
            self._see_to(group, name)
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
        elif self._broker.has_group(group) and len(left := self._left.setdefault(group, set())) < _LEFT_MAX:
            # Those who lead partitions may still speak of it, to whoever asks for the first who joins.
            left.add(consumer)

    async def begin(self, group: str, topic: str) -> None:
        await self._started(group, topic, PATIENCE_S)

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

    async def _started(self, group: str, topic: str, patience_s: float) -> None:
        """In every partition, before anybody hears that it has joined: what is published then is not missed.

        In the first one last. So a group that has begun there has begun in all that there were, and where it has not,
        the partition is the later one, or nobody led it then: there it begins at the first message that is not older
        than the group, whatever its settings say.

        With little patience, those that nobody leads are left for later: nothing is published there meanwhile.
        """
        on_topic = self._broker.topic(topic)
        is_earlier = await self._is_earlier(group, topic, on_topic.count, patience_s)
        begun = _Begun(0 if is_earlier else on_topic.count, self._consumers.now_us())

        async def start_in(number: int) -> PenstockError | None:
            try:
                await self._at(topic, number, lambda: self._start_of(group, topic, number, begun), patience_s)
            except (*_PASSING, GroupNotFound) as error:
                return error
            begun.numbers.add(number)
            return None

        failures = list(await asyncio.gather(*[start_in(number) for number in range(1, on_topic.count)]))
        failures.append(await start_in(0))
        errors = [error for error in failures if error is not None]
        if errors and (patience_s >= PATIENCE_S or not begun.numbers):
            raise errors[-1]
        begun.is_late = True
        self._begun[group, on_topic.record.id] = begun

    async def _is_earlier(self, group: str, topic: str, count: int, patience_s: float) -> bool:
        """Whether it has begun before: by the first partition, or by another one if nobody leads that."""
        led = [number for number in range(count) if self._node.leader(topic, number) is not None]
        while True:
            number = led.pop(0) if led else 0
            try:
                return group in await self._at(topic, number, partial(FindGroups, topic, number), patience_s)
            except _PASSING:
                if not led:
                    raise

    def _start_of(self, group: str, topic: str, number: int, begun: _Begun) -> StartGroup:
        """As the group is by then: it may have been deleted, and made anew."""
        is_earlier = number >= begun.count
        since_us = begun.since_us if begun.is_late and not is_earlier else 0
        created_us = self._broker.group_record(group).created_us
        return StartGroup(group, topic, (number,), is_earlier, created_us, since_us)

    def _grown(self, topic: str) -> None:
        for group in self._consumers.coordinated:
            self._see_to(group, topic)

    def _see_to(self, group: str, topic: str) -> None:
        """That it begins where it has not."""
        key = group, topic
        if key not in self._growing and self._lacking(*key):
            self._growing[key] = start(self._catch_up(*key), self._node.broke)

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
            await self._ask(topic, number, self._start_of(group, topic, number, begun))
            begun.numbers.add(number)

    async def _catch_up(self, group: str, topic: str) -> None:
        """Until the group has begun in all partitions, or somebody else looks after it."""
        try:
            while self._consumers.has(group) and (lacking := self._lacking(group, topic)):
                for number in lacking:
                    try:
                        await self._start_late(group, topic, number)
                    except PenstockError as error:
                        level = logging.DEBUG if isinstance(error, (*_PASSING, NotFound)) else logging.WARNING
                        log.log(level, "%s can't begin in %s:%d: %s", group, topic, number, error.message)
                if self._lacking(group, topic):
                    await asyncio.sleep(_RETRY_S_MAX)
        finally:
            del self._growing[group, topic]

    async def _at(self, topic: str, number: int, make: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
        """At whoever leads it, as soon as somebody does."""
        until, pause = self._loop.time() + patience_s, _RETRY_S
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
                    if key[2] in self._lacking(*key[:2]):
                        await self._start_late(*key)
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
        for number in request.partitions:
            partition = topic.partition(number)
            if partition.groups.has(request.group) or group.settings.is_replay:
                continue
            # What is older than the group is of the past also where nobody led the partition when it began.
            since_us = self._broker.group_record(request.group).created_us if request.is_earlier else request.since_us
            if group.settings.start == "latest" and since_us:
                first = await self._broker.on_a_thread(partial(partition.messages.offset_at, since_us))
                if not partition.groups.has(request.group):
                    await partition.groups.start(request.group, min(first, partition.reading.visible_offset))
            elif request.is_earlier:
                await partition.groups.start(request.group, 0)
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
