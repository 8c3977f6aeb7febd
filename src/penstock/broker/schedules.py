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
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from weakref import WeakValueDictionary

import msgspec

from penstock.broker.catalog import Catalog, ScheduleRecord
from penstock.broker.cron import Cron
from penstock.broker.ids import MessageId
from penstock.broker.names import check_name
from penstock.broker.partition import Partition
from penstock.broker.topic import Topic
from penstock.clock import Clock
from penstock.errors import AlreadyExists, Fatal, InvalidInput, NotFound, PenstockError
from penstock.frame import check_message
from penstock.limits import Limits
from penstock.message import Message

Save = Callable[[Callable[[], None]], Awaitable[None]]
HEADER = "penstock-schedule"
_NOWHERE = 1 << 63


class Schedules:
    def __init__(
        self, topic: Callable[[str], Topic], catalog: Catalog, save: Save, clock: Clock, limits: Limits
    ) -> None:
        """`save` runs a change of the catalog, one at a time."""
        self._topic = topic
        self._catalog = catalog
        self._save = save
        self._clock = clock
        self._limits = limits
        # For each schedule one thing at a time: whoever deletes it must not be overtaken by its next occurrence.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        # By producer: from where on the next occurrence may be in the topic, if more is known than the record says.
        self._since: dict[int, int] = {}
        # Why the next occurrence could not be published; tried again at every tick.
        self.failures: dict[str, PenstockError] = {}

    def list(self) -> list[ScheduleRecord]:
        return self._catalog.schedules

    def get(self, name: str) -> ScheduleRecord:
        check_name("schedule", name)
        for record in self._catalog.schedules:
            if record.name == name:
                return record
        raise NotFound(f"there is no schedule {name}", schedule=name)

    async def create(
        self, name: str, topic: str, cron: str, message: Message, *, timezone: str, producer: int
    ) -> ScheduleRecord:
        check_name("schedule", name)
        if not isinstance(producer, int) or isinstance(producer, bool) or not 0 < producer < 1 << 63:
            raise InvalidInput(f"a producer is a number of 63 bits, not {producer!r}")
        self._check(topic, message, producer)
        parsed = Cron.parse(cron, timezone)
        now = self._clock.now_us()
        due = parsed.next_after(now)
        if due is None:
            raise InvalidInput(f"{cron!r} never comes")
        on_topic = self._topic(topic)
        on_topic.check_times(due, due)
        # Its first occurrence is published right away.
        on_topic.room.check()
        number = 0 if message.key is None else on_topic.choose(message.key)
        since = on_topic.partition(number).messages.safe_offset
        record = ScheduleRecord(name, topic, parsed.text, timezone, message, now, producer, number, since)

        def add() -> None:
            if any(other.name == name for other in self._catalog.schedules):
                raise AlreadyExists(f"there is a schedule {name} already", schedule=name)
            self._catalog.put_schedule(record)

        async def added() -> None:
            async with self._alone(name):
                await self._save(add)
                await self._publish_next(record)

        # To its end, also if whoever asked gives up waiting: nobody finds a message that is still on its way.
        await asyncio.shield(asyncio.get_running_loop().create_task(added()))
        return self.get(name)

    def _alone(self, name: str) -> asyncio.Lock:
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        return lock

    def _check(self, topic: str, message: Message, producer: int) -> None:
        self._topic(topic)
        if not isinstance(message, Message):
            raise InvalidInput(f"not a Message but {type(message).__name__}")
        message.check()
        check_message(_numbered(message, producer, 1 << 62), self._limits)
        if message.deliver_at or message.expires_at:
            raise InvalidInput("a schedule says when its messages come; they have no times of their own")

    async def delete(self, name: str) -> None:
        """With the occurrence that was published ahead."""
        async with self._alone(check_name("schedule", name)):
            record = self.get(name)
            await self._save(lambda: self._catalog.delete_schedule(name))
            self.failures.pop(name, None)
            if record.pending:
                await self._cancel(MessageId.parse(record.pending))

    async def _cancel(self, identity: MessageId) -> None:
        with suppress(NotFound):
            await self._topic(identity.topic).partition(identity.partition).groups.cancel(identity.offset)

    def next_due(self) -> int | None:
        return min((record.due_us for record in self._catalog.schedules), default=None)

    async def tick(self) -> None:
        """Of a schedule that somebody is at nothing is done: its partition may be long in committing, and the others do
        not wait for that. So the next tick may come before this one is over."""
        now = self._clock.now_us()
        due = [record.name for record in self._catalog.schedules if record.due_us <= now]
        await asyncio.gather(*[self._tick(name) for name in due if not self._alone(name).locked()])

    async def _tick(self, name: str) -> None:
        async with self._alone(name):
            for record in self._catalog.schedules:
                is_due = record.name == name and record.due_us <= self._clock.now_us()
                # In a cluster it is for the node that leads the partition which it publishes to.
                if is_due and self._is_here(record):
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
        """Until the one that is pending has its time to come: a start may find one whose time has passed."""
        cron = Cron.parse(record.cron, record.timezone)
        while record.due_us <= self._clock.now_us():
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
                await self._save(partial(self._catalog.put_schedule, changed))
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
