"""Power is lost while a group works: what it acknowledged never comes again, and everything else does.

Replay one seed: pytest tests/simulation/test_groups_power_loss.py --seed N
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from functools import partial
from random import Random

import pytest
from pyroaring import BitMap64

from broker_files import Inline
from broker_support import broker_on, group_on
from penstock.broker.broker import Broker
from penstock.broker.deliveries import Deliveries
from penstock.broker.disk import Disk, Synced
from penstock.broker.group import Group, Receipt
from penstock.broker.settings import GroupSettings
from penstock.message import Message
from penstock.storage.log import Log
from penstock.testing import FaultyFiles, ManualClock, MemoryDisk, MemoryFiles, MemorySyncs, Operation

SEEDS = 6
MUTANT_SEEDS = 12
STEPS = 25
# Nothing is ever given up here, so that every message that is not done must come again.
SETTINGS = GroupSettings(
    visibility_us=1_000,
    max_retries=1_000_000,
    backoff_initial_us=10,
    backoff_factor=1,
    backoff_max_us=10,
    backoff_jitter=0,
)

Id = tuple[int, int]


@dataclass
class Moment:
    disk: MemoryDisk
    published: set[Id]
    done: set[Id]
    unsure: set[Id]


class Workload:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.way = ("thread", "loop", "syncs")[seed % 3]
        self.disk = MemoryDisk()
        self.published: set[Id] = set()
        self.done: set[Id] = set()
        self.unsure: set[Id] = set()
        self.held: list[Receipt] = []
        self.moments: list[Moment] = []

    def keep(self, operation: Operation) -> None:
        if operation.kind not in ("read", "open") and self.published:
            self.moments.append(Moment(self.disk.copy(), set(self.published), set(self.done), set(self.unsure)))

    async def run(self) -> list[Moment]:
        # Either one thread writes, or the loop does everything, or it writes and goes on while that is synced: the
        # disk is copied between two operations, not during one.
        files = FaultyFiles(MemoryFiles(self.disk), self.keep)
        options = {
            "thread": {},
            "loop": {"executor": Inline(), "lone_writes": True},
            "syncs": {"executor": Inline(), "syncs": MemorySyncs(partial(self.random.randrange, 1, 20))},
        }[self.way]
        async with broker_on(files, threads=1, **{"lone_writes": False, **options}) as broker:
            await broker.create_topic("t", 2)
            group = await group_on(broker, "g", "t", SETTINGS)
            for _ in range(STEPS):
                step = self.random.choice(
                    (self.publish, self.publish, self.lease, self.lease, self.answer, self.answer)
                )
                await step(broker, group)
                clock = broker._clock
                assert isinstance(clock, ManualClock)
                clock.advance_us(self.random.choice((0, 5, 300)))
        return self.moments

    async def publish(self, broker: Broker, group: Group) -> None:
        publishing = [broker.topic("t").publish(Message(b"v")) for _ in range(self.random.randint(1, 4))]
        for published in [await one for one in asyncio.as_completed(publishing)]:
            self.published.add((published.partition, published.offset))

    async def lease(self, broker: Broker, group: Group) -> None:
        self.held += [handed.receipt for handed in await group.lease("c", self.random.randint(1, 6))]

    async def answer(self, broker: Broker, group: Group) -> None:
        live = [r for r in self.held if r.lease in broker.topic("t").partitions[r.partition].groups.state("g").leases]
        if not live:
            return
        receipt = self.random.choice(live)
        left = broker.topic("t").partitions[receipt.partition].groups.state("g").leases[receipt.lease].offsets
        some = BitMap64(self.random.sample(list(left), self.random.randint(1, len(left))))
        receipt = receipt._replace(offsets=some)
        kind = self.random.choice(("ack", "ack", "nack", "reject", "release"))
        ids = {(receipt.partition, offset) for offset in some}
        if kind in ("ack", "reject"):
            self.unsure |= ids
            await (group.ack(receipt) if kind == "ack" else group.reject(receipt, "bad"))
            self.unsure -= ids
            self.done |= ids
        elif kind == "nack":
            await group.nack(receipt)
        else:
            await group.release(receipt)


async def delivered_after(disk: MemoryDisk) -> set[Id]:
    """Everything a consumer gets that never answers, given all the time it takes."""
    delivered: set[Id] = set()
    async with broker_on(MemoryFiles(disk)) as broker:
        clock = broker._clock
        assert isinstance(clock, ManualClock)
        group = await group_on(broker, "g", "t", SETTINGS)
        for _ in range(3):
            clock.advance_us(10_000_000)
            # A lease notices what has run out; it comes after its back-off.
            for _ in range(2):
                while handed := await group.lease("c", 1_000):
                    delivered |= {(h.receipt.partition, offset) for h in handed for offset in h.receipt.offsets}
                clock.advance_us(100)
    return delivered


def run_seed(seed: int, seen: Counter[str]) -> None:
    random = Random(seed)
    for moment in asyncio.run(Workload(seed).run()):
        for disk in (moment.disk.after_kill(), moment.disk.after_power_loss(random)):
            delivered = asyncio.run(delivered_after(disk))
            hint = f"seed {seed}; replay: pytest {__file__} --seed {seed}"
            again = delivered & moment.done
            assert not again, f"acknowledged, and delivered again: {again}; {hint}"
            lost = moment.published - moment.done - moment.unsure - delivered
            assert not lost, f"not acknowledged, and never delivered again: {lost}; {hint}"
            seen["states"] += 1
        seen["done"] += len(moment.done)


def test_no_power_loss_brings_back_what_was_acknowledged_or_forgets_the_rest(
    request: pytest.FixtureRequest, scale: float
) -> None:
    only = request.config.getoption("--seed")
    seen: Counter[str] = Counter()
    for seed in [only] if only is not None else range(max(1, int(SEEDS * scale))):
        run_seed(seed, seen)
    print(dict(seen))
    assert seen["done"] > 0


def _told_before_the_sync(self: Disk, log: Log, done: Synced) -> None:
    asyncio.get_running_loop().call_soon(done, None)


def test_the_simulation_catches_a_sync_told_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Disk, "sync_soon", _told_before_the_sync)
    with pytest.raises(AssertionError, match="delivered again"):
        for seed in range(2, 3 * MUTANT_SEEDS, 3):
            run_seed(seed, Counter())


def test_the_simulation_catches_an_acknowledgement_told_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ack(self: Deliveries, group: str, lease: int, offsets: BitMap64, *, again: bool = False) -> None:
        self._write([self.state(group).ack(lease, offsets)])

    monkeypatch.setattr(Deliveries, "ack", ack)
    with pytest.raises(AssertionError, match="delivered again"):
        for seed in range(MUTANT_SEEDS):
            run_seed(seed, Counter())
