"""Power is lost while dead letters are redriven whose messages are gone: each is published again exactly once.

So are letters of a group or a topic that was deleted and created again, and whose successor gave up messages at the
same offsets. A seeded workload redrives them, sometimes twice at the same time, sometimes for somebody who gives up
waiting. Ahead of every operation on the disk the state is kept. From each of them power is lost, or the process killed,
and some of the lives that follow are cut short as well. Whoever redrives then finds one copy of each message, as it
was, in order.

Replay one seed: pytest tests/simulation/test_redrive_power_loss.py --seed N
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

import pytest
from broker_moments import Pool, cut_short, life, remains, rows_of, run, told_how_to_replay, until
from pyroaring import BitMap64

from penstock.broker import copies, dead_letters, snapshot
from penstock.broker.broker import Broker
from penstock.broker.dead_letters import DeadLetter, DeadLetters, Where
from penstock.broker.delivery import Delivery
from penstock.broker.events import Copying, GroupEvent
from penstock.broker.group import Receipt
from penstock.broker.ids import MessageId
from penstock.broker.names import DEAD_LETTERS
from penstock.broker.settings import GroupSettings
from penstock.broker.topic import Topic
from penstock.message import Message
from penstock.testing import ManualClock, MemoryDisk, Operation

STATES = 300
TOPIC = "t"
LETTERS = 5
DAY_US = 86_400_000_000


class Moment(NamedTuple):
    disk: MemoryDisk
    operation: Operation


class Workload:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = MemoryDisk()
        self.clock = ManualClock()
        self.partitions = self.random.choice((1, 2))
        self.rate = self.random.choice((None, None, 10))
        self.sent: list[Message] = []
        self.ends: list[int] = []
        self.moments: list[Moment] = []
        self.is_looking = False

    def look(self, operation: Operation) -> None:
        if self.is_looking:
            self.moments.append(Moment(self.disk.copy(), operation))

    async def run(self) -> None:
        async with life(self.disk, self.clock, self.random) as broker:
            await self.give_up(broker)
        async with life(self.disk, self.clock, self.random, self.look) as broker:
            self.is_looking = True
            await self.redrive(broker)
            self.is_looking = False

    async def give_up(self, broker: Broker) -> None:
        """Letters of a group that is no more: there is nobody to bring their messages back to."""
        topic = await broker.create_topic(TOPIC, self.partitions)
        await broker.create_group("g", GroupSettings())
        for number in range(LETTERS):
            message = Message(
                b"%d" % number,
                self.random.choice((None, b"k", b"l")),
                tuple((f"h{i}", b"x") for i in range(self.random.randrange(3))),
                priority=self.random.choice((-1, 0, 1)),
                expires_at=self.random.choice((0, self.clock.now_us() + DAY_US)),
            )
            self.sent.append(message)
            await topic.publish(message)
        group = broker.group("g", TOPIC)
        rows = rows_of(await group.lease("c", 100))
        # They die in any order, and come back in that of the log.
        for row in self.random.sample(rows, len(rows)):
            await group.reject(Receipt(row.partition, row.lease, BitMap64([row.offset])), "bad")
            await broker.settle()
        recreated = self.random.choice((None, "group", "topic"))
        if recreated != "topic":
            await broker.delete_group("g")
        if recreated is not None:
            await self.recreate(broker, recreated)
        self.ends = [partition.messages.end_offset for partition in broker.topic(TOPIC).partitions]

    async def recreate(self, broker: Broker, what: str) -> None:
        """Whoever has the name then gives up as many messages, at the same offsets; those letters are discarded."""
        self.clock.advance_us(1_000)
        if what == "group":
            await broker.create_group("g", GroupSettings())
        else:
            await broker.delete_topic(TOPIC)
            topic = await broker.create_topic(TOPIC, self.partitions)
            for number in range(LETTERS):
                await topic.publish(Message(b"new%d" % number), number % self.partitions)
        before = {str(letter.id) for letter in broker.dead_letters.letters(TOPIC)}
        group = broker.group("g", TOPIC)
        for row in rows_of(await group.lease("c", 100)):
            await group.reject(Receipt(row.partition, row.lease, BitMap64([row.offset])), "bad again")
        await broker.settle()
        ids = {str(letter.id) for letter in broker.dead_letters.letters(TOPIC)} - before
        assert len(ids) == LETTERS
        await broker.dead_letters.discard(TOPIC, Where(ids=tuple(ids)))

    async def redrive(self, broker: Broker) -> None:
        redrives = [asyncio.create_task(redrive(broker, self.rate)) for _ in range(self.random.choice((1, 1, 2)))]
        for _ in range(self.random.randrange(120)):
            await asyncio.sleep(0)
        if self.random.random() < 0.3:
            redrives[0].cancel()
        if self.random.random() < 0.5:
            for partition in broker.topic(TOPIC + DEAD_LETTERS).partitions:
                await partition.groups.snapshot()
        with suppress(asyncio.CancelledError):
            await redrives[0]
        await redrive(broker, self.rate)
        for other in redrives[1:]:
            await other


async def redrive(broker: Broker, rate: float | None = None) -> None:
    redriven = await broker.dead_letters.redrive(TOPIC, rate=rate)
    assert not redriven.in_place, "redriven in place, and not as a copy"
    assert not redriven.refused


class Check:
    def __init__(self, workload: Workload, random: Random) -> None:
        self.sent = workload.sent
        self.ends = workload.ends
        self.clock = ManualClock(workload.clock.now_us())
        self.random = random

    async def run(self, disk: MemoryDisk, seen: Counter[str]) -> None:
        while self.random.random() < 0.4:
            disk = await cut_short(disk, self.clock, self.random, redrive)
            seen["lives cut short"] += 1
        # Longer than a producer is remembered.
        self.clock.advance_us(self.random.choice((0, 2 * DAY_US)))
        async with life(disk, self.clock, self.random) as broker:
            await broker.settle()
            found, open_letters = len(self.copies(broker)), len(list(broker.dead_letters.letters(TOPIC)))
            assert found + open_letters == LETTERS, f"{found} copies, and {open_letters} letters to be redriven"
            seen["copies"] += found
            await redrive(broker)
            self.check(self.copies(broker))
            assert not list(broker.dead_letters.letters(TOPIC)), "redriven, and not settled"
        async with life(disk, self.clock, self.random) as broker:
            await redrive(broker)
            assert len(self.copies(broker)) == LETTERS, "a copy too many"

    def copies(self, broker: Broker) -> list[tuple[int, Message]]:
        """What lies behind the messages that were published at first, and in which partition."""
        return [
            (number, one.message)
            for number, (partition, end) in enumerate(zip(broker.topic(TOPIC).partitions, self.ends, strict=True))
            for one in partition.reading.messages(BitMap64(range(end, max(partition.messages.end_offset, end))))
        ]

    def check(self, copies: list[tuple[int, Message]]) -> None:
        by_value = Counter(message.value for _, message in copies)
        assert by_value == Counter(message.value for message in self.sent), f"not one copy of each: {by_value}"
        for number in {number for number, _ in copies}:
            order = [message.value for partition, message in copies if partition == number]
            assert order == sorted(order, key=lambda value: value or b""), f"copies out of order: {order}"
        for _, message in copies:
            sent = next(one for one in self.sent if one.value == message.value)
            assert (message.key, message.headers) == (sent.key, sent.headers), "not a copy of it"
            assert (message.priority, message.expires_at) == (sent.priority, 0), "not a copy of it"


def run_seed(seed: int, seen: Counter[str]) -> None:
    workload = Workload(seed)
    with told_how_to_replay(__file__, seed, "before any power loss"):
        run(workload.run())
    random = Random(seed)
    for moment in workload.moments:
        place = f"ahead of {moment.operation.kind} {moment.operation.name}"
        with told_how_to_replay(__file__, seed, place):
            run(Check(workload, random).run(remains(moment.disk, random), seen))
        seen["states"] += 1


def test_no_power_loss_forgets_a_copy_or_makes_it_twice(request: pytest.FixtureRequest, scale: float) -> None:
    only = request.config.getoption("--seed")
    seen: Counter[str] = Counter()
    seed = only or 0
    while seen["states"] < (1 if only is not None else STATES * scale):
        run_seed(seed, seen)
        seed += 1
    print(dict(seen))
    if only is None:
        assert seen["copies"] > 0
        assert seen["lives cut short"] > 0


def test_a_letter_is_not_settled_for_a_copy_that_is_not_on_disk_yet() -> None:
    workload = Workload(0)

    async def scenario() -> None:
        async with life(workload.disk, workload.clock, Random(1)) as broker:
            await workload.give_up(broker)
        async with life(workload.disk, workload.clock, Random(1), lambda operation: None, lone_writes=False) as broker:
            pool, logs = broker.disk.executor, [partition.messages for partition in broker.topic(TOPIC).partitions]
            assert isinstance(pool, Pool)
            first = asyncio.create_task(redrive(broker))
            await until(lambda: any(log.end_offset > log.synced_offset for log in logs))
            pool.hold()
            first.cancel()
            second = asyncio.create_task(redrive(broker))
            for _ in range(1_000):
                await asyncio.sleep(0)
            left = len(list(broker.dead_letters.letters(TOPIC)))
            pool.go_on()
            await second
            assert left == LETTERS, "settled ahead of its copy"
            check = Check(workload, Random(1))
            check.check(check.copies(broker))

    run(scenario())


# --- would it notice? ---------------------------------------------------------------------------------------


def _mutant_copies_not_searched_for(patch: pytest.MonkeyPatch) -> None:
    for module in (copies, dead_letters):
        patch.setattr(module, "has_published", lambda *_: False)


def _mutant_letters_matched_by_names_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dead_letters, "_is_same", lambda *_: True)


def _mutant_nothing_written_ahead_of_a_copy(patch: pytest.MonkeyPatch) -> None:
    record = DeadLetters._record

    async def skip(letters: DeadLetters, letter: MessageId, event: GroupEvent) -> None:
        if not isinstance(event, Copying):
            await record(letters, letter, event)

    patch.setattr(DeadLetters, "_record", skip)


def _mutant_settled_ahead_of_the_copy(patch: pytest.MonkeyPatch) -> None:
    copy = DeadLetters._copy

    async def settle_first(letters: DeadLetters, source: Topic, letter: DeadLetter, due_us: int) -> None:
        await letters._settle(letter.id)
        await copy(letters, source, letter, due_us)

    patch.setattr(DeadLetters, "_copy", settle_first)


def _mutant_snapshots_forget_what_is_being_copied(patch: pytest.MonkeyPatch) -> None:
    restore = snapshot.restore

    def forget(*given: Any) -> Delivery:
        group = restore(*given)
        group.copying.clear()
        return group

    patch.setattr(snapshot, "restore", forget)


MUTANTS = [value for name, value in list(globals().items()) if name.startswith("_mutant_")]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__.removeprefix("_mutant_"))
def test_the_simulation_catches_a_broken_build(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match=r"cop(y|ies)|settled"):
        for seed in range(20):
            run_seed(seed, Counter())
