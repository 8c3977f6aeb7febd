"""Messages that come later: those that were published with a delay, and those that come again and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from penstock.client.pages import listed
from penstock.client.requests import (
    PAGE_MAX,
    CancelScheduled,
    CreateSchedule,
    DeleteSchedule,
    GetScheduled,
    ListScheduled,
    ListSchedules,
    Reschedule,
    Schedule,
    Scheduled,
)
from penstock.client.transport import Transport
from penstock.client.words import (
    LIMIT_DEFAULT,
    Bytes,
    Duration,
    MessageFields,
    Time,
    duration_of,
    limit_of,
    message_of,
    time_of,
)
from penstock.errors import InvalidInput


class ScheduledMessages:
    """`client.scheduled`: delayed messages that are not due yet, by their ids."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self, topic: str, limit: int = LIMIT_DEFAULT) -> Sequence[Scheduled]:
        """The next one due first."""
        return await listed(self._transport, ListScheduled(topic, PAGE_MAX), limit_of(limit))

    async def get(self, id: str) -> Scheduled:
        """NotScheduled if it is due already, or never had a delay."""
        return await self._transport.call(GetScheduled(id))

    async def cancel(self, id: str) -> None:
        """It never appears to any group. Readers of the log still see it."""
        await self._transport.call(CancelScheduled(id))

    async def reschedule(self, id: str, *, deliver_at: Time | None = None, delay: Duration | None = None) -> None:
        """To another time, or so long from now on. A time that has come means at once."""
        if (deliver_at is None) == (delay is None):
            raise InvalidInput("a message is moved to a deliver_at, or by a delay")
        if deliver_at is not None:
            due_us = time_of("deliver_at", deliver_at)
        else:
            assert delay is not None
            due_us = self._transport.now_us() + duration_of("delay", delay)
        await self._transport.call(Reschedule(id, due_us))

    async def deliver_now(self, id: str) -> None:
        """Without waiting for its time."""
        await self._transport.call(Reschedule(id, self._transport.now_us()))


class Schedules:
    """`client.schedules`: messages that come again and again, by the names of their schedules."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(
        self,
        name: str,
        topic: str,
        cron: str,
        value: Bytes | None,
        *,
        timezone: str = "UTC",
        **fields: Unpack[MessageFields],
    ) -> Schedule:
        """`cron` has five fields ("*/5 9-17 * * mon-fri"), is "@hourly" or the like, or "every 90s".

        The message may have a key, headers and a priority.
        """
        message = message_of(value, self._transport.now_us(), fields)
        return await self._transport.call(CreateSchedule(name, topic, cron, timezone, message))

    async def list(self) -> Sequence[Schedule]:
        """All there are, by name."""
        return await listed(self._transport, ListSchedules())

    async def delete(self, name: str) -> None:
        """With the message that was to come next."""
        await self._transport.call(DeleteSchedule(name))
