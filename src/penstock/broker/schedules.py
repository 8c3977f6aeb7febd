"""Messages that come again and again, as cron would have it.

A thin layer on delayed messages: of each schedule one occurrence is published ahead, to be delivered when it is due;
once that is so, the next one is. Occurrences that a stopped broker missed are not made up for, except the one that was
published already, which comes late.

Each occurrence carries its number in a header, and the catalog has how many were published: after a start, or when
another node has led the partition, and after a failure, the topic is searched before the next one is published. There
may be one that the catalog has not heard of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Concatenate, ParamSpec
from weakref import WeakValueDictionary

import msgspec

from penstock.broker.catalog import Catalog, ScheduleRecord
from penstock.broker.cron import Cron
from penstock.broker.ids import MessageId
from penstock.broker.names import check_name, check_publishable
from penstock.broker.partition import Partition
from penstock.broker.topic import Topic
from penstock.broker.work import Work, to_its_end
from penstock.clock import Clock
from penstock.errors import Fatal, InvalidInput, MessageNotFound, NotFound, NotScheduled, PenstockError, TopicNotFound
from penstock.frame import check_message
from penstock.limits import Limits, check_count
from penstock.message import Message

P = ParamSpec("P")
HEADER = "penstock-schedule"
_NOWHERE = 1 << 63


class Schedules:
    def __init__(
        self, topic: Callable[[str], Topic], catalog: Catalog, work: Work, clock: Clock, limits: Limits
    ) -> None:
        self._topic = topic
        self._catalog = catalog
        self._work = work
        self._clock = clock
        self._limits = limits
        # For each schedule one thing at a time: whoever deletes it must not be overtaken by its next occurrence.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        # By producer: from where on the next occurrence may be in the topic, if more is known than the record says.
        self._since: dict[int, int] = {}
        # Held for one change of the catalog: others who change it wait for one schedule at the most.
        self._saving = asyncio.Lock()
        # Why the next occurrence could not be published; tried again at every tick.
        self.failures: dict[str, PenstockError] = {}

    async def _save(self, change: Callable[Concatenate[Catalog, P], None], *given: P.args, **named: P.kwargs) -> None:
        """A change of the catalog and of nothing else."""
        async with self._saving:
            await self._work.alone(self._catalog.carry_out(self._work.on_a_thread, change, *given, **named))

    @property
    def count(self) -> int:
        return self._catalog.schedule_count

    def list(self) -> list[ScheduleRecord]:
        return self._catalog.schedules

    def get(self, name: str) -> ScheduleRecord:
        check_name("schedule", name)
        record = self._catalog.schedule(name)
        if record is not None:
            return record
        raise NotFound(f'schedule "{name}" does not exist. List them: penstock schedule list', schedule=name)

    async def create(
        self, name: str, topic: str, cron: str, message: Message, *, timezone: str, producer: int, owner: str = ""
    ) -> ScheduleRecord:
        check_name("schedule", name)
        if not isinstance(producer, int) or isinstance(producer, bool) or not 0 < producer < 1 << 63:
            raise InvalidInput(f"a producer is a number of 63 bits, not {producer!r}")
        self._check(topic, message, producer)
        count = self._catalog.schedule_count
        check_count("schedules_max", count, self._limits, "schedules", "penstock schedule delete NAME")
        parsed = Cron.parse(cron, timezone)
        now = self._clock.now_us()
        due = parsed.next_after(now)
        if due is None:
            raise InvalidInput(f"{cron!r} never comes")
        on_topic = self._topic(topic)
        on_topic.check_delay(due)
        # Its first occurrence is published right away.
        on_topic.room.check()
        number = 0 if message.key is None else on_topic.choose(message.key)
        since = on_topic.partition(number).messages.safe_offset
        record = ScheduleRecord(name, topic, parsed.text, timezone, message, now, producer, number, since, owner=owner)

        async def added() -> ScheduleRecord:
            async with self._alone(name):
                await self._save(Catalog.put_schedule, record)
                # The schedule exists now. If its first occurrence can't be published, a tick tries again: an error
                # would make the caller repeat the request, and the repetition would fail with AlreadyExists.
                await self._try(record)
                return self.get(name)

        # To its end, also if whoever asked gives up waiting: nobody finds a message that is still on its way.
        return await to_its_end(added())

    def _alone(self, name: str) -> asyncio.Lock:
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        return lock

    def _check(self, topic: str, message: Message, producer: int) -> None:
        self._topic(topic)
        check_publishable(topic)
        if not isinstance(message, Message):
            raise InvalidInput(f"not a Message but {type(message).__name__}")
        message.check()
        check_message(_numbered(message, producer, 1 << 62), self._limits)
        if message.deliver_at or message.expires_at:
            raise InvalidInput("a schedule says when its messages come; they have no times of their own")

    async def delete(self, name: str) -> None:
        """Cancel the occurrence that was published ahead, then delete the schedule.

        In this order a repetition finishes what a failure cut short. In a cluster only the leader of the schedule's
        partition can do it; any other node changes nothing and raises NotLeader.
        """

        async def deleted() -> None:
            async with self._alone(name):
                record = self.get(name)
                await self._cancel_pending(record)
                await self._save(Catalog.delete_schedule, record)
                self.failures.pop(name, None)
                self._since.pop(record.producer, None)

        check_name("schedule", name)
        # To its end, as `create`: otherwise an occurrence would be missing of a schedule that goes on.
        await to_its_end(deleted())

    async def _cancel_pending(self, record: ScheduleRecord) -> None:
        try:
            partition = self._topic(record.topic).partition(record.partition)
        except TopicNotFound:
            return
        # The catalog may not have heard of the last one.
        found = self._found(record, partition)
        offsets = [] if found is None else [found[0]]
        if record.pending:
            offsets.append(MessageId.parse(record.pending).offset)
        for offset in offsets:
            if self._is_occurrence(record, partition, offset):
                await self._cancel(partition, offset)

    async def _cancel(self, partition: Partition, offset: int) -> None:
        # If it is not scheduled any more, it was due, or is cancelled already.
        with suppress(NotScheduled):
            await partition.groups.cancel(offset)

    def _is_occurrence(self, record: ScheduleRecord, partition: Partition, offset: int) -> bool:
        """After an unclean election another message may have the offset."""
        try:
            headers = partition.reading.message(offset).message.headers
        except MessageNotFound:
            return False
        return any(name == HEADER and value.startswith(b"%x/" % record.producer) for name, value in headers)

    def next_due(self) -> int | None:
        return min((record.due_us for record in self._catalog.schedules), default=None)

    async def tick(self) -> None:
        """Of a schedule that somebody is at nothing is done: its partition may be long in committing, and the others do
        not wait for that. So the next tick may come before this one is over."""
        now, records = self._clock.now_us(), self._catalog.schedules
        self._forget_deleted(records)
        due = [record.name for record in records if record.due_us <= now]
        await asyncio.gather(*[self._tick(name) for name in due if not self._alone(name).locked()])

    def _forget_deleted(self, records: Sequence[ScheduleRecord]) -> None:
        """A schedule is deleted with its topic, and in a cluster by any node."""
        names, producers = {record.name for record in records}, {record.producer for record in records}
        for name in self.failures.keys() - names:
            del self.failures[name]
        for producer in self._since.keys() - producers:
            del self._since[producer]

    async def _tick(self, name: str) -> None:
        async with self._alone(name):
            record = self._catalog.schedule(name)
            # In a cluster it is for the node that leads the partition which it publishes to.
            if record is not None and record.due_us <= self._clock.now_us() and self._is_here(record):
                await self._try(record)

    def doubt(self, topic: Topic, number: int) -> None:
        """Somebody else may have published there, and not have come to say so: it is searched again."""
        for record in self._catalog.schedules:
            if (record.topic, record.partition) == (topic.name, number):
                self._since.pop(record.producer, None)

    def _is_here(self, record: ScheduleRecord) -> bool:
        try:
            return record.partition in self._topic(record.topic).here
        except NotFound:
            # To be told as a failure.
            return True

    async def _try(self, record: ScheduleRecord) -> None:
        try:
            await self._publish_next(record)
        except Fatal:
            raise
        except PenstockError as error:
            # The others go on; this one is tried again, and tells why it can't.
            self.failures[record.name] = error

    async def _publish_next(self, record: ScheduleRecord) -> None:
        """Until the one that is pending has its time to come: a start may find one whose time has passed. If that has
        come again meanwhile, the next tick goes on."""
        cron = Cron.parse(record.cron, record.timezone)
        for _ in range(2):
            if record.due_us > self._clock.now_us():
                return
            topic = self._topic(record.topic)
            partition = topic.partition(record.partition)
            since = partition.messages.safe_offset
            found = self._found(record, partition)
            self._since[record.producer] = _NOWHERE
            try:
                if found is None:
                    now = self._clock.now_us()
                    due = cron.next_after(max(now, record.due_us))
                    if due is None:
                        return
                    message = _numbered(record.message, record.producer, record.published)
                    message = msgspec.structs.replace(message, timestamp=now, deliver_at=due)
                    found = ((await topic.publish(message, record.partition)).offset, due)
                    await partition.synced()
                offset, due = found
                changed = msgspec.structs.replace(
                    record,
                    since=offset + 1,
                    published=record.published + 1,
                    due_us=due,
                    pending=str(MessageId(record.topic, record.partition, offset)),
                )
                try:
                    await self._save(Catalog.put_schedule, changed, record)
                except NotFound:
                    # Deleted by the previous leader, which did not know of this occurrence.
                    await self._cancel(partition, offset)
                    raise
            except BaseException:
                # What was published and what was not, only the topic knows now.
                self._since[record.producer] = since if found is None else found[0]
                raise
            self.failures.pop(record.name, None)
            record = changed

    def _found(self, record: ScheduleRecord, partition: Partition) -> tuple[int, int] | None:
        """The next occurrence, if it was published and not written down: its offset, and when it is due."""
        since = max(record.since, self._since.get(record.producer, 0))
        if since >= _NOWHERE:
            return None
        number = _number(record.producer, record.published)
        for offsets, batch in partition.reading.special_batches(since):
            for offset, message in zip(offsets.tolist(), batch.messages(), strict=True):
                if offset >= since and (HEADER, number) in message.headers:
                    return offset, message.deliver_at
        return None


def _numbered(message: Message, producer: int, number: int) -> Message:
    return msgspec.structs.replace(message, headers=(*message.headers, (HEADER, _number(producer, number))))


def _number(producer: int, number: int) -> bytes:
    return b"%x/%d" % (producer, number)
