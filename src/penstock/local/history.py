"""Requests about single messages: what happened to them, what is to happen, and those that were given up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from heapq import nsmallest
from itertools import islice

import msgspec

from penstock.broker import dead_letters, scheduled
from penstock.broker.catalog import ScheduleRecord
from penstock.broker.ids import MessageId
from penstock.broker.names import DEAD_LETTERS
from penstock.client.requests import (
    AskWhy,
    CancelScheduled,
    CreateSchedule,
    DeadLetter,
    DeleteSchedule,
    Discard,
    Failure,
    FindDeliveries,
    Found,
    GetDeadLetter,
    GetMessage,
    GetScheduled,
    GetStateAt,
    GetTrace,
    Happenings,
    ListDeadLetters,
    ListScheduled,
    ListSchedules,
    ReadDeliveries,
    Redrive,
    Redriven,
    Reschedule,
    Schedule,
    Scheduled,
    StateAt,
    Step,
    Trace,
    Where,
    Why,
)
from penstock.decoding import convert
from penstock.errors import MessageNotFound, NotScheduled
from penstock.limits import MIB
from penstock.local.handlers import Site, handles
from penstock.local.wanted import wanted

_SETTLING_S_MAX = 1.0


@contextmanager
def _by_id(identity: MessageId) -> Iterator[None]:
    """A partition knows offsets; whoever asked knows ids."""
    try:
        yield
    except NotScheduled as error:
        raise NotScheduled(f"{identity} is not waiting for its time", id=str(identity)) from error
    except MessageNotFound as error:
        raise MessageNotFound(f"there is no message {identity}: not yet, or no longer", id=str(identity)) from error


# --- delayed and recurring ----------------------------------------------------------------------------------


@handles(ListScheduled)
async def list_scheduled(site: Site, request: ListScheduled) -> list[Scheduled]:
    topic = site.broker.topic(request.topic)
    numbers = [number for number, _ in wanted(topic, request.partitions)]

    def next_ones() -> list[scheduled.Scheduled]:
        meant = (one for one in scheduled.scheduled(topic) if one.id.partition in numbers)
        return nsmallest(request.limit, meant, key=lambda one: one.deliver_at)

    found = await site.on_a_thread(next_ones)
    # One that was lost meanwhile may have been passed over.
    wanted(topic, request.partitions)
    return [_scheduled(one) for one in found]


@handles(GetScheduled)
async def get_scheduled(site: Site, request: GetScheduled) -> Scheduled:
    identity = MessageId.parse(request.id)
    with _by_id(identity):
        return _scheduled(scheduled.get(site.broker.topic(identity.topic), identity))


@handles(CancelScheduled, awaits_replicas=True)
async def cancel_scheduled(site: Site, request: CancelScheduled) -> None:
    identity = MessageId.parse(request.id)
    with _by_id(identity):
        await scheduled.cancel(site.broker.topic(identity.topic), identity)


@handles(Reschedule, awaits_replicas=True)
async def reschedule(site: Site, request: Reschedule) -> None:
    identity = MessageId.parse(request.id)
    with _by_id(identity):
        await scheduled.reschedule(site.broker.topic(identity.topic), identity, request.deliver_at, site.clock)


@handles(CreateSchedule, awaits_replicas=True)
async def create_schedule(site: Site, request: CreateSchedule) -> Schedule:
    producer = int.from_bytes(site.new_id()[:8], "big") >> 1 or 1
    return _schedule(
        await site.broker.schedules.create(
            request.name,
            request.topic,
            request.cron,
            request.message,
            timezone=request.timezone,
            producer=producer,
        )
    )


@handles(ListSchedules)
async def list_schedules(site: Site, request: ListSchedules) -> list[Schedule]:
    return [_schedule(record) for record in site.broker.schedules.list()]


@handles(DeleteSchedule, awaits_replicas=True)
async def delete_schedule(site: Site, request: DeleteSchedule) -> None:
    await site.broker.schedules.delete(request.name)


def _scheduled(one: scheduled.Scheduled) -> Scheduled:
    return Scheduled(str(one.id), one.deliver_at, one.message)


def _schedule(record: ScheduleRecord) -> Schedule:
    return convert(record, Schedule, from_attributes=True)


# --- dead letters -------------------------------------------------------------------------------------------


@handles(ListDeadLetters)
async def list_dead_letters(site: Site, request: ListDeadLetters) -> list[DeadLetter]:
    await _settled(site)
    _check_graves(site, request)
    letters = site.broker.dead_letters.letters(request.topic, _where(request.where), with_settled=request.with_settled)
    if request.partitions is not None:
        numbers = request.partitions
        letters = (letter for letter in letters if letter.id.partition in numbers)
    found = await site.on_a_thread(lambda: list(islice(letters, request.limit)))
    _check_graves(site, request)
    return [_letter(letter) for letter in found]


@handles(GetDeadLetter)
async def get_dead_letter(site: Site, request: GetDeadLetter) -> DeadLetter:
    return _letter(site.broker.dead_letters.letter(MessageId.parse(request.id)))


@handles(Redrive)
async def redrive(site: Site, request: Redrive) -> Redriven:
    _check_graves(site, request)
    if not request.dry_run:
        _check_replicas(site, request.topic)
    await _settled(site)
    done = await site.broker.dead_letters.redrive(
        request.topic, _where(request.where), dry_run=request.dry_run, rate=request.rate
    )
    return Redriven(*(tuple(str(identity) for identity in identities) for identities in done))


@handles(Discard)
async def discard(site: Site, request: Discard) -> int:
    _check_graves(site, request)
    _check_replicas(site, request.topic)
    await _settled(site)
    return await site.broker.dead_letters.discard(request.topic, _where(request.where))


async def _settled(site: Site) -> None:
    """Those that are just being written are dead letters, too; but what waits for other nodes may do so for long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(None if site.cluster is None else _SETTLING_S_MAX):
            await site.broker.settle()


def _check_graves(site: Site, request: ListDeadLetters | Redrive | Discard) -> None:
    """Letters of further partitions, which came here meanwhile, are dealt with as well: they are meant, too."""
    if request.partitions:
        wanted(site.broker.topic(request.topic + DEAD_LETTERS), request.partitions)


def _check_replicas(site: Site, topic: str) -> None:
    """It goes on until it is done, whoever waits. So it is not begun where it would stand still at once."""
    if site.cluster is None:
        return
    source = site.broker.topic(topic)
    graves = site.broker.replicated.get(source.name + DEAD_LETTERS)
    for each in (source,) if graves is None else (source, graves):
        for number, partition in each.numbered:
            each.check_in_sync(number, partition, "no dead letter is touched. Try again when more nodes are up")


def _where(where: Where) -> dead_letters.Where:
    return dead_letters.Where(**msgspec.structs.asdict(where))


def _letter(letter: dead_letters.DeadLetter) -> DeadLetter:
    obituary = letter.obituary
    return DeadLetter(
        id=str(letter.id),
        original=str(MessageId(obituary.topic, obituary.partition, obituary.offset)),
        group=obituary.group,
        reason=obituary.reason,
        attempts=obituary.attempts,
        failures=tuple(Failure(*failure) for failure in obituary.failures),
        round=obituary.round,
        published_us=obituary.published_us,
        died_us=letter.died_us,
        is_settled=letter.is_settled,
        message=letter.message,
    )


# --- what happened ------------------------------------------------------------------------------------------


@handles(GetMessage)
async def get_message(site: Site, request: GetMessage) -> Found:
    identity = MessageId.parse(request.id)
    reading = site.broker.topic(identity.topic).partition(identity.partition).reading
    with _by_id(identity):
        stored = await site.on_a_thread(lambda: reading.message(identity.offset))
    return Found(stored.append_time, stored.message)


@handles(GetTrace)
async def get_trace(site: Site, request: GetTrace) -> Trace:
    identity = MessageId.parse(request.id)
    with _by_id(identity):
        trace = await site.broker.trace(identity)
    steps = tuple(convert(step, Step, from_attributes=True) for step in trace.steps)
    return Trace(str(trace.id), steps)


@handles(FindDeliveries)
async def find_deliveries(site: Site, request: FindDeliveries) -> list[tuple[int, int]]:
    partitions = wanted(site.broker.topic(request.topic), request.partitions)
    return [await site.broker.chronicle.ends(partition) for _, partition in partitions]


@handles(ReadDeliveries)
async def read_deliveries(site: Site, request: ReadDeliveries) -> Happenings:
    partition = site.broker.topic(request.topic).partition(request.partition)
    bytes_max = min(max(request.bytes_max, 1), MIB)
    columns, next_offset = await site.broker.chronicle.read(partition, request.offset, request.until, bytes_max)
    return Happenings(next_offset, *columns)


@handles(AskWhy)
async def ask_why(site: Site, request: AskWhy) -> Why:
    why = await site.broker.why(MessageId.parse(request.id), request.group)
    return Why(why.code, why.answer)


@handles(GetStateAt)
async def get_state_at(site: Site, request: GetStateAt) -> list[StateAt]:
    topic = site.broker.topic(request.topic)
    numbers = [number for number, _ in wanted(topic, request.partitions)]
    states = await site.broker.state_at(request.group, request.topic, request.time_us)
    wanted(topic, request.partitions)
    return [StateAt(*state) for state in states if state.partition in numbers]
