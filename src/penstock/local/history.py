"""Requests about single messages: what happened to them, what is to happen, and those that were given up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

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
    Listed,
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
from penstock.local.paging import (
    BYTES_MAX,
    ROWS_MAX,
    UNPAGED_BYTES_MAX,
    check_limit,
    check_unpaged,
    check_unpaged_bytes,
    named_page,
    page_of,
    place_in,
    place_text,
    smallest,
    time_in,
    unpaged_limit,
)
from penstock.local.wanted import wanted

_SETTLING_S_MAX = 1.0


@contextmanager
def _by_id(identity: MessageId) -> Iterator[None]:
    """A partition knows offsets; whoever asked knows ids."""
    try:
        yield
    except NotScheduled as error:
        raise NotScheduled(
            f"{identity} is not waiting for its time: it is due already, or was cancelled. List those that wait: "
            f"penstock scheduled list {identity.topic}",
            id=str(identity),
        ) from error
    except MessageNotFound as error:
        raise MessageNotFound(
            f'message "{identity}" does not exist: it is not published yet, or was deleted. See the offsets that '
            f"exist: penstock topic show {identity.topic}",
            id=str(identity),
        ) from error


# --- delayed and recurring ----------------------------------------------------------------------------------


@handles(ListScheduled)
async def list_scheduled(site: Site, request: ListScheduled) -> list[Scheduled] | Listed[Scheduled]:
    topic = site.broker.topic(request.topic)
    numbers = [number for number, _ in wanted(topic, request.partitions)]
    is_paged = request.after is not None
    limit = check_limit(request.limit) if is_paged else unpaged_limit(request.limit)
    after = time_in(request.after) if request.after else None
    rows = (one if after is None or one.place > after else None for one in scheduled.due(topic, numbers))
    (nearest,) = await site.broker.scan(smallest(rows, limit, lambda one: one.place))
    # One that was lost meanwhile may have been passed over.
    wanted(topic, request.partitions)
    if is_paged:
        page = page_of(nearest, limit, lambda one: place_text(*one.place), lambda one: one.size)
    else:
        check_unpaged("scheduled messages", len(nearest))
        check_unpaged_bytes("scheduled messages", sum(one.size for one in nearest))
        page = Listed(nearest)
    found = {one.id: one for one in await site.broker.scan(scheduled.read(topic, page.items))}
    # As it was when it was looked for: its place among the others.
    places = ((MessageId(topic.name, one.partition, one.offset), one.deliver_at) for one in page.items)
    items = [Scheduled(str(id), due_us, found[id].message) for id, due_us in places if id in found]
    return Listed(items, page.next) if is_paged else items


@handles(GetScheduled)
async def get_scheduled(site: Site, request: GetScheduled) -> Scheduled:
    identity = MessageId.parse(request.id)
    with _by_id(identity):
        topic = site.broker.topic(identity.topic)
        one = await site.broker.on_a_reading_thread(lambda: scheduled.get(topic, identity))
    return Scheduled(str(one.id), one.deliver_at, one.message)


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
            owner=request.owner,
        )
    )


@handles(ListSchedules)
async def list_schedules(site: Site, request: ListSchedules) -> list[Schedule] | Listed[Schedule]:
    records = {record.name: record for record in site.broker.schedules.list()}
    if request.after is None:
        check_unpaged_bytes("schedules", sum(record.message.size for record in records.values()))
    return await named_page(
        site,
        "schedules",
        list(records),
        request.after,
        request.limit,
        lambda name: _schedule(records[name]),
        lambda one: 1 + one.message.size * ROWS_MAX // BYTES_MAX,
    )


@handles(DeleteSchedule, awaits_replicas=True)
async def delete_schedule(site: Site, request: DeleteSchedule) -> None:
    await site.broker.schedules.delete(request.name)


def _schedule(record: ScheduleRecord) -> Schedule:
    return convert(record, Schedule, from_attributes=True)


# --- dead letters -------------------------------------------------------------------------------------------


@handles(ListDeadLetters)
async def list_dead_letters(site: Site, request: ListDeadLetters) -> list[DeadLetter] | Listed[DeadLetter]:
    is_paged = request.after is not None
    limit = check_limit(request.limit) if is_paged else unpaged_limit(request.limit)
    after = place_in(request.after)[1:] if request.after else None
    if not request.after:
        # Later pages go on where the first one was.
        await _published(site, request.topic)
    _check_graves(site, request)
    letters = site.broker.dead_letters.scan(
        request.topic,
        _where(request.where),
        with_settled=request.with_settled,
        partitions=request.partitions,
        after=after,
    )
    found = await site.broker.scan(_first(letters, limit, BYTES_MAX if is_paged else UNPAGED_BYTES_MAX))
    _check_graves(site, request)
    if is_paged:
        return page_of(found, limit, lambda letter: letter.id, _letter_size)
    check_unpaged("dead letters", len(found))
    check_unpaged_bytes("dead letters", sum(map(_letter_size, found)))
    return found


def _first(
    letters: Iterator[dead_letters.DeadLetter | None], limit: int, bytes_max: int
) -> Iterator[DeadLetter | None]:
    """The first ones: `limit` at most, and no further than the one with which they exceed `bytes_max`."""
    for letter in letters if limit > 0 else ():
        if letter is None:
            yield None
            continue
        one = _letter(letter)
        yield one
        limit -= 1
        bytes_max -= _letter_size(one)
        if not limit or bytes_max < 0:
            return


def _letter_size(letter: DeadLetter) -> int:
    return letter.message.size + len(letter.reason) + sum(len(failure.reason) for failure in letter.failures)


@handles(GetDeadLetter)
async def get_dead_letter(site: Site, request: GetDeadLetter) -> DeadLetter:
    identity = MessageId.parse(request.id)
    return _letter(await site.broker.on_a_reading_thread(lambda: site.broker.dead_letters.letter(identity)))


@handles(Redrive)
async def redrive(site: Site, request: Redrive) -> Redriven:
    _check_graves(site, request)
    if not request.dry_run:
        _check_replicas(site, request.topic)
    await _published(site, request.topic)
    done = await site.broker.dead_letters.redrive(
        request.topic, _where(request.where), dry_run=request.dry_run, rate=request.rate
    )
    # Thousands of ids.
    return await site.broker.on_a_reading_thread(lambda: Redriven(*(tuple(map(str, ids)) for ids in done)))


@handles(Discard)
async def discard(site: Site, request: Discard) -> int:
    _check_graves(site, request)
    _check_replicas(site, request.topic)
    await _published(site, request.topic)
    return await site.broker.dead_letters.discard(request.topic, _where(request.where))


async def _published(site: Site, topic: str) -> None:
    """Those that are just being written are dead letters, too; but what waits for other nodes may do so for long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(None if site.cluster is None else _SETTLING_S_MAX):
            await site.broker.dead_letters.published(topic)


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
