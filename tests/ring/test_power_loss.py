"""Power is lost at every storage operation of a journal, and whatever the disk kept, each job is as it was at the last
flush, or as the flush that was cut short would have it.

A seeded workload runs on a ring with a journal in small segments: puts, takes, answers of all kinds, flushes that move
jobs and clear segments away, closes and kills. Ahead of every operation on the disk the state is kept. From each kept
state several power losses are rolled; from some, recovery itself is cut short by another one.

Replay one seed: pytest tests/ring/test_power_loss.py --seed N
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.ring import JobBatch, Ring
from penstock.ring.journal import Journal
from penstock.ring.store import Store
from penstock.storage.files import Files
from penstock.testing import FaultyFiles, MemoryDisk, MemoryFiles, Operation
from ring_support import QuietRing, Time, killed

STATES = 6_000
STEPS = 60
LOSSES_PER_STATE = 4
MAX_ATTEMPTS = 3
ENDED = "the process ended while it was being worked on"

# ("new",), ("held", attempts), ("retry", attempts, due µs), ("failed", attempts, reason); gone if there is none.
State = tuple[Any, ...]


class PowerLoss(BaseException):
    """Not an error of ours: nothing may catch it."""


@dataclass
class Moment:
    disk: MemoryDisk
    flushed: dict[int, State]
    current: dict[int, State]
    now_us: int
    during: str
    operation: Operation


class BusyRing(QuietRing):
    """Moves jobs as soon as a segment is not full of them."""

    _journal_options = {"segment_bytes_max": 4096, "compact_bytes_min": 1}  # noqa: RUF012


@pytest.fixture(autouse=True)
def moves_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.ring.store.COMPACT_FACTOR", 1)


def ring_on(files: Files, time: Time, **settings: Any) -> Ring:
    return BusyRing(
        settings.pop("capacity", 10_000),
        journal=files,
        clock=time,
        steady=time.steady,
        max_attempts=MAX_ATTEMPTS,
        **settings,
    )


class Workload:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = MemoryDisk()
        self.time = Time()
        self.settings: dict[str, Any] = {}
        if seed % 3 == 0:
            self.settings = {"capacity": 40, "when_full": "drop_oldest"}
        self.flushed: dict[int, State] = {}
        self.current: dict[int, State] = {}
        self.moments: list[Moment] = []
        self.during = "open"
        self.next_job = 0
        self.held: list[JobBatch] = []
        self.ring = self.open()

    def open(self) -> Ring:
        return ring_on(FaultyFiles(MemoryFiles(self.disk), before=self.keep), self.time, **self.settings)

    def keep(self, operation: Operation) -> None:
        if operation.kind not in ("read", "open"):
            copies = dict(self.flushed), dict(self.current)
            self.moments.append(Moment(self.disk.copy(), *copies, self.time.now_us(), self.during, operation))

    def run(self) -> list[Moment]:
        steps = [self.put] * 5 + [self.take] * 4 + [self.answer] * 8 + [self.flush] * 4
        steps += [self.redrive, self.clear_failed, self.close, self.kill]
        for _ in range(STEPS):
            step = self.random.choice(steps)
            self.during = step.__name__
            step()
            self.time.advance_us(self.random.choice((0, 1_000, 2_000_000)))
        self.during = "close"
        self.close()
        self.ring.close()
        return self.moments

    def put(self) -> None:
        jobs = []
        for _ in range(self.random.choice((1, 1, 3, 15))):
            jobs.append([self.next_job, "x" * self.random.choice((0, 30, 400))])
            self.current[self.next_job] = ("new",)
            self.next_job += 1
        self.ring.put_many(jobs)
        if self.settings:
            left = {job[0] for job in self.ring._waiting} | {retry.job[0] for retry in self.ring._heap}
            for number, state in list(self.current.items()):
                if state[0] in ("new", "retry") and number not in left:
                    del self.current[number]

    def take(self) -> None:
        batch = self.ring.take(self.random.choice((1, 4, 30)), wait=0)
        for (number, _), attempts in zip(batch, batch.attempts, strict=True):
            self.current[number] = ("held", attempts)
        if batch:
            self.held.append(batch)

    def answer(self) -> None:
        if not self.held:
            return
        batch = self.random.choice(self.held)
        left = [at for at in range(len(batch)) if at not in (batch._settled or ())]
        some = left if self.random.random() < 0.6 else self.random.sample(left, self.random.randint(1, len(left)))
        jobs = [batch[at] for at in some]
        kind = self.random.choice(("ack", "ack", "ack", "retry", "fail"))
        if kind == "ack":
            batch.ack(jobs if len(some) < len(left) else None)
            for number, _ in jobs:
                del self.current[number]
        elif kind == "retry":
            delay = self.random.choice((0, 1, 10))
            batch.retry(jobs, f"{delay}s", reason="again")
            for at in some:
                attempts, number = batch.attempts[at], batch[at][0]
                if attempts >= MAX_ATTEMPTS:
                    self.current[number] = ("failed", attempts, "again")
                else:
                    self.current[number] = ("retry", attempts, self.time.now_us() + delay * 1_000_000)
        else:
            batch.fail(jobs, "no \udcff")
            for at in some:
                self.current[batch[at][0]] = ("failed", batch.attempts[at], "no ?")
        if batch.is_settled:
            self.held.remove(batch)

    def flush(self) -> None:
        self.ring.flush()
        self.flushed = dict(self.current)

    def redrive(self) -> None:
        count = self.random.choice((None, 1, 3))
        again = self.ring.failed()[:count]
        assert self.ring.redrive(count) == len(again)
        for failed in again:
            self.current[failed.job[0]] = ("retry", 0, self.time.now_us())

    def clear_failed(self) -> None:
        self.ring.clear_failed()
        self.current = {number: state for number, state in self.current.items() if state[0] != "failed"}

    def close(self) -> None:
        self.ring.close()
        self.flushed = dict(self.current)
        self.come_back()

    def kill(self) -> None:
        """Nothing is being written, so what is found is what was flushed, to the last job."""
        killed(self.ring)
        self.disk.is_locked = False
        self.current = dict(self.flushed)
        self.come_back()

    def come_back(self) -> None:
        self.held.clear()
        self.ring = self.open()
        now_us = self.time.now_us()
        seen = seen_in(self.ring, now_us)
        expected = {number: recovered(state, now_us) for number, state in self.current.items()}
        assert seen == expected, f"came back as {seen}, not as {expected}"
        for number, state in self.current.items():
            if state[0] == "held" and state[1] >= MAX_ATTEMPTS:
                self.current[number] = ("failed", state[1], ENDED)


def recovered(state: State | None, now_us: int) -> State | None:
    """What a restart makes of it."""
    if state is None or state[0] in ("new", "failed"):
        return state
    if state[0] == "held":
        return ("failed", state[1], ENDED) if state[1] >= MAX_ATTEMPTS else ("retry", state[1], now_us)
    return ("retry", state[1], max(state[2], now_us))


def seen_in(ring: Ring, now_us: int) -> dict[int, State]:
    fresh = [job[0] for job in ring._waiting]
    assert fresh == sorted(fresh), "out of order"
    seen: dict[int, State] = dict.fromkeys(fresh, ("new",))
    now_s = ring._steady()
    for retry in ring._heap:
        seen[retry.job[0]] = ("retry", retry.attempts, now_us + round((retry.due_s - now_s) * 1e6))
    for failed in ring.failed():
        seen[failed.job[0]] = ("failed", failed.attempts, failed.reason)
    assert len(seen) == len(ring) + len(ring.failed()), "a job is there twice"
    return seen


def check(disk: MemoryDisk, moment: Moment) -> None:
    time = Time()
    time.advance_us(moment.now_us - time.now_us())
    ring = ring_on(MemoryFiles(disk), time)
    seen = seen_in(ring, moment.now_us)
    for number in moment.flushed.keys() | moment.current.keys() | seen.keys():
        before, now = (recovered(state.get(number), moment.now_us) for state in (moment.flushed, moment.current))
        assert seen.get(number) in (before, now), f"job {number} is {seen.get(number)}, was {before}, to be {now}"
    # It goes on from there.
    time.advance("1h")
    while batch := ring.take(10, wait=0):
        batch.ack()
    ring.put([-1, "after"])
    ring.clear_failed()
    ring.close()
    again = ring_on(MemoryFiles(disk), time)
    assert seen_in(again, time.now_us()) == {-1: ("new",)}
    again.close()


def cut_recovery_short(disk: MemoryDisk, random: Random) -> MemoryDisk:
    left = random.randint(0, 12)

    def before(operation: Operation) -> None:
        nonlocal left
        left -= operation.kind not in ("read", "open")
        if left < 0:
            raise PowerLoss

    try:
        killed(ring_on(FaultyFiles(MemoryFiles(disk), before), Time()))
    except PowerLoss:
        pass
    return disk.after_power_loss(random)


def run_seed(seed: int, seen: Counter[str]) -> int:
    random = Random(seed)
    states = 0
    for moment in Workload(seed).run():
        for loss in range(LOSSES_PER_STATE):
            disk = moment.disk.after_kill() if loss == 0 else moment.disk.after_power_loss(random)
            if random.random() < 0.2:
                disk = cut_recovery_short(disk, random)
                seen["recovery cut short"] += 1
            try:
                check(disk, moment)
            except (AssertionError, PenstockError) as error:
                place = f"during {moment.during}, ahead of {moment.operation.kind} {moment.operation.name}"
                raise AssertionError(
                    f"seed {seed}, {place}: {error!r}\nreplay: pytest {__file__} --seed {seed}"
                ) from error
            states += 1
        seen[moment.during] += 1
        seen[moment.operation.kind] += 1
    return states


def test_no_power_loss_loses_a_flushed_job_or_brings_back_one_that_is_done(
    request: pytest.FixtureRequest, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    move_oldest = Store._move_oldest

    def move(store: Store, *given: Any) -> None:
        move_oldest(store, *given)
        seen["jobs moved"] += 1

    monkeypatch.setattr(Store, "_move_oldest", move)
    seen: Counter[str] = Counter()
    only = request.config.getoption("--seed")
    if only is not None:
        run_seed(only, seen)
        return
    states = seed = 0
    while states < STATES * scale:
        states += run_seed(seed, seen)
        seed += 1
    print(f"{states} states from {seed} seeds, crash points: {dict(seen)}")
    assert seen["flush"]
    assert seen["close"]
    # Segments were cleared away, and the crash came in the middle of it.
    assert seen["jobs moved"]
    assert seen["remove"]
    assert seen["recovery cut short"]


# --- would it notice? ----------------------------------------------------------------------------------------


def _mutant_a_flush_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    original = Store.append

    def append(store: Store, framed: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(store.log, "sync", lambda: None, raising=False)
            original(store, framed)

    patch.setattr(Store, "append", append)


def _mutant_states_are_left_behind_by_a_move(patch: pytest.MonkeyPatch) -> None:
    original = Journal._look
    patch.setattr(Journal, "_look", lambda journal, numbers: (original(journal, numbers)[0], []))


def _mutant_jobs_are_left_behind_by_a_move(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Store, "_left_of", lambda *_: {})


def _mutant_a_segment_goes_before_its_jobs_are_moved(patch: pytest.MonkeyPatch) -> None:
    original = Store._move_oldest

    def move(store: Store, *given: Any) -> None:
        jobs = store._left_of(list(store._stored), store.log.end_offset)
        store.log.delete_prefix(store.log.segments[1].base_offset)
        patch.setattr(Store, "_left_of", lambda *_: jobs)
        store.log._segments = store.log._segments[:1] + store.log._segments
        original(store, *given)

    patch.setattr(Store, "_move_oldest", move)


def _mutant_what_is_done_is_not_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("penstock.ring.records.DONE", b"T")


def _mutant_held_jobs_are_not_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("penstock.ring.records.HELD", b"D")


MUTANTS = [value for name, value in list(globals().items()) if name.startswith("_mutant_")]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__.removeprefix("_mutant_"))
def test_the_simulation_catches_a_broken_build(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    # For what it breaks, not because the mutant itself is broken.
    with pytest.raises(AssertionError, match=r"job \d+ is|came back as"):
        for seed in range(40):
            run_seed(seed, Counter())
