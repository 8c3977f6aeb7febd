"""Delayed messages that are cancelled and moved, and schedules."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial

from penstock.broker.schedules import HEADER
from penstock.client.consumer import Consumer
from penstock.client.received import Received
from penstock.errors import AlreadyExists, NotFound, NotScheduled, PenstockError
from simulation.world.operations.context import GROUP, Context, Place, Tap, place_of

_NEVER_US = 1 << 62
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _time(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)


async def reschedule(context: Context) -> None:
    """A cancelled message is never delivered; one that was moved comes at its new time, not earlier."""
    topic, group, rng = "reschedule", "patient", context.rng
    await context.create_topic(topic, 2)
    # The earliest that is possible.
    due: dict[Place, int] = {}
    cancelled: set[Place] = set()

    def check(message: Received, began_us: int) -> None:
        place = place_of(message)
        if place in cancelled:
            context.wrong("cancelled, and delivered", message.id)
        if context.has_true_dates and context.now_us() < due[place]:
            context.wrong("delivered early", f"{message.id}, {(due[place] - context.now_us()) / 1e6:.3f} s")

    tap = Tap(context, group, topic, check)

    async def cancel(place: Place) -> bool:
        await context.client.scheduled.cancel(":".join(map(str, place)))
        return True

    async def move(place: Place, due_us: int) -> bool:
        await context.client.scheduled.reschedule(":".join(map(str, place)), deliver_at=_time(due_us))
        return True

    async with context.producer(topic) as producer:
        while not context.is_over:
            for _ in range(rng.randint(1, 5)):
                value, due_us = context.new_value(), context.now_us() + rng.randrange(500_000, 6_000_000)
                place = tap.owe(await context.send(producer, value, deliver_at=_time(due_us)), value)
                due[place] = due_us
                dice = rng.random()
                try:
                    if dice < 0.3:
                        if await context.surely("cancel", partial(cancel, place), done=NotScheduled):
                            cancelled.add(place)
                            del tap.owed[place]
                        else:
                            tap.doubt(place)
                    elif dice < 0.7:
                        due_us = context.now_us() + rng.randrange(0, 6_000_000)
                        earlier_us, due[place] = due[place], min(due_us, due[place])
                        if await context.surely("move", partial(move, place, due_us), done=NotScheduled):
                            due[place] = due_us
                except NotScheduled:
                    if dice >= 0.3:
                        due[place] = earlier_us
            await tap.settle()
    await tap.close()


async def recur(context: Context) -> None:
    """Each occurrence of a schedule is published once and delivered, until the schedule is deleted."""
    topic, group, rng = "recur", "regular", context.rng
    schedules = context.client.schedules
    await context.create_topic(topic, 2)
    consumer = context.client.consumer(group, topic, **GROUP)
    delivered: set[bytes] = set()
    # By name.
    deleted_us: dict[str, int] = {}
    number = 0
    while not context.is_over:
        number += 1
        name = f"schedule-{number}"
        ask = partial(schedules.create, name, topic, rng.choice(("every 1s", "every 2s")), name, key=name)
        await context.surely("create a schedule", ask, done=AlreadyExists)
        until_us = context.now_us() + rng.randrange(1_000_000, 15_000_000)
        while context.now_us() < until_us:
            await _take(context, consumer, delivered, deleted_us)
        await context.surely("delete a schedule", partial(schedules.delete, name), done=NotFound)
        deleted_us[name] = context.now_us()
    if left := await context.surely("list schedules", schedules.list):
        context.wrong("a schedule that was deleted", f"{left}")

    async def is_drained() -> bool:
        await _take(context, consumer, delivered, deleted_us)
        return not any((await context.client.lag(group)).get(topic, [1]))

    await context.until("drain", is_drained)
    await _check_occurrences(context, topic, delivered)


async def _take(context: Context, consumer: Consumer, delivered: set[bytes], deleted_us: dict[str, int]) -> None:
    try:
        for message in await consumer.poll(20, "300ms"):
            delivered |= {value for name, value in message.headers if name == HEADER}
            context.note(f"got {message.id} {message.headers}")
            late_us = message.message.deliver_at - deleted_us.get((message.value or b"").decode(), _NEVER_US)
            if context.has_true_dates and late_us > 0:
                context.wrong("an occurrence of a schedule that was deleted", f"{message.id}, {late_us / 1e6:.3f} s")
            await message.ack()
            context.counts["ack"] += 1
    except PenstockError as error:
        context.note(f"{error.code}: {error.message}")


async def _check_occurrences(context: Context, topic: str, delivered: set[bytes]) -> None:
    found: list[bytes] = []
    async for message in context.client.reader(topic):
        found += [value for name, value in message.headers if name == HEADER]
    for occurrence, count in Counter(found).items():
        if count > 1:
            context.wrong("an occurrence was published twice", f"{occurrence!r}, {count} times")
    by_producer: dict[bytes, list[int]] = {}
    for occurrence in found:
        producer, _, number = occurrence.partition(b"/")
        by_producer.setdefault(producer, []).append(int(number))
    for producer, numbers in by_producer.items():
        if sorted(numbers) != list(range(len(numbers))):
            context.wrong("an occurrence is missing in the log", f"{numbers} of {producer!r}")
        # The last one was cancelled, unless it was due just then.
        missing = [number for number in numbers[:-1] if b"%s/%d" % (producer, number) not in delivered]
        if missing:
            context.wrong("an occurrence was never delivered", f"{missing} of {numbers} of {producer!r}")


OPERATIONS = reschedule, recur
