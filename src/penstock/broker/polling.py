"""Members of groups: they join, ask for messages of some topics, wait until there are some, and leave."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

from penstock.broker.catalog import Catalog, GroupRecord
from penstock.broker.checks import is_int
from penstock.broker.delivery import Delivery
from penstock.broker.group import Group, Handed, Leased
from penstock.broker.groups import Groups
from penstock.broker.membership import Consumers
from penstock.broker.names import check_name
from penstock.broker.timers import Timers
from penstock.broker.topic import Topic
from penstock.broker.topics import Topics
from penstock.clock import TIME_MAX_US, Clock
from penstock.errors import ClusterError, InvalidInput, NotLeader, Overloaded, PenstockError, StorageError

WAIT_US_MAX = 300_000_000
# Members of a group name their topics; what they may lease from is looked through at every poll.
TOPICS_MAX = 1_000
_LED_MAX = 100_000
# A poll or a join of more partitions than that takes turns with others like it. After it, the rest have as much time as
# it took: so long for each partition. A poll that finds messages takes less.
_FEW, _LOOK_S = 100, 0.000_004
# By topic: the numbers of its partitions. Not the partitions, which would be kept long after they were lost.
_Led = Mapping[str, frozenset[int]]
_NOTHING: _Led = {}


class Polled(NamedTuple):
    """With the group's state in the partition: another node may lead that by now. What is leased is told all the same:
    whoever leads knows of the lease, and of nothing else that would become of it before it is over."""

    topic: str
    handed: Handed
    state: Delivery


class ReplyMemory(Protocol):
    """Memory for the reply to one poll. A poll that waits for messages does not hold any."""

    async def reserve(self, size: int) -> None:
        """Wait for so many bytes, in place of those that were reserved before."""

    def charge(self, size: int) -> None:
        """Count bytes that were not reserved."""

    def release(self) -> None: ...


class Polling:
    def __init__(
        self, catalog: Catalog, topics: Topics, groups: Groups, consumers: Consumers, clock: Clock, timers: Timers
    ) -> None:
        self._catalog = catalog
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._clock = clock
        self._timers = timers
        # In a cluster: what was led here of its topics when a consumer looked last.
        self._led: dict[tuple[str, str], _Led] = {}
        # Held by the poll whose turn is next, one of each group, and when that is.
        self._looking = asyncio.Lock()
        self._looking_of: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._next_look = 0.0

    def names(self, topics: Iterable[str]) -> list[str]:
        if isinstance(topics, str) or not isinstance(topics, Iterable):
            raise InvalidInput(f"topics are a list of names, not {topics!r}")
        given = list(topics)
        names = list(dict.fromkeys(given if self._are_open(given) else map(self._checked, given)))
        if not names or len(names) > TOPICS_MAX:
            raise InvalidInput(f"a consumer has 1 to {TOPICS_MAX} topics, not {len(names)}")
        return names

    def _are_open(self, names: list[str]) -> bool:
        """Told without a call for each: every poll names all its topics again."""
        try:
            return all(map(self._topics.open.get, names))
        except TypeError:
            # One of them is nothing that could be looked up, let alone a name.
            return False

    def _checked(self, topic: str) -> str:
        # What is there has a name that could be given.
        return topic if isinstance(topic, str) and topic in self._topics.open else check_name("topic", topic)

    def _found(self, names: list[str]) -> list[Topic]:
        try:
            return list(map(self._topics.open.__getitem__, names))
        except KeyError:
            # Says which.
            return list(map(self._topics.topic, names))

    async def join(
        self, group: str, consumer: str, topics: Iterable[str], session_us: int | None, given: Mapping[str, Any]
    ) -> GroupRecord:
        check_name("consumer", consumer)
        names = self.names(topics)
        if session_us is not None and not (is_int(session_us) and 1 <= session_us <= TIME_MAX_US):
            raise InvalidInput(f"a session is a positive number of microseconds, not {session_us!r}")
        for name in names:
            self._topics.topic(name)
        check_name("group", group)
        with self._consumers.joins.begin(group, consumer) as join:
            record = await self._groups.ensure(group, given)
            for name in names:
                await self._groups.on(group, name).start()
            members = self._consumers.of(group)
            if members is None or not members.has(consumer):
                # Partitions are assigned anew.
                partitions = sum(topic.count for topic in self._found(names))
                await self._turn(group, partitions)
                self._looked(partitions)
            join.check()
            self._consumers.join(group, record.settings, consumer, names, session_us)
        return record

    def leave(self, group: str, consumers: Sequence[str]) -> None:
        for consumer in consumers:
            check_name("consumer", consumer)
            self._consumers.joins.invalidate(group, consumer)
        self._consumers.leave(group, self._catalog.group(group).settings, consumers)

    async def poll(
        self,
        group: str,
        consumer: str,
        topics: Iterable[str],
        *,
        count: int,
        bytes_max: int,
        wait_us: int,
        visibility_us: int | None,
        memory: ReplyMemory | None = None,
    ) -> list[Polled]:
        """The bytes of messages stay reserved in `memory`. The caller releases them, also after an error."""
        if not is_int(wait_us) or not 0 <= wait_us <= WAIT_US_MAX:
            raise InvalidInput(f"wait is 0 to {WAIT_US_MAX} microseconds, not {wait_us!r}")
        names = self.names(topics)
        check_name("group", group)
        check_name("consumer", consumer)
        deadline_us = self._clock.monotonic_us() + wait_us
        while True:
            # What came while it waited is found, however late it was woken.
            is_over = not wait_us or self._clock.monotonic_us() >= deadline_us
            partitions = sum(topic.count for topic in self._found(names))
            await self._turn(group, partitions)
            if memory is not None:
                await memory.reserve(bytes_max)
            asked = self._found(names)
            rung = sum(topic.bell.rings for topic in asked)
            self._check_led(group, consumer, asked)
            polled = await self._lease(group, consumer, names, count, bytes_max, visibility_us)
            if polled:
                return polled
            if memory is not None:
                memory.release()
            self._looked(partitions)
            if is_over:
                return []
            if sum(topic.bell.rings for topic in asked) != rung:
                # While it looked. Others get on meanwhile.
                await asyncio.sleep(0)
            elif not await self._news(group, consumer, asked, deadline_us):
                return []

    async def _turn(self, group: str, partitions: int) -> None:
        if partitions <= _FEW:
            return
        of_group = self._looking_of.setdefault(group, asyncio.Lock())
        async with of_group, self._looking:
            await asyncio.sleep(max(self._next_look - asyncio.get_running_loop().time(), 0))

    def _looked(self, partitions: int) -> None:
        if partitions > _FEW:
            self._next_look = asyncio.get_running_loop().time() + 2 * partitions * _LOOK_S

    async def _news(self, group: str, consumer: str, topics: list[Topic], deadline_us: int) -> bool:
        """There may be something for this member, or its time is over. False if neither will happen by waiting."""
        ring: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        until_us, due_us = deadline_us, TIME_MAX_US
        try:
            for topic in topics:
                leasable = self._consumers.leasable(group, consumer, topic.name)
                mine = dict.fromkeys(topic.here[number] for number in leasable)
                # Of what others have, the bell tells if it moves.
                topic.bell.wait(group, ring, mine)
                for partition in mine:
                    next_us, delay_us = partition.groups.next_due_of(group), partition.groups.delays.next_due()
                    # What is overdue stays in: its time may have come while we were asking.
                    until_us = until_us if next_us is None else min(next_us, until_us)
                    due_us = due_us if delay_us is None else min(delay_us, due_us)
            return await self._timers.wait(ring, until_us, due_us)
        finally:
            for topic in topics:
                topic.bell.leave(group, ring)

    def _check_led(self, group: str, consumer: str, asked: list[Topic]) -> None:
        """In a cluster, whoever waits for messages of partitions that another node leads by now, or asks for them
        again, must go there. Told once."""
        before = self._led.pop((group, consumer), _NOTHING)
        for topic in asked:
            led = before.get(topic.name, topic.led)
            if topic.led is not led and not led <= topic.led:
                raise NotLeader(f"another node leads partitions of {topic.name} that were led here", topic=topic.name)
        if len(self._led) > _LED_MAX:
            self._led.clear()
        if now := {topic.name: topic.led for topic in asked if topic.is_replicated}:
            self._led[group, consumer] = now

    async def _lease(
        self, group: str, consumer: str, names: list[str], count: int, bytes_max: int, visibility_us: int | None
    ) -> list[Polled]:
        topics = self._found(names)
        # Another one first each time, as with partitions: a busy topic does not keep the others waiting for ever.
        turn = self._consumers.next_turn(group, consumer) % len(topics)
        topics = topics[turn:] + topics[:turn]
        polled: list[Polled] = []
        held: list[tuple[Group, list[Leased]]] = []
        failure: PenstockError | None = None
        now, is_asked, seen = self._clock.monotonic_us(), False, 0
        try:
            for topic in topics:
                if seen > _FEW:
                    self._looked(seen)
                    await self._turn(group, seen)
                    seen = 0
                seen += topic.count
                # One is asked in any case: it says what is wrong with the question.
                if (is_asked or topic is not topics[-1]) and topic.has_nothing(group, now):
                    continue
                is_asked, name = True, topic.name
                partitions = self._consumers.leasable(group, consumer, name)
                on_topic = self._groups.on(group, name)
                try:
                    leased = await on_topic.leased(
                        consumer, count, bytes_max, visibility_us=visibility_us, partitions=partitions
                    )
                except (StorageError, Overloaded, ClusterError) as error:
                    # The others can still give something; and what is leased already must be returned to the caller.
                    failure = error
                    continue
                held.append((on_topic, leased))
                for groups, some in leased:
                    polled.append(Polled(name, some, groups.state(group)))
                    count -= len(some.receipt.offsets)
                    bytes_max -= sum(len(frame.data) for frame in some.frames)
                if count <= 0 or bytes_max <= 0:
                    break
        except BaseException:
            # The caller was cancelled, or a later topic or the group was deleted: the messages of earlier topics are
            # ready for the next poll.
            for on_topic, leased in held:
                on_topic.give_back(leased)
            raise
        if failure is not None and not polled:
            raise failure
        return polled
