"""Messages that come again and again, as cron would have it.

A thin layer on delayed messages: of each schedule one occurrence is published ahead, to be delivered when it is due;
once that is so, the next one is. Occurrences that a stopped broker missed are not made up for, except the one that was
published already, which comes late.

Each occurrence is published as an idempotent producer would, with its number in the catalog: a crash between the two
finds it again instead of publishing it twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from penstock.broker.catalog import Catalog, ScheduleRecord
from penstock.broker.cron import Cron
from penstock.broker.ids import MessageId
from penstock.broker.names import check_name
from penstock.broker.topic import Topic
from penstock.clock import Clock
from penstock.errors import AlreadyExists, Fatal, InvalidInput, NotFound, PenstockError
from penstock.frame import Frame, Producer, check_message
from penstock.limits import Limits
from penstock.message import Message

Save = Callable[[Callable[[], None]], Awaitable[None]]


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
        self._busy: set[str] = set()
        # Why the next occurrence could not be published; tried again at every tick.
        self.failures: dict[str, PenstockError] = {}

    def list(self) -> list[ScheduleRecord]:
        return self._catalog.schedules

    def get(self, name: str) -> ScheduleRecord:
        for record in self._catalog.schedules:
            if record.name == name:
                return record
        raise NotFound(f"there is no schedule {name}", schedule=name)

    async def create(
        self, name: str, topic: str, cron: str, message: Message, *, timezone: str, producer: int
    ) -> ScheduleRecord:
        check_name("schedule", name)
        self._check(topic, message)
        parsed = Cron.parse(cron, timezone)
        now = self._clock.now_us()
        due = parsed.next_after(now)
        if due is None:
            raise InvalidInput(f"{cron!r} never comes")
        self._topic(topic).check_times(due, due)
        if not isinstance(producer, int) or not 0 < producer < 1 << 63:
            raise InvalidInput(f"a producer is a number of 63 bits, not {producer!r}")
        record = ScheduleRecord(name, topic, parsed.text, timezone, message, now, producer)

        def add() -> None:
            if any(other.name == name for other in self._catalog.schedules):
                raise AlreadyExists(f"there is a schedule {name} already", schedule=name)
            self._catalog.put_schedule(record)

        await self._save(add)
        await self._publish_next(record)
        return self.get(name)

    def _check(self, topic: str, message: Message) -> None:
        self._topic(topic)
        if not isinstance(message, Message):
            raise InvalidInput(f"not a Message but {type(message).__name__}")
        check_message(message, self._limits)
        if message.deliver_at or message.expires_at:
            raise InvalidInput("a schedule says when its messages come; they have no times of their own")

    async def delete(self, name: str) -> None:
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
        for record in self._catalog.schedules:
            if record.due_us <= self._clock.now_us() and record.name not in self._busy:
                try:
                    await self._publish_next(record)
                except Fatal:
                    raise
                except PenstockError as error:
                    # The others go on; this one is tried again, and tells why it can't.
                    self.failures[record.name] = error

    async def _publish_next(self, record: ScheduleRecord) -> None:
        self._busy.add(record.name)
        try:
            now = self._clock.now_us()
            due = Cron.parse(record.cron, record.timezone).next_after(max(now, record.due_us))
            if due is None:
                return
            topic = self._topic(record.topic)
            message = msgspec.structs.replace(record.message, timestamp=now, deliver_at=due)
            producer = Producer(record.producer, 0, record.published)
            frame = Frame.of_message(message, now_us=now, producer=producer, limits=self._limits)
            number = topic.choose(message.key) if message.key is not None else 0
            published = await topic.publish_frame(frame, number)
            # If a crash came in between the last time, this is the one from before it, with its own time.
            stored = topic.partition(number).reading.message(published.offset)
            changed = msgspec.structs.replace(
                record, published=record.published + 1, due_us=stored.message.deliver_at, pending=published.id
            )
            self.failures.pop(record.name, None)
            if not await self._put(record, changed):
                # Deleted while this was under way.
                await self._cancel(MessageId.parse(published.id))
        finally:
            self._busy.discard(record.name)

    async def _put(self, old: ScheduleRecord, new: ScheduleRecord) -> bool:
        """Whether it was still the one it was made from."""
        is_there = False

        def change() -> None:
            nonlocal is_there
            is_there = old in self._catalog.schedules
            if is_there:
                self._catalog.put_schedule(new)

        await self._save(change)
        return is_there
