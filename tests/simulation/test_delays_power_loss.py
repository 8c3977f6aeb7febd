"""Power is lost while messages wait for their time: each comes when it is due, not earlier, and none is forgotten.

A seeded workload publishes messages with and without delays, alone and in batches, cancels some, moves some, and lets
time pass; groups that are up to date, groups that lag, and one that starts late lease and acknowledge. In some runs
retention takes all it may. Ahead of every operation on the disk the state is kept, with what the clients know then.
From kept states power losses are rolled, also in the middle of recovery; then time goes on until nothing is to come.

The second half does the same to schedules: an occurrence comes once.

Replay one seed: pytest tests/simulation/test_delays_power_loss.py --seed N
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

import pytest
from broker_moments import ack_all, cut_short, life, remains, rows_of, run, told_how_to_replay
from pyroaring import BitMap64

from penstock.batch import Batch
from penstock.broker import scheduled
from penstock.broker.broker import Broker
from penstock.broker.cron import Cron
from penstock.broker.delays import Delays
from penstock.broker.deliveries import Deliveries
from penstock.broker.group import Receipt
from penstock.broker.ids import MessageId
from penstock.broker.schedules import Schedules
from penstock.broker.settings import GroupSettings, TopicSettings
from penstock.message import Message
from penstock.storage.log import LogSettings
from penstock.testing import ManualClock, MemoryDisk, Operation

STATES = 200
STATES_PER_SEED = 40
MUTANT_SEEDS = 8
STEPS = 60
TOPIC = "t"
EARLY, LAGGING, LATE = "early", "lagging", "late"
VISIBILITY_US = 2_000_000
# Nothing is ever given up here.
SETTINGS = GroupSettings(
    visibility_us=VISIBILITY_US,
    max_retries=1_000_000,
    backoff_initial_us=10,
    backoff_factor=1,
    backoff_max_us=10,
    backoff_jitter=0,
)
DELAYS_US = (1, 1_000, 5_000, 100_000, 1_000_000, 3_000_000, 20_000_000, 70_000_000)
PAUSES_US = (0, 0, 1, 500, 4_096, 60_000, 500_000)
SMALL = LogSettings(segment_bytes_max=4096)


class Entry(NamedTuple):
    """A message as its producer knows it: when it may be due, and whether it was stored, cancelled."""

    dues: tuple[int, ...]
    place: tuple[int, int] | None = None
    cancelled: str = "no"

    def is_pending(self, now_us: int) -> bool:
        return self.place is not None and self.cancelled == "no" and min(self.dues) > now_us


@dataclass
class Known:
    entries: dict[bytes, Entry]
    acked: set[tuple[str, bytes]]
    acking: set[tuple[str, bytes]]
    # For each group that has started, what was there before and it need not get.
    missed: dict[str, frozenset[bytes]]

    def copy(self) -> Known:
        return Known(dict(self.entries), set(self.acked), set(self.acking), dict(self.missed))

    def check_delivery(self, group: str, value: bytes, now_us: int) -> None:
        entry = self.entries[value]
        assert min(entry.dues) <= now_us, f"early by {min(entry.dues) - now_us} µs: {name_of(value)} to {group}"
        assert entry.cancelled != "yes", f"cancelled, and delivered: {name_of(value)} to {group}"
        assert (group, value) not in self.acked, f"acknowledged, and delivered again: {name_of(value)} to {group}"


class Moment(NamedTuple):
    disk: MemoryDisk
    known: Known
    now_us: int
    operation: Operation
    during: str


class Workload:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = MemoryDisk()
        self.clock = ManualClock()
        self.known = Known({}, set(), set(), {})
        self.held: dict[str, list[tuple[Receipt, dict[int, bytes]]]] = {EARLY: [], LAGGING: [], LATE: []}
        self.busy: set[bytes] = set()
        self.moments: list[Moment] = []
        self.during = ""
        # Retention that takes all but what must stay, in every third run.
        self.is_tight = seed % 3 == 2
        self.settings = TopicSettings(**({"retention_bytes": 1} if self.is_tight else {}))

    def look(self, operation: Operation) -> None:
        if self.during:
            moment = Moment(self.disk.copy(), self.known.copy(), self.clock.now_us(), operation, self.during)
            self.moments.append(moment)

    async def run(self) -> None:
        async with life(self.disk, self.clock, self.random, self.look, log_settings=SMALL) as broker:
            await broker.create_topic(TOPIC, 2, self.settings)
            for name in (EARLY, LAGGING):
                await broker.create_group(name, SETTINGS)
                await broker.group(name, TOPIC).start()
                self.known.missed[name] = frozenset()
            for step in range(STEPS):
                if step == STEPS // 2:
                    await self.start_late(broker)
                await self.step(broker)
                self.clock.advance_us(self.random.choice(PAUSES_US))
            self.during = ""

    async def step(self, broker: Broker) -> None:
        together: list[Callable[[Broker], Any]] = [self.publish, self.publish_batch] * 2 + [
            self.cancel,
            self.reschedule,
        ]
        together += [self.lease, self.lease, self.ack, self.ack, self.snapshot]
        steps = self.random.sample(together, self.random.choice((1, 1, 2, 3)))
        if self.random.random() < 0.15:
            steps = [self.tick]
        if self.random.random() < (0.5 if self.is_tight else 0.1):
            steps.append(self.maintain)
        self.during = " and ".join(step.__name__ for step in steps)
        await asyncio.gather(*(self.after_a_while(step, broker) for step in steps))

    async def after_a_while(self, step: Callable[[Broker], Any], broker: Broker) -> None:
        for _ in range(self.random.randrange(20)):
            await asyncio.sleep(0)
        await step(broker)

    # --- producers ---------------------------------------------------------------------------------------

    def message(self) -> Message:
        value = b"%d " % len(self.known.entries) + bytes(self.random.choice((10, 1_000 if self.is_tight else 300)))
        deliver_at = self.random.choice((0, 1, 1)) and self.clock.now_us() + self.random.choice(DELAYS_US)
        self.known.entries[value] = Entry((deliver_at,))
        key = self.random.choice((None, b"k0", b"k1"))
        return Message(value, key, deliver_at=deliver_at, priority=self.random.choice((-1, 0, 0, 1)))

    def stored(self, value: bytes, partition: int, offset: int) -> None:
        self.known.entries[value] = self.known.entries[value]._replace(place=(partition, offset))

    async def publish(self, broker: Broker) -> None:
        for _ in range(self.random.randint(1, 3)):
            message = self.message()
            published = await broker.topic(TOPIC).publish(message)
            self.stored(message.value or b"", published.partition, published.offset)

    async def publish_batch(self, broker: Broker) -> None:
        messages = [self.message() for _ in range(self.random.randint(1, 5))]
        batch = Batch.from_messages(messages, self.clock.now_us())
        published = await broker.topic(TOPIC).publish_batch(batch)
        for message, partition, offset in zip(messages, published.partitions, published.offsets, strict=True):
            self.stored(message.value or b"", int(partition), int(offset))

    def some_pending(self) -> bytes | None:
        now = self.clock.now_us()
        pending = [value for value, entry in self.known.entries.items() if entry.is_pending(now)]
        pending = [value for value in pending if value not in self.busy]
        return self.random.choice(pending) if pending else None

    async def cancel(self, broker: Broker) -> None:
        if value := self.some_pending():
            self.busy.add(value)
            entry = self.known.entries[value]
            assert entry.place is not None
            self.known.entries[value] = entry._replace(cancelled="maybe")
            await scheduled.cancel(broker.topic(TOPIC), MessageId(TOPIC, *entry.place))
            self.known.entries[value] = entry._replace(cancelled="yes")
            self.busy.discard(value)

    async def reschedule(self, broker: Broker) -> None:
        """To another time, or to be delivered at once."""
        if value := self.some_pending():
            self.busy.add(value)
            entry = self.known.entries[value]
            assert entry.place is not None
            due = self.clock.now_us() + self.random.choice((0, *DELAYS_US))
            self.known.entries[value] = entry._replace(dues=(*entry.dues, due))
            await scheduled.reschedule(broker.topic(TOPIC), MessageId(TOPIC, *entry.place), due, self.clock)
            self.known.entries[value] = entry._replace(dues=(due,))
            self.busy.discard(value)

    # --- consumers ---------------------------------------------------------------------------------------

    async def start_late(self, broker: Broker) -> None:
        self.during = "start"
        now = self.clock.now_us()
        missed = {value for value, entry in self.known.entries.items() if not entry.is_pending(now)}
        await broker.create_group(LATE, SETTINGS.changed(start="latest"))
        await broker.group(LATE, TOPIC).start()
        self.known.missed[LATE] = frozenset(missed)

    def some_group(self) -> str:
        names = [name for name in (EARLY, EARLY, EARLY, LATE, LATE, LAGGING) if name in self.known.missed]
        return self.random.choice(names)

    async def lease(self, broker: Broker) -> None:
        name = self.some_group()
        handed = await broker.group(name, TOPIC).lease("c", self.random.choice((1, 3, 20)))
        values: dict[tuple[int, int], dict[int, bytes]] = {}
        for row in rows_of(handed):
            assert row.message.value is not None
            self.known.check_delivery(name, row.message.value, self.clock.now_us())
            values.setdefault((row.partition, row.lease), {})[row.offset] = row.message.value
        for (partition, lease), some in values.items():
            self.held[name].append((Receipt(partition, lease, BitMap64(some)), some))

    async def ack(self, broker: Broker) -> None:
        name = self.some_group()
        if not self.held[name]:
            return
        receipt, values = self.held[name].pop(self.random.randrange(len(self.held[name])))
        if receipt.lease not in broker.topic(TOPIC).partition(receipt.partition).groups.state(name).leases:
            return
        some = self.random.sample(sorted(values), self.random.randint(1, len(values)))
        acking = {(name, values[offset]) for offset in some}
        self.known.acking |= acking
        await broker.group(name, TOPIC).ack(receipt._replace(offsets=BitMap64(some)))
        self.known.acking -= acking
        self.known.acked |= acking

    # --- time and upkeep ---------------------------------------------------------------------------------

    async def tick(self, broker: Broker) -> None:
        await broker.tick()

    async def snapshot(self, broker: Broker) -> None:
        await broker.topic(TOPIC).partition(self.random.randrange(2)).groups.snapshot()

    async def maintain(self, broker: Broker) -> None:
        await broker.maintain()


class Check:
    """Of one state of the disk, against what the clients knew."""

    def __init__(self, known: Known, is_tight: bool, clock: ManualClock, random: Random) -> None:
        self.known = known
        self.is_tight = is_tight
        self.clock = clock
        self.random = random
        self.delivered: set[tuple[str, bytes]] = set()
        self.pending = [value for value, entry in known.entries.items() if entry.is_pending(clock.now_us())]

    async def run(self, disk: MemoryDisk, seen: Counter[str]) -> None:
        while self.random.random() < 0.4:
            disk = await cut_short(disk, self.clock, self.random, self.live_a_little, log_settings=SMALL)
            seen["lives cut short"] += 1
        self.clock.advance_us(self.random.choice(PAUSES_US))
        async with life(disk, self.clock, self.random, log_settings=SMALL) as broker:
            self.check_log(broker)
            if self.random.random() < 0.5:
                await broker.tick()
            self.check_scheduled(broker)
            await self.let_time_pass(broker)
            self.check_nothing_is_lost()
        seen["delayed"] += len(self.pending)

    async def live_a_little(self, broker: Broker) -> None:
        """Without deliveries: what was pending is not answered for by anybody."""
        if self.is_tight:
            await broker.maintain()
        self.clock.advance_us(self.random.choice((0, 0, 1, 500)))
        await broker.tick()
        if self.random.random() < 0.5:
            await broker.topic(TOPIC).partition(self.random.randrange(2)).groups.snapshot()

    def check_log(self, broker: Broker) -> None:
        now = self.clock.now_us()
        found: dict[tuple[int, int], bytes | None] = {}
        for number, partition in enumerate(broker.topic(TOPIC).partitions):
            offsets = BitMap64(range(partition.messages.start_offset, partition.messages.end_offset))
            found |= {(number, stored.offset): stored.message.value for stored in partition.reading.messages(offsets)}
        for value, entry in self.known.entries.items():
            if entry.place is not None and (entry.is_pending(now) or not self.is_tight):
                there = found.get(entry.place)
                assert there == value, f"at {entry.place} there is {name_of(there)}, not {name_of(value)}"

    def check_scheduled(self, broker: Broker) -> None:
        now = self.clock.now_us()
        found = {one.message.value: one for one in scheduled.scheduled(broker.topic(TOPIC))}
        for value in self.pending:
            if self.known.entries[value].is_pending(now):
                assert value in found, f"delayed, and forgotten: {name_of(value)}"
        for value, one in found.items():
            assert value is not None
            entry = self.known.entries[value]
            assert one.deliver_at in entry.dues, f"{name_of(value)} is due at {one.deliver_at}, not {entry.dues}"
            assert entry.cancelled != "yes", f"cancelled, and still to come: {name_of(value)}"

    async def let_time_pass(self, broker: Broker) -> None:
        """A moment before something is due, and when it is. Everything that comes is acknowledged."""
        await self.take(broker)
        now = self.clock.now_us()
        dues = sorted({due for value in self.pending for due in self.known.entries[value].dues if due > now})
        for due in sorted(self.random.sample(dues, min(len(dues), 4))):
            self.clock.advance_us(due - 1 - self.clock.now_us())
            await self.take(broker)
            if self.is_tight:
                await broker.maintain()
            self.clock.advance_us(1)
            await self.take(broker)
            self.check_nothing_is_late()
        # The delays that are left, and leases of a life before.
        for pause_us in (max(DELAYS_US), VISIBILITY_US, VISIBILITY_US):
            self.clock.advance_us(pause_us)
            await self.take(broker)

    async def take(self, broker: Broker) -> None:
        for name in self.known.missed:
            group = broker.group(name, TOPIC)
            while handed := await group.lease("d", 1_000):
                for row in rows_of(handed):
                    assert row.message.value is not None
                    self.known.check_delivery(name, row.message.value, self.clock.now_us())
                    assert (name, row.message.value) not in self.delivered, (
                        f"{name_of(row.message.value)} twice to {name}"
                    )
                    self.delivered.add((name, row.message.value))
                await ack_all(group, handed)

    def check_nothing_is_late(self) -> None:
        """Nobody had leased these before, so nobody need wait for a lease to run out."""
        for value in self.pending:
            if max(self.known.entries[value].dues) <= self.clock.now_us():
                self.check_came(value)

    def check_nothing_is_lost(self) -> None:
        for value, entry in self.known.entries.items():
            if entry.place is not None and entry.cancelled == "no" and (value in self.pending or not self.is_tight):
                self.check_came(value)

    def check_came(self, value: bytes) -> None:
        for name, missed in self.known.missed.items():
            came = (name, value)
            if came not in self.known.acked and came not in self.known.acking and value not in missed:
                assert came in self.delivered, f"due, and not delivered: {name_of(value)} to {name}"


def name_of(value: bytes | None) -> str:
    """Without the padding."""
    return f"message {(value or b'none').split()[0].decode()}"


def run_seed(seed: int, seen: Counter[str]) -> None:
    workload = Workload(seed)
    with told_how_to_replay(__file__, seed, "before any power loss"):
        run(workload.run())
    random = Random(seed)
    for moment in random.sample(workload.moments, min(STATES_PER_SEED, len(workload.moments))):
        place = f"during {moment.during}, ahead of {moment.operation.kind} {moment.operation.name}"
        check = Check(moment.known, workload.is_tight, ManualClock(moment.now_us), random)
        with told_how_to_replay(__file__, seed, place):
            run(check.run(remains(moment.disk, random), seen))
        seen["states"] += 1


def test_no_power_loss_forgets_a_delayed_message_or_brings_it_early(
    request: pytest.FixtureRequest, scale: float
) -> None:
    only = request.config.getoption("--seed")
    seen: Counter[str] = Counter()
    seed = only or 0
    while seen["states"] < (1 if only is not None else STATES * scale):
        run_seed(seed, seen)
        seed += 1
    print(dict(seen))
    if only is None:
        assert seen["delayed"] > 0
        assert seen["lives cut short"] > 0


# --- would it notice? ---------------------------------------------------------------------------------------


def _mutant_pending_forgotten_in_recovery(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Deliveries, "_recall_delays", lambda *_: None)


def _mutant_released_a_moment_early(patch: pytest.MonkeyPatch) -> None:
    original = Delays.due
    patch.setattr(Delays, "due", lambda delays, now_us: original(delays, now_us + 1))


def _mutant_moves_forgotten_in_recovery(patch: pytest.MonkeyPatch) -> None:
    original = Deliveries._recover

    def recover(groups: Deliveries) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Delays, "move", lambda *_: None)
            original(groups)

    patch.setattr(Deliveries, "_recover", recover)


def _mutant_cancellation_told_before_it_is_written(patch: pytest.MonkeyPatch) -> None:
    original = Deliveries.cancel

    async def cancel(groups: Deliveries, offset: int) -> None:
        cancelling = asyncio.ensure_future(original(groups, offset))
        cancelling.add_done_callback(lambda done: done.exception())
        await asyncio.sleep(0)

    patch.setattr(Deliveries, "cancel", cancel)


MUTANTS = [value for name, value in list(globals().items()) if name.startswith("_mutant_")]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__.removeprefix("_mutant_"))
def test_the_simulation_catches_a_broken_build(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match=r"early|forgotten|cancelled|not delivered|is due at"):
        for seed in range(MUTANT_SEEDS):
            run_seed(seed, Counter())


# --- schedules ----------------------------------------------------------------------------------------------

SCHEDULE_STATES = 240
SCHEDULE_STATES_PER_SEED = 30
SCHEDULE_STEPS = 40
# Often enough that no occurrence is missed for want of a look at the clock.
TICK_US = 10_000_000
CRONS = {"minutely": "* * * * *", "by interval": "@every 90s", "weekly": "0 0 * * 1"}
# Soon it is Monday.
SCHEDULES_START_US = 1_700_438_400_000_000 - 150_000_000
DAY_US = 86_400_000_000
SOON_FULL = LogSettings(segment_bytes_max=4096, segment_age_us_max=200_000_000)


@dataclass
class Plans:
    """Which schedules there are, as far as anybody was told: when they were created, and deleted."""

    created: dict[str, int]
    deleting: dict[str, int]
    deleted: dict[str, int]

    def copy(self) -> Plans:
        return Plans(dict(self.created), dict(self.deleting), dict(self.deleted))


class ScheduleMoment(NamedTuple):
    disk: MemoryDisk
    plans: Plans
    now_us: int
    operation: Operation


class ScheduleWorkload:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = MemoryDisk()
        self.clock = ManualClock(SCHEDULES_START_US)
        self.plans = Plans({}, {}, {})
        self.moments: list[ScheduleMoment] = []

    def look(self, operation: Operation) -> None:
        self.moments.append(ScheduleMoment(self.disk.copy(), self.plans.copy(), self.clock.now_us(), operation))

    async def run(self) -> None:
        async with life(self.disk, self.clock, self.random, self.look, log_settings=SOON_FULL) as broker:
            await broker.create_topic(TOPIC, 2)
            await broker.create_group(EARLY, SETTINGS)
            await broker.group(EARLY, TOPIC).start()
            self.moments.clear()
            for step in range(SCHEDULE_STEPS):
                steps = [broker.tick()]
                if step in (1, 3):
                    steps.append(self.create(broker, f"{step}", self.random.choice(list(CRONS))))
                elif step > 10 and self.random.random() < 0.05 and self.plans.created:
                    steps.append(self.delete(broker, self.random.choice(list(self.plans.created))))
                elif self.random.random() < 0.2:
                    steps.append(self.publish(broker))
                elif self.random.random() < 0.1:
                    steps.append(broker.maintain())
                await asyncio.gather(*steps)
                self.clock.advance_us(self.random.choice((1, TICK_US // 3, TICK_US)))

    async def create(self, broker: Broker, name: str, kind: str) -> None:
        message = Message(f"{name} {kind}".encode(), self.random.choice((None, b"k0", b"k1")))
        now = self.clock.now_us()
        producer = self.random.randrange(1, 1 << 62)
        await broker.schedules.create(name, TOPIC, CRONS[kind], message, timezone="UTC", producer=producer)
        self.plans.created[name] = now

    async def delete(self, broker: Broker, name: str) -> None:
        now = self.clock.now_us()
        if name in self.plans.deleting:
            return
        self.plans.deleting[name] = now
        for _ in range(self.random.randrange(10)):
            await asyncio.sleep(0)
        await broker.schedules.delete(name)
        self.plans.deleted[name] = now

    async def publish(self, broker: Broker) -> None:
        await broker.topic(TOPIC).publish(Message(b"other"))


class ScheduleCheck:
    def __init__(self, plans: Plans, clock: ManualClock, random: Random) -> None:
        self.plans = plans
        self.clock = clock
        self.random = random
        self.down: list[tuple[int, int]] = []

    async def run(self, disk: MemoryDisk, seen: Counter[str]) -> None:
        self.be_down()
        while self.random.random() < 0.5:
            disk = await cut_short(disk, self.clock, self.random, self.live_a_little, log_settings=SOON_FULL)
            self.be_down()
            seen["lives cut short"] += 1
        async with life(disk, self.clock, self.random, log_settings=SOON_FULL) as broker:
            await self.let_time_pass(broker, 20)
            there = {record.name for record in broker.schedules.list()}
            assert not there & self.plans.deleted.keys(), "a deleted schedule is there"
            missing = self.plans.created.keys() - self.plans.deleting.keys() - there
            assert not missing, f"a schedule is gone: {missing}"
            occurrences = self.occurrences(broker)
            for value, dues in occurrences.items():
                name, _, kind = value.partition(" ")
                self.check_dues(name, CRONS[kind], dues, is_going_on=name in there)
            await self.check_deliveries(broker, occurrences)
        seen["occurrences"] += sum(len(dues) for dues in occurrences.values())

    def be_down(self) -> None:
        since = self.clock.now_us()
        self.clock.advance_us(self.random.choice((0, 0, 0, TICK_US, 250_000_000, 2 * DAY_US)))
        self.down.append((since, self.clock.now_us()))

    async def live_a_little(self, broker: Broker) -> None:
        if self.random.random() < 0.3:
            await broker.topic(TOPIC).publish(Message(b"other"))
            await broker.maintain()
        await self.let_time_pass(broker, self.random.choice((1, 8)))

    async def let_time_pass(self, broker: Broker, ticks: int) -> None:
        for _ in range(ticks):
            await broker.tick()
            self.clock.advance_us(TICK_US)
        await broker.tick()

    def occurrences(self, broker: Broker) -> dict[str, list[int]]:
        """As they lie in the log: when each is due, by schedule."""
        found: dict[str, list[int]] = {}
        for partition in broker.topic(TOPIC).partitions:
            log = partition.messages
            for stored in partition.reading.messages(BitMap64(range(log.start_offset, log.end_offset))):
                assert stored.message.value is not None
                if stored.message.value != b"other":
                    found.setdefault(stored.message.value.decode(), []).append(stored.message.deliver_at)
        return found

    def check_dues(self, name: str, cron: str, dues: list[int], *, is_going_on: bool) -> None:
        """One after the other; only those are missing that came while the broker was down."""
        after = Cron.parse(cron, "UTC").next_after
        assert len(set(dues)) == len(dues), f"an occurrence of {name} twice: {dues}"
        assert dues == sorted(dues), f"occurrences of {name} out of order: {dues}"
        for one, following in pairwise(dues):
            due = after(one)
            while due is not None and due < following:
                was_down = any(since <= due <= until for since, until in self.down)
                assert was_down, f"an occurrence of {name} is missing between {one} and {following}: {due}"
                due = after(due)
            assert due == following
        if is_going_on:
            assert dues[-1] == after(self.clock.now_us()), f"the next occurrence of {name} is not there"

    async def check_deliveries(self, broker: Broker, occurrences: dict[str, list[int]]) -> None:
        """All that are due came once, except what was pending when its schedule was deleted."""
        come: dict[str, list[int]] = {}
        while handed := await broker.group(EARLY, TOPIC).lease("d", 1_000):
            for row in rows_of(handed):
                assert row.message.value is not None
                come.setdefault(row.message.value.decode(), []).append(row.message.deliver_at)
        for value, dues in occurrences.items():
            name, _, _ = value.partition(" ")
            until = min(self.plans.deleted.get(name, 1 << 62), self.clock.now_us())
            sure = self.plans.deleting.get(name, until)
            came = sorted(come.get(value, []))
            assert came == sorted(set(came))
            assert {due for due in dues if due <= min(sure, until)} <= set(came), f"occurrences of {name} did not come"
            late = [due for due in came if due > until]
            assert not late, f"{name} was deleted at {until}, and came at {late}"


def run_schedules(seed: int, seen: Counter[str]) -> None:
    workload = ScheduleWorkload(seed)
    with told_how_to_replay(__file__, seed, "before any power loss"):
        run(workload.run())
    random = Random(seed)
    for moment in random.sample(workload.moments, min(SCHEDULE_STATES_PER_SEED, len(workload.moments))):
        place = f"ahead of {moment.operation.kind} {moment.operation.name}"
        check = ScheduleCheck(moment.plans, ManualClock(moment.now_us), random)
        with told_how_to_replay(__file__, seed, place):
            run(check.run(remains(moment.disk, random), seen))
        seen["states"] += 1


def test_no_power_loss_repeats_or_skips_an_occurrence_of_a_schedule(
    request: pytest.FixtureRequest, scale: float
) -> None:
    only = request.config.getoption("--seed")
    seen: Counter[str] = Counter()
    seed = only or 0
    while seen["states"] < (1 if only is not None else SCHEDULE_STATES * scale):
        run_schedules(seed, seen)
        seed += 1
    print(dict(seen))
    assert seen["occurrences"] > 0


def test_the_simulation_catches_occurrences_that_are_not_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Schedules, "_found", lambda *_: None)
    with pytest.raises(AssertionError, match="twice"):
        for seed in range(SCHEDULE_STATES // SCHEDULE_STATES_PER_SEED):
            run_schedules(seed, Counter())
