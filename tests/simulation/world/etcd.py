"""etcd on a host of its own: the fake that passes the contract suite, behind the simulated network.

A request takes its time to get there, is carried out there even if its sender is dead by then, and its answer takes its
time to come back. What is lost on the way is found out by waiting.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, TypeVar, cast

from penstock.clock import Clock
from penstock.cluster.etcd import commits
from penstock.cluster.etcd.session import BootTime, Granted, Session
from penstock.cluster.etcd.store import Changes, Lost, Put, Snapshot, Won
from penstock.errors import EtcdUnavailable, OutcomeUnknown
from penstock.testing.fake_etcd import Backup, FakeEtcd
from penstock.testing.time import ManualTime
from simulation.world.loop import Process, WorldLoop
from simulation.world.network import Network

T = TypeVar("T")

HOST = "etcd"
# Each of these: a write to etcd's own disk, and a round among its members.
_COMMIT_US, _READ_US = (500, 5_000), (100, 1_000)
_EXPIRY_US = 250_000
_REQUEST_S = 5.0
# How many states stale reads may return, of as many expiry rounds.
_PAST = 8
LIES = "stale read", "lost change", "false keepalive"


class _Time:
    """etcd's own."""

    def __init__(self, loop: WorldLoop) -> None:
        self._loop = loop
        self.listeners: list[Callable[[], None]] = []

    def now_us(self) -> int:
        return self._loop.now_us

    def on_move(self, listener: Callable[[], None]) -> None:
        self.listeners.append(listener)


class WorldEtcd:
    def __init__(self, loop: WorldLoop, network: Network, seed: str) -> None:
        self.process = Process(loop, HOST, HOST)
        self.network = network
        self.rng = Random(f"etcd {seed}")
        self._time = _Time(loop)
        self.fake = FakeEtcd(cast(ManualTime, self._time))
        # The next so many commits are carried out, and their answers lost.
        self.lost_answers = 0
        # By host: watches report nothing; what has happened meanwhile they report later, or never.
        self.late_watches: set[str] = set()
        self.lossy_watches: set[str] = set()
        # Reads from there may return an earlier state, but no earlier one than the host has seen.
        self.stale_reads: set[str] = set()
        # Keepalives of a lease that is gone are answered as if it were there.
        self.keeps_lost_leases = False
        # What clients got that was late, lost or not true.
        self.counts: Counter[str] = Counter()
        self._past: deque[Backup] = deque(maxlen=_PAST)
        self._expire()

    @property
    def lies(self) -> bool:
        """Whether a client got an answer that was not true."""
        return any(self.counts[kind] for kind in LIES)

    def read(self, prefix: str, host: str, seen: int) -> Snapshot:
        earlier = [past for past in self._past if seen <= past.revision < self.fake.revision]
        if host not in self.stale_reads or not earlier:
            return self.fake.read(prefix)
        self.counts["stale read"] += 1
        past = self.rng.choice(earlier)
        items = {key: item for key, item in sorted(past.items.items()) if key.startswith(prefix)}
        return Snapshot(items, past.revision)

    def keep(self, lease: int, ttl_s: int) -> int:
        left_s = self.fake.keep(lease)
        if left_s == 0 and self.keeps_lost_leases:
            self.counts["false keepalive"] += 1
            return ttl_s
        return left_s

    def _expire(self) -> None:
        if self.stale_reads:
            self._past.append(self.fake.backup())
        for listener in self._time.listeners:
            listener()
        self.process.call_later(_EXPIRY_US, self._expire)

    def reaches(self, source: str, target: str) -> bool:
        return not self.network.is_cut(source, target) and self.network.is_on(source) and self.network.is_on(target)


class WorldStore:
    """The client of one process."""

    def __init__(self, etcd: WorldEtcd, process: Process, clock: Clock) -> None:
        self._etcd = etcd
        self._process = process
        self._clock = clock
        self._is_closed = False
        # The newest revision that this client was shown.
        self._seen = 0

    async def get(self, prefix: str) -> Snapshot:
        commits.check_key(prefix)
        found = await self._ask(lambda: self._etcd.read(prefix, self._process.host, self._seen), _READ_US)
        self._seen = max(self._seen, found.revision)
        return found

    async def commit(
        self, guards: Mapping[str, int], puts: Sequence[Put] = (), deletes: Collection[str] = ()
    ) -> Won | Lost:
        commits.check(guards, puts, deletes)
        commit = partial(self._etcd.fake.commit, guards, puts, deletes)
        try:
            answer = await self._ask(commit, _COMMIT_US)
        except TimeoutError:
            raise OutcomeUnknown("etcd did not answer in time: the change may have been made") from None
        self._seen = max(self._seen, answer.revision)
        return answer

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[Changes]:
        commits.check_watch(prefix, from_revision)
        etcd, host = self._etcd, self._process.host
        await self._ask(lambda: None, _READ_US)
        position = from_revision
        while True:
            more = etcd.fake.happened
            await asyncio.sleep(etcd.network.latency_us(HOST, host) / 1e6)
            if etcd.reaches(HOST, host) and not etcd.process.is_paused and host not in etcd.late_watches:
                etcd.fake.must_be_up()
                found = etcd.fake.since(position, prefix)
                position = max(position, etcd.fake.revision + 1)
                if host in etcd.lossy_watches:
                    etcd.counts["lost change"] += len(found)
                    found = []
                for changes in found:
                    self._seen = max(self._seen, changes.revision)
                    yield changes
                await more.wait()
            else:
                if etcd.fake.since(position, prefix):
                    etcd.counts["late change"] += 1
                # TCP tries again.
                await asyncio.sleep(0.2)

    async def session(self, ttl_s: int) -> Session:
        return await Session.open(_Leases(self), BootTime(self._clock), ttl_s)

    async def close(self) -> None:
        self._is_closed = True

    async def ask(self, work: Callable[[FakeEtcd], T], within_s: float = _REQUEST_S) -> T:
        return await self._ask(partial(work, self._etcd.fake), _COMMIT_US, within_s)

    async def _ask(self, work: Callable[[], T], work_us: tuple[int, int], within_s: float = _REQUEST_S) -> T:
        if self._is_closed:
            raise EtcdUnavailable("the connection to etcd was closed here")
        etcd, process = self._etcd, self._process
        if process.is_dead:
            # It died in this very callback.
            await process.loop.create_future()
        answered: asyncio.Future[T] = process.loop.create_future()

        def answer(result: T | None, error: Exception | None) -> None:
            if not etcd.reaches(HOST, process.host) or answered.done():
                return
            if work_us is _COMMIT_US and etcd.lost_answers:
                etcd.lost_answers -= 1
                etcd.counts["lost answer"] += 1
                return
            if error is not None:
                answered.set_exception(error)
            else:
                answered.set_result(cast(T, result))

        def arrive() -> None:
            if not etcd.reaches(process.host, HOST):
                return
            result: T | None = None
            error: Exception | None = None
            try:
                etcd.fake.must_be_up()
                result = work()
            except Exception as raised:
                error = raised
            etcd.process.call_later(
                etcd.rng.randint(*work_us),
                process.call_later,
                etcd.network.latency_us(HOST, process.host),
                answer,
                result,
                error,
            )

        etcd.process.call_later(etcd.network.latency_us(process.host, HOST), arrive)
        try:
            async with asyncio.timeout(within_s):
                return await answered
        except TimeoutError:
            if work_us is _COMMIT_US:
                raise
            raise EtcdUnavailable("etcd did not answer in time") from None


class _Leases:
    def __init__(self, store: WorldStore) -> None:
        self._store = store

    async def grant(self, ttl_s: int) -> Granted:
        granted: Granted = await self._reached(lambda etcd: etcd.grant(ttl_s))
        self._ttl_s = granted.ttl_s
        return granted

    async def keep(self, lease: int, within_us: int) -> int:
        world = self._store._etcd
        kept: int = await self._reached(lambda etcd: world.keep(lease, self._ttl_s), within_us / 1e6)
        return kept

    async def revoke(self, lease: int) -> None:
        await self._reached(lambda etcd: etcd.revoke(lease))

    async def _reached(self, work: Callable[[FakeEtcd], Any], within_s: float = _REQUEST_S) -> Any:
        try:
            return await self._store.ask(work, within_s)
        except TimeoutError:
            raise EtcdUnavailable("etcd did not answer in time") from None
