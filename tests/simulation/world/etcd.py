"""etcd on a host of its own: the fake that passes the contract suite, behind the simulated network.

A request takes its time to get there, is carried out there even if its sender is dead by then, and its answer takes its
time to come back. What is lost on the way is found out by waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, TypeVar, cast

from penstock.clock import Clock
from penstock.cluster.etcd import commits
from penstock.cluster.etcd.session import BootTime, Granted, Session
from penstock.cluster.etcd.store import Changes, Lost, Put, Snapshot, Won
from penstock.errors import EtcdUnavailable, OutcomeUnknown
from penstock.testing.fake_etcd import FakeEtcd
from penstock.testing.time import ManualTime
from simulation.world.loop import Process, WorldLoop
from simulation.world.network import Network

T = TypeVar("T")

HOST = "etcd"
# Each of these: a write to etcd's own disk, and a round among its members.
_COMMIT_US, _READ_US = (500, 5_000), (100, 1_000)
_EXPIRY_US = 250_000
_REQUEST_S = 5.0


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
        # Watches say nothing; what has happened meanwhile is told later.
        self.is_deaf = False
        # How often an answer was not true.
        self.lies = 0
        self._expire()

    def _expire(self) -> None:
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

    async def get(self, prefix: str) -> Snapshot:
        commits.check_key(prefix)
        return await self._ask(partial(self._etcd.fake.read, prefix), _READ_US)

    async def commit(
        self, guards: Mapping[str, int], puts: Sequence[Put] = (), deletes: Collection[str] = ()
    ) -> Won | Lost:
        commits.check(guards, puts, deletes)
        commit = partial(self._etcd.fake.commit, guards, puts, deletes)
        try:
            return await self._ask(commit, _COMMIT_US)
        except TimeoutError:
            raise OutcomeUnknown("etcd did not answer in time: the change may have been made") from None

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[Changes]:
        commits.check_watch(prefix, from_revision)
        etcd, host = self._etcd, self._process.host
        await self._ask(lambda: None, _READ_US)
        position = from_revision
        while True:
            more = etcd.fake.happened
            await asyncio.sleep(etcd.network.latency_us(HOST, host) / 1e6)
            if etcd.reaches(HOST, host) and not etcd.process.is_paused and not etcd.is_deaf:
                found = etcd.fake.since(position, prefix)
                position = max(position, etcd.fake.revision + 1)
                for changes in found:
                    yield changes
                await more.wait()
            else:
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
        return await self._reached(lambda etcd: etcd.grant(ttl_s))

    async def keep(self, lease: int, within_us: int) -> int:
        return await self._reached(lambda etcd: etcd.keep(lease), within_us / 1e6)

    async def revoke(self, lease: int) -> None:
        await self._reached(lambda etcd: etcd.revoke(lease))

    async def _reached(self, work: Callable[[FakeEtcd], Any], within_s: float = _REQUEST_S) -> Any:
        try:
            return await self._store.ask(work, within_s)
        except TimeoutError:
            raise EtcdUnavailable("etcd did not answer in time") from None
