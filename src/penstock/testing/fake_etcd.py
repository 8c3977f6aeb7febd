"""etcd in memory, with a clock that moves when told, and faults on request.

    etcd = FakeEtcd(ManualTime())
    store = etcd.store()

    etcd.down = True            nobody answers, and watches break
    etcd.deaf = True            watches live on and tell nothing; those that are made anew later do
    etcd.lose_requests = 1      the next commit is not carried out, and nobody is told
    etcd.lose_answers = 1       the next commit is carried out, and nobody is told
    etcd.compact(revision)      forgets what happened before it
    etcd.expire(lease)          lets go of a lease before its time
    etcd.restore(etcd.backup()) is set back

It passes the same suite as the real one (`tests/contracts`). Not modelled: several members, users, and etcd's own size.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.cluster.etcd import commits
from penstock.cluster.etcd.session import Granted, Session
from penstock.cluster.etcd.store import ABSENT, Change, Changes, Item, Lost, Put, Snapshot, Won
from penstock.errors import EtcdUnavailable, OutcomeUnknown, SessionLost, WatchBehind
from penstock.testing.time import ManualTime

# As etcd with its default election time-out.
TTL_S_MIN = 2


@dataclass(slots=True)
class _Lease:
    ttl_s: int
    ends_us: int
    keys: set[str] = field(default_factory=set)


class Backup(NamedTuple):
    items: dict[str, Item]
    revision: int


class FakeEtcd:
    def __init__(self, time: ManualTime) -> None:
        self.time = time
        self.revision = 1
        self.lose_requests = 0
        self.lose_answers = 0
        self._deaf = False
        self._down = False
        self._items: dict[str, Item] = {}
        self._leases: dict[int, _Lease] = {}
        self._lease_of: dict[str, int] = {}
        self._history: list[Changes] = []
        self._compacted = 0
        # Set when anything has, and then another one takes its place.
        self.happened = asyncio.Event()
        self._next_lease = 1
        time.on_move(self._let_go)

    def store(self) -> FakeStore:
        return FakeStore(self)

    @property
    def deaf(self) -> bool:
        return self._deaf

    @deaf.setter
    def deaf(self, deaf: bool) -> None:
        self._deaf = deaf
        self._stir()

    @property
    def down(self) -> bool:
        return self._down

    @down.setter
    def down(self, down: bool) -> None:
        self._down = down
        self._stir()

    def compact(self, revision: int) -> None:
        self._compacted = max(self._compacted, min(revision, self.revision))
        self._history = [past for past in self._history if past.revision >= self._compacted]

    def expire(self, lease: int) -> None:
        self.revoke(lease)

    def backup(self) -> Backup:
        return Backup(dict(self._items), self.revision)

    def restore(self, backup: Backup) -> None:
        self._items, self.revision = dict(backup.items), backup.revision
        self._history = [past for past in self._history if past.revision <= self.revision]
        self._leases.clear()
        self._lease_of.clear()

    def must_be_up(self) -> None:
        if self._down:
            raise EtcdUnavailable("etcd does not answer (it is down)")

    def read(self, prefix: str) -> Snapshot:
        found = sorted((key, item) for key, item in self._items.items() if key.startswith(prefix))
        return Snapshot(dict(found), self.revision)

    def commit(self, guards: Mapping[str, int], puts: Sequence[Put], deletes: Collection[str]) -> Won | Lost:
        if any(self._at(key) != revision for key, revision in guards.items()):
            return Lost({key: self._items[key] for key in guards if key in self._items}, self.revision)
        for put in puts:
            if put.session is not None and put.session.lease not in self._leases:
                raise SessionLost("the session that a key was to be bound to has run out; nothing was changed")
        revision = self.revision + 1
        items = [Item(put.key, put.value, revision, self._created(put.key, revision)) for put in puts]
        changes = [Change(item.key, item, revision) for item in items]
        changes += [Change(key, None, revision) for key in deletes if key in self._items]
        for put in puts:
            self._unbind(put.key)
            if put.session is not None:
                self._leases[put.session.lease].keys.add(put.key)
                self._lease_of[put.key] = put.session.lease
        self._happen(changes)
        return Won(self.revision)

    def _created(self, key: str, revision: int) -> int:
        return self._items[key].created if key in self._items else revision

    def since(self, revision: int, prefix: str) -> list[Changes]:
        if revision < self._compacted:
            raise WatchBehind(
                f"etcd has forgotten what happened before revision {self._compacted}", compacted=self._compacted
            )
        found = []
        for past in self._history:
            if past.revision >= revision:
                changes = [change for change in past.changes if change.key.startswith(prefix)]
                if changes:
                    found.append(Changes(changes, past.revision))
        return found

    def grant(self, ttl_s: int) -> Granted:
        lease, self._next_lease = self._next_lease, self._next_lease + 1
        ttl_s = max(ttl_s, TTL_S_MIN)
        self._leases[lease] = _Lease(ttl_s, self.time.now_us() + ttl_s * 1_000_000)
        return Granted(lease, ttl_s)

    def keep(self, lease: int) -> int:
        held = self._leases.get(lease)
        if held is None:
            return 0
        held.ends_us = self.time.now_us() + held.ttl_s * 1_000_000
        return held.ttl_s

    def revoke(self, lease: int) -> None:
        held = self._leases.pop(lease, None)
        if held is not None:
            self._happen([Change(key, None, self.revision + 1) for key in sorted(held.keys)])

    def _let_go(self) -> None:
        """Of leases that have run out. One that is down keeps them, and gives them their full time when it is back."""
        for lease, held in list(self._leases.items()):
            if self._down:
                held.ends_us = self.time.now_us() + held.ttl_s * 1_000_000
            elif held.ends_us <= self.time.now_us():
                self.revoke(lease)

    def _at(self, key: str) -> int:
        return self._items[key].revision if key in self._items else ABSENT

    def _unbind(self, key: str) -> None:
        held = self._leases.get(self._lease_of.pop(key, 0))
        if held is not None:
            held.keys.discard(key)

    def _happen(self, changes: list[Change]) -> None:
        if not changes:
            return
        self.revision += 1
        for change in changes:
            if change.item is None:
                self._items.pop(change.key)
                self._unbind(change.key)
            else:
                self._items[change.key] = change.item
        self._history.append(Changes(changes, self.revision))
        self._stir()

    def _stir(self) -> None:
        """Wakes every watch."""
        self.happened.set()
        self.happened = asyncio.Event()


class FakeStore:
    """One client of it."""

    def __init__(self, etcd: FakeEtcd) -> None:
        self._etcd = etcd
        self._closed = False

    async def get(self, prefix: str) -> Snapshot:
        commits.check_key(prefix)
        await self._reach()
        return self._etcd.read(prefix)

    async def commit(
        self, guards: Mapping[str, int], puts: Sequence[Put] = (), deletes: Collection[str] = ()
    ) -> Won | Lost:
        commits.check(guards, puts, deletes)
        await self._reach()
        if self._etcd.lose_requests:
            self._etcd.lose_requests -= 1
            raise OutcomeUnknown("a change was sent to etcd, and lost")
        answer = self._etcd.commit(guards, puts, deletes)
        if self._etcd.lose_answers:
            self._etcd.lose_answers -= 1
            raise OutcomeUnknown("a change was sent to etcd, and the answer was lost")
        return answer

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[Changes]:
        commits.check_watch(prefix, from_revision)
        await self._reach()
        position, deaf = from_revision, False
        while True:
            deaf = deaf or self._etcd.deaf
            found = [] if deaf else self._etcd.since(position, prefix)
            position = max(position, self._etcd.revision + 1)
            more = self._etcd.happened
            for changes in found:
                yield changes
            await more.wait()
            await self._reach()

    async def session(self, ttl_s: int) -> Session:
        return await Session.open(_FakeLeases(self), self._etcd.time, ttl_s)

    async def close(self) -> None:
        self._closed = True

    async def reach(self) -> FakeEtcd:
        await self._reach()
        return self._etcd

    async def _reach(self) -> None:
        await asyncio.sleep(0)
        if self._closed:
            raise EtcdUnavailable("the connection to etcd was closed here")
        self._etcd.must_be_up()


class _FakeLeases:
    def __init__(self, store: FakeStore) -> None:
        self._store = store

    async def grant(self, ttl_s: int) -> Granted:
        return (await self._store.reach()).grant(ttl_s)

    async def keep(self, lease: int, within_us: int) -> int:
        return (await self._store.reach()).keep(lease)

    async def revoke(self, lease: int) -> None:
        (await self._store.reach()).revoke(lease)
