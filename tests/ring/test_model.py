"""The ring against a model of it that fits on a page: whatever is done in whatever order, both say the same."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.errors import RingFull
from penstock.ring import JobBatch, Ring
from penstock.testing import MemoryFiles
from ring_support import Time, killed, quiet_ring, ring_at

MAX_ATTEMPTS, FAILED_MAX = 3, 4
BACKOFF_US = {1: 2_000_000, 2: 6_000_000}


@dataclass
class Again:
    due_us: int
    order: int
    job: int
    attempts: int


@dataclass
class Model:
    capacity: int
    when_full: str
    waiting: list[int] = field(default_factory=list)
    retries: list[Again] = field(default_factory=list)
    # Attempts by job.
    held: dict[int, int] = field(default_factory=dict)
    # With the time, by which a restart sorts them.
    failed: list[tuple[int, int, str, int]] = field(default_factory=list)
    orders: int = 0
    dropped: int = 0
    failed_dropped: int = 0

    @property
    def room(self) -> int:
        return self.capacity - len(self.waiting) - len(self.retries)

    def put(self, jobs: list[int]) -> int:
        """How many went in."""
        if len(jobs) > max(self.room, 0) and self.when_full == "reject":
            return 0
        if len(jobs) > max(self.room, 0) and self.when_full == "drop_oldest":
            kept = jobs[-self.capacity :]
            self.dropped += len(jobs) - len(kept)
            while self.room < len(kept):
                self.dropped += 1
                if self.waiting:
                    self.waiting.pop(0)
                else:
                    self.retries.remove(min(self.retries, key=lambda again: again.order))
            self.waiting += kept
            return len(jobs)
        count = min(max(self.room, 0), len(jobs))
        self.waiting += jobs[:count]
        return count

    def take(self, count: int, now_us: int) -> list[tuple[int, int]]:
        due = sorted((a for a in self.retries if a.due_us <= now_us), key=lambda again: (again.due_us, again.order))
        taken = [(again.job, again.attempts + 1) for again in due[:count]]
        for again in due[:count]:
            self.retries.remove(again)
        while self.waiting and len(taken) < count:
            taken.append((self.waiting.pop(0), 1))
        self.held.update(taken)
        return taken

    def again(self, job: int, attempts: int, due_us: int) -> None:
        self.orders += 1
        self.retries.append(Again(due_us, self.orders, job, attempts))

    def retry(self, job: int, now_us: int, delay_us: int | None, reason: str) -> None:
        attempts = self.held.pop(job)
        if attempts >= MAX_ATTEMPTS:
            self.fail(job, attempts, reason, now_us)
        else:
            self.again(job, attempts, now_us + (BACKOFF_US[attempts] if delay_us is None else delay_us))

    def fail(self, job: int, attempts: int, reason: str, now_us: int) -> None:
        self.failed.append((job, attempts, reason, now_us))
        if len(self.failed) > FAILED_MAX:
            self.failed.pop(0)
            self.failed_dropped += 1

    def restart(self, now_us: int) -> None:
        """What was held has been tried, and is due before all others, in the order it was put."""
        tried = [(again.due_us, again.job, again.attempts) for again in self.retries]
        self.retries.clear()
        dead = []
        for job, attempts in self.held.items():
            if attempts >= MAX_ATTEMPTS:
                dead.append((job, attempts))
            else:
                tried.append((0, job, attempts))
        self.held.clear()
        self.failed_dropped = self.dropped = 0
        self.failed.sort(key=lambda failed: (failed[3], failed[0]))
        for job, attempts in sorted(dead):
            self.fail(job, attempts, "the process ended while it was being worked on", now_us)
        for due_us, job, attempts in sorted(tried):
            self.again(job, attempts, due_us)


class Rings(RuleBasedStateMachine):
    """In memory; see `JournaledRings` for restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.time = Time()
        self.next_job = 0
        self.batches: list[JobBatch] = []

    @initialize(capacity=st.integers(1, 8), when_full=st.sampled_from(["block", "reject", "drop_oldest"]))
    def open(self, capacity: int, when_full: str) -> None:
        self.settings: dict[str, Any] = {
            "capacity": capacity,
            "when_full": when_full,
            "max_attempts": MAX_ATTEMPTS,
            "failed_max": FAILED_MAX,
            "backoff": {"initial": "2s", "factor": 3},
        }
        self.model = Model(capacity, when_full)
        self.ring = self.opened()

    def opened(self) -> Ring:
        return ring_at(self.time, **self.settings)

    @rule(count=st.integers(0, 12))
    def put(self, count: int) -> None:
        jobs = list(range(self.next_job, self.next_job + count))
        self.next_job += count
        put = self.model.put(jobs)
        if put == count:
            self.ring.put_many(jobs)
        else:
            with pytest.raises(RingFull) as caught:
                self.ring.put_many(jobs, wait=0)
            assert caught.value.details["put"] == put

    @rule()
    def put_one(self) -> None:
        self.next_job += 1
        if self.model.put([self.next_job - 1]):
            self.ring.put(self.next_job - 1)
        else:
            with pytest.raises(RingFull):
                self.ring.put(self.next_job - 1, wait=0)

    @rule(count=st.integers(1, 5))
    def take(self, count: int) -> None:
        expected = self.model.take(count, self.time.now_us())
        # Without a wait if there is something: that is the quick way.
        batch = self.ring.take(count) if expected else self.ring.take(count, wait=0)
        assert list(zip(batch, batch.attempts, strict=True)) == expected
        if batch:
            self.batches.append(batch)

    def some(self, data: st.DataObject) -> tuple[JobBatch, list[int] | None, list[int]]:
        batch = data.draw(st.sampled_from(self.batches))
        left = [job for at, job in enumerate(batch.jobs) if at not in (batch._settled or ())]
        jobs = data.draw(st.none() | st.lists(st.sampled_from(left), unique=True))
        return batch, jobs, left if jobs is None else jobs

    def settled(self) -> None:
        self.batches = [batch for batch in self.batches if not batch.is_settled]

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        batch, given, jobs = self.some(data)
        batch.ack(given)
        for job in jobs:
            del self.model.held[job]
        self.settled()

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), delay=st.sampled_from([None, 0, 1, 5]))
    def retry(self, data: st.DataObject, delay: int | None) -> None:
        batch, given, jobs = self.some(data)
        batch.retry(given, None if delay is None else f"{delay}s", reason="again")
        for job in jobs:
            self.model.retry(job, self.time.now_us(), None if delay is None else delay * 1_000_000, "again")
        self.settled()

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        batch, given, jobs = self.some(data)
        batch.fail(given, "bad")
        for job in jobs:
            self.model.fail(job, self.model.held.pop(job), "bad", self.time.now_us())
        self.settled()

    @rule(count=st.none() | st.integers(0, 3))
    def redrive(self, count: int | None) -> None:
        again = self.model.failed[:count]
        del self.model.failed[: len(again)]
        for job, *_ in again:
            self.model.again(job, 0, self.time.now_us())
        assert self.ring.redrive(count) == len(again)

    @rule()
    def clear_failed(self) -> None:
        assert self.ring.clear_failed() == len(self.model.failed)
        self.model.failed.clear()

    @rule(seconds=st.sampled_from([1, 2, 10]))
    def later(self, seconds: int) -> None:
        self.time.advance_us(seconds * 1_000_000)

    @invariant()
    def both_say_the_same(self) -> None:
        model, stats = self.model, self.ring.stats()
        assert (stats.waiting, stats.delayed) == (len(model.waiting), len(model.retries))
        assert (stats.in_flight, stats.failed) == (len(model.held), len(model.failed))
        assert (stats.dropped, stats.failed_dropped) == (model.dropped, model.failed_dropped)
        failed = [(failed.job, failed.attempts, failed.reason) for failed in self.ring.failed()]
        assert failed == [known[:3] for known in model.failed]
        is_idle = not (model.waiting or model.retries or model.held)
        assert self.ring.join(wait=0) is is_idle

    def teardown(self) -> None:
        if hasattr(self, "ring"):
            self.ring.close()


class JournaledRings(Rings):
    """With a journal that is written when told, and a process that ends in either way."""

    def opened(self) -> Ring:
        self.files = MemoryFiles()
        self.flushed = deepcopy(self.model)
        return quiet_ring(self.files, self.time, **self.settings)

    @rule()
    def flush(self) -> None:
        self.ring.flush()
        self.flushed = deepcopy(self.model)

    @rule()
    def close(self) -> None:
        self.ring.close()
        self.come_back(self.model)

    @rule()
    def kill(self) -> None:
        killed(self.ring)
        self.files = MemoryFiles(self.files.disk.after_kill())
        self.come_back(self.flushed)

    def come_back(self, model: Model) -> None:
        self.batches.clear()
        self.model = deepcopy(model)
        self.model.restart(self.time.now_us())
        self.ring = quiet_ring(self.files, self.time, **self.settings)
        self.flushed = deepcopy(model)


TestRing = Rings.TestCase
TestRing.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestJournaledRing = JournaledRings.TestCase
TestJournaledRing.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
