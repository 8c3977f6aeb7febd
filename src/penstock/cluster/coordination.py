"""Looking after the members of groups: one node for each group, and another one when that is gone.

Which node it is follows from the group's name and the nodes that are alive: nobody is elected, and all who know the
same nodes agree. Two that know different ones may both think that it is them; the later term wins at every partition,
and the other is not heard. What a coordinator knows is asked from those who lead the partitions, so nothing of it is
lost with a node: members that join again have what they had.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Protocol
from weakref import WeakValueDictionary

from penstock.broker.broker import Broker
from penstock.broker.catalog import GroupRecord
from penstock.broker.joins import Join
from penstock.broker.members import Change
from penstock.broker.names import check_name
from penstock.client.cluster_requests import FindGroups, GroupsIn
from penstock.client.placement import AssignPartition, Coordinator, CountMessages, FindOwners, Owner, StartGroup
from penstock.client.transport import Transport
from penstock.cluster.beginnings import PASSING, RETRY_S, RETRY_S_MAX, SKEW_US, Beginnings
from penstock.cluster.consumers import ClusterConsumers
from penstock.cluster.tasks import start
from penstock.errors import (
    GroupNotFound,
    NotCoordinator,
    NotFound,
    NotLeader,
    PenstockError,
)

log = logging.getLogger("penstock.cluster")

# Of a group: whoever says that it leaves need not have been a member.
_LEFT_MAX = 1_000


class Surroundings(Protocol):
    """The node, as far as this needs it."""

    @property
    def name(self) -> str: ...

    def term(self) -> int:
        """Whoever has seen later nodes has a larger one."""

    def version(self) -> int:
        """The same for clients, and larger than any from before etcd was set back."""

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
        self._beginnings = Beginnings(self, broker, consumers)
        consumers.decided = self._decided
        consumers.grown = self._grown
        consumers.forgotten = self._beginnings.forget
        self._beginning: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
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
        return Coordinator(best, self._node.version())

    def _check(self, group: str) -> int:
        """The term in which this node coordinates it."""
        found = self.of(group)
        if found.node != self._node.name:
            raise NotCoordinator(
                f"{found.node or 'no node'} looks after the members of {group}", group=group, coordinator=found.node
            )
        return self._node.term()

    def nodes_changed(self) -> None:
        for group in {*self._consumers.coordinated, *self._left, *self._beginnings.groups}:
            if self.of(group).node != self._node.name:
                log.info("%s looks after group %s from now on", self.of(group).node or "nobody", group)
                self._forget(group)

    def _forget(self, group: str) -> None:
        self._consumers.forget(group)
        self._left.pop(group, None)
        for key in [key for key in self._untold if key[0] == group]:
            del self._untold[key]

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
        with self._consumers.joins.begin(group, consumer) as join:
            return await self._join(join, group, consumer, names, session_us, given)

    async def _join(
        self,
        join: Join,
        group: str,
        consumer: str,
        names: Sequence[str],
        session_us: int | None,
        given: Mapping[str, Any],
    ) -> GroupRecord:
        record = await self._broker.ensure_group(group, **given)
        for name in names:
            await self._beginnings.join(group, name)
        async with self._beginning.setdefault(group, asyncio.Lock()):
            self._check(group)
            if not self._consumers.has(group):
                owners = await self._owners(group)
                await self._must_be_as_late_as(owners, group)
                # By the nodes of now: a change of them meanwhile was told to the groups that were there, not to this.
                self._consumers.begin(group, record.settings, owners, self._check(group))
                self._consumers.leave(group, record.settings, self._left.pop(group, ()))
        join.check()
        session_us = record.settings.session_us if session_us is None else session_us
        self._consumers.join(group, record.settings, consumer, names, session_us)
        for name in names:
            self._beginnings.see_to(group, name)
        return record

    async def _must_be_as_late_as(self, owners: list[Owner], group: str) -> None:
        """Whoever has decided before may have known later nodes, by which this one may not be the coordinator."""
        if self._consumers.term_of(owners) > self._check(group):
            if not await self._node.refreshed():
                raise NotCoordinator(f"who looks after {group} can't be known while etcd does not answer", group=group)
            # At the next turn of the loop the term is that of the nodes which are known now.
            await asyncio.sleep(0)

    def leave(self, group: str, consumers: Sequence[str]) -> None:
        # Before the check: a join may be under way here though another node coordinates the group by now.
        for consumer in consumers:
            self._consumers.joins.invalidate(group, consumer)
        self._check(group)
        if self._consumers.has(group):
            self._consumers.leave(group, self._broker.group_record(group).settings, consumers)
        elif self._broker.has_group(group):
            # Those who lead partitions may still speak of them, to whoever asks for the first who joins.
            left = self._left.setdefault(group, set())
            left.update(consumers[: max(_LEFT_MAX - len(left), 0)])

    async def begin(self, group: str, topic: str) -> None:
        try:
            await self._beginnings.begin(group, topic)
        except PASSING as error:
            # The catalog has the replay. An error would make the caller repeat it, and the repetition would fail with
            # AlreadyExists.
            log.warning("replay %s of %s begins where it has not when a member joins: %s", group, topic, error.message)

    async def count(self, topic: str, ranges: Sequence[tuple[int, int]]) -> int:
        counts = [
            self._beginnings.at(topic, number, partial(CountMessages, topic, number, first, last))
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

    def _grown(self, topic: str) -> None:
        self._beginnings.forget_deleted()
        for group in self._consumers.coordinated:
            self._beginnings.see_to(group, topic)

    # --- those who lead partitions -----------------------------------------------------------------------

    def leads(self, topic: str, partition: int) -> bool:
        return self._leader(topic, partition) is not None

    def _leader(self, topic: str, partition: int) -> str | None:
        """One that is dead is the leader until there is another one."""
        leader = self._node.leader(topic, partition)
        return leader if leader in self._node.nodes() else None

    async def ask(self, topic: str, partition: int, request: Any) -> Any:
        leader = self._leader(topic, partition)
        if leader is None:
            told = f"nobody leads partition {partition} of {topic} at the moment"
            raise NotLeader(told, topic=topic, partition=partition)
        return await self._node.transport(leader).call(request)

    def broke(self, error: PenstockError) -> None:
        self._node.broke(error)

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
        pause = RETRY_S
        try:
            while (told := self._untold.get(key)) is not None:
                try:
                    if told.member is not None:
                        await self._beginnings.must_have(*key)
                    is_heard = await self.ask(key[1], key[2], told)
                    if self._untold.get(key) is told:
                        del self._untold[key]
                        if not is_heard:
                            log.warning("another coordinator of group %s has been heard before this one", key[0])
                            # Members join again, here in a later term or elsewhere.
                            self._forget(key[0])
                            await self._node.refreshed()
                    pause = RETRY_S
                    continue
                except NotFound as error:
                    if key[1] not in self._broker.replicated.open:
                        self._untold.pop(key, None)
                        return
                    log.debug("%s: %s", key, error.message)
                except PenstockError as error:
                    # Told again as long as it is the last word, whatever it is: nobody else would tell it.
                    level = logging.DEBUG if isinstance(error, PASSING) else logging.WARNING
                    log.log(level, "%s: %s", key, error.message)
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_S_MAX)
        finally:
            del self._telling[key]

    # --- as leader of partitions -------------------------------------------------------------------------

    async def start_group(self, request: StartGroup) -> None:
        await self._known(request.group, request.created_us)
        group, topic = self._broker.group(request.group, request.topic), self._broker.topic(request.topic)
        for number in request.partitions:
            partition = topic.partition(number)
            # It would wait for more, and whoever asks does not: it asks again.
            topic.check_in_sync(number, partition, "no group begins there")
            if partition.groups.has_started(request.group) or group.settings.is_replay:
                continue
            # What is older than the group is of the past also where nobody led the partition when it began.
            since_us = self._broker.group_record(request.group).created_us if request.is_earlier else request.since_us
            if group.settings.start == "latest" and request.at is not None:
                await partition.groups.start(request.group, min(request.at, partition.reading.visible_offset))
            elif group.settings.start == "latest" and since_us:
                not_older = max(0, since_us - SKEW_US)
                first = await self._broker.on_a_thread(partial(partition.messages.offset_at, not_older))
                if not partition.groups.has_started(request.group):
                    await partition.groups.start(request.group, min(first, partition.reading.visible_offset))
            elif request.is_earlier:
                await partition.groups.start(request.group, 0)
        await group.start_in(request.partitions)
        for number in request.partitions:
            await topic.partition(number).groups.flushed()
        topic.bell.ring(request.group)

    def groups_in(self, request: FindGroups) -> GroupsIn:
        partition = self._broker.topic(request.topic).partition(request.partition)
        return GroupsIn(tuple(partition.groups.groups), partition.reading.visible_offset)

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

    def _is_known(self, group: str, created_us: int) -> bool:
        return self._broker.has_group(group) and created_us in (0, self._broker.group_record(group).created_us)

    async def close(self) -> None:
        self._is_closed = True
        await self._beginnings.close()
        tasks = list(self._telling.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
