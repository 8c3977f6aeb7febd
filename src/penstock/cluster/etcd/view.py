"""Everything under a prefix as last known here: by a watch, and by a full read from time to time.

    _items      what is there                             each key with the revision of its last change
    _deleted    what was deleted since the last full read
    _read       the revision of the last full read: for keys in neither of the two, all that is known
    revision    nothing up to here is unknown, as far as watch and reads tell the truth

A key never goes back: what is older than what is known of that key is left alone, whether it comes from a watch or from
a read that took long. A full read finds what a watch has not told, key by key. The watch may just be on its way to tell
it; one that has not after a second is taken for dead, and made anew.

What can't be if revisions only go up (a key that was changed at 9 and is at 7, at a later revision of the store) means
that etcd was set back. Then compare-and-swap is worth nothing, and the view ends by `EtcdReplaced`; so it does by any
other error that does not go away by itself, or that a callback raises. Not noticed: an etcd that was set back and has
since come past all that was known here, in other keys only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import NamedTuple

from penstock.cluster.etcd.session import Time
from penstock.cluster.etcd.store import Change, Item, Snapshot, Store
from penstock.errors import EtcdReplaced, EtcdUnavailable, WatchBehind

RECONCILE_US = 10_000_000
_RETRY_US = 500_000
_GRACE_US = 1_000_000
# Until a watch tells of what was committed, mostly some milliseconds.
_WATCH_S = 1.0


class Known(NamedTuple):
    """A key that has changed: as it was known before, and as it is now."""

    key: str
    before: Item | None
    now: Item | None


Callback = Callable[[Known], None]


class View:
    """`on_change`, then `start`: everything that is there comes as a change from nothing."""

    def __init__(self, store: Store, prefix: str, time: Time, *, reconcile_us: int = RECONCILE_US) -> None:
        self.revision = 0
        self.prefix = prefix
        # When the last full read that came to its end was sent: all that was committed before is known.
        self.read_us: int | None = None
        self._store = store
        self._time = time
        self._reconcile_us = reconcile_us
        self._items: dict[str, Item] = {}
        self._deleted: dict[str, int] = {}
        self._read = 0
        self._callbacks: list[tuple[str, Callback]] = []
        self._moved = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._watch_anew = asyncio.Event()
        # Keys of which a read knew before the watch.
        self._owed: set[str] = set()
        self._failed: asyncio.Future[None] | None = None
        # One full read at a time, and the one that has not begun yet.
        self._reading = asyncio.Lock()
        self._next_read: asyncio.Task[None] | None = None
        self._reads: set[asyncio.Task[None]] = set()

    @property
    def items(self) -> Mapping[str, Item]:
        return MappingProxyType(self._items)

    def get(self, key: str) -> Item | None:
        return self._items.get(key)

    def known_at(self, key: str) -> int:
        """The revision up to which this key is known at least. While it is being told that it was deleted: the one of
        that, or of the read that found so."""
        item = self._items.get(key)
        return max(item.revision if item else 0, self._deleted.get(key, 0), self._read)

    def on_change(self, prefix: str, callback: Callback) -> None:
        """Called for each key with that prefix, after all that changed with it is in the view. It must not wait."""
        self._callbacks.append((prefix, callback))

    async def start(self) -> None:
        """Returns with everything read."""
        self._failed = asyncio.get_running_loop().create_future()
        await self.refresh()
        for work in (self._follow(), self._reconcile()):
            task = asyncio.get_running_loop().create_task(work)
            task.add_done_callback(self._ended)
            self._tasks.append(task)

    async def failure(self) -> None:
        """Waits until the view can't go on, and raises why; or until it is closed. For whoever relies on it."""
        assert self._failed is not None
        await asyncio.shield(self._failed)

    async def refresh(self) -> None:
        """A full read: all that was committed before the call is known after it. Also for an unknown outcome.

        Callers share a read that begins after all of them have called: a thousand at a time would keep the session from
        etcd.
        """
        if self._next_read is None:
            self._next_read = asyncio.get_running_loop().create_task(self._refresh_in_turn())
            self._reads.add(self._next_read)
            self._next_read.add_done_callback(self._refreshed)
        await asyncio.shield(self._next_read)

    async def _refresh_in_turn(self) -> None:
        async with self._reading:
            self._next_read = None
            await self._refresh()

    def _refreshed(self, read: asyncio.Task[None]) -> None:
        self._reads.discard(read)
        if not read.cancelled():
            # All callers may have been cancelled.
            read.exception()

    async def _refresh(self) -> None:
        sent_us, before = self._time.now_us(), self.revision
        found = await self._store.get(self.prefix)
        if found.revision < before:
            raise EtcdReplaced(
                f"etcd is at revision {found.revision}, and was at {before} before: it was set back, or lost data"
            )
        self._owed.update(self._reconciled(found))
        self.read_us = max(sent_us, self.read_us or sent_us)

    async def reached(self, revision: int) -> None:
        """Waits until the view is there; for one, where a commit of one's own was won. Raises if it never will be."""
        while self.revision < revision:
            if self._failed is not None and self._failed.done():
                self._failed.result()
                raise EtcdUnavailable("the view on etcd was closed here")
            self._moved.clear()
            await self._moved.wait()

    async def shows(self, revision: int) -> None:
        """The same, and the watch may be deaf: then everything is read. To do that each time would be too much."""
        try:
            async with asyncio.timeout(_WATCH_S):
                await self.reached(revision)
        except TimeoutError:
            await self.refresh()

    async def knows(self, prefix: str) -> None:
        """All that was put below it before the call is known after it; what was deleted may not be. Cheaper than a full
        read."""
        found = await self._store.get(prefix)
        await self.shows(max((item.revision for item in found.items.values()), default=0))

    async def close(self) -> None:
        tasks = [*self._tasks, *self._reads]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._failed is not None:
            if not self._failed.done():
                self._failed.set_result(None)
            # Nobody may have asked for it.
            self._failed.exception()
            self._moved.set()

    async def _reconcile(self) -> None:
        pause_us = self._reconcile_us
        while True:
            await self._time.sleep_us(pause_us)
            if self._owed:
                self._watch_anew.set()
            try:
                await self.refresh()
                pause_us = min(_GRACE_US, self._reconcile_us) if self._owed else self._reconcile_us
            except EtcdUnavailable:
                # Where that one did not answer, the watch may be deaf, too.
                self._watch_anew.set()
                pause_us = min(_RETRY_US, self._reconcile_us)

    async def _follow(self) -> None:
        while True:
            self._watch_anew.clear()
            watching = asyncio.ensure_future(self._watch())
            anew = asyncio.ensure_future(self._watch_anew.wait())
            try:
                await asyncio.wait([watching, anew], return_when=asyncio.FIRST_COMPLETED)
            finally:
                watching.cancel()
                anew.cancel()
                await asyncio.wait([watching, anew])
            error = None if watching.cancelled() else watching.exception()
            if isinstance(error, WatchBehind):
                await self._caught_up()
            elif isinstance(error, EtcdUnavailable):
                await self._time.sleep_us(_RETRY_US)
            elif error is not None:
                raise error

    async def _watch(self) -> None:
        self._owed.clear()
        async with aclosing(self._store.watch(self.prefix, self.revision + 1)) as watch:
            async for told in watch:
                self._owed.difference_update(change.key for change in told.changes)
                self._apply([change for change in told.changes if change.revision > self.known_at(change.key)])
                self._move(told.revision)

    async def _caught_up(self) -> None:
        while True:
            try:
                return await self.refresh()
            except EtcdUnavailable:
                await self._time.sleep_us(_RETRY_US)

    def _reconciled(self, found: Snapshot) -> list[str]:
        """The keys of which something was not known yet."""
        changes = []
        for key, item in found.items.items():
            known = self._items.get(key)
            at = known.revision if known else max(self._deleted.get(key, 0), self._read)
            if item.revision > at:
                changes.append(Change(key, item, item.revision))
            elif at <= found.revision and known != item:
                raise EtcdReplaced(
                    f"{key} was known as of revision {at}, and is now as it was at {item.revision}: etcd was set back"
                )
        for key, known in self._items.items():
            if key not in found.items and known.revision <= found.revision:
                changes.append(Change(key, None, found.revision))
        self._apply(changes)
        self._read = found.revision
        self._deleted = {key: at for key, at in self._deleted.items() if at > found.revision}
        self._move(found.revision)
        return [change.key for change in changes]

    def _apply(self, changes: list[Change]) -> None:
        told: dict[str, Known] = {}
        for key, item, revision in changes:
            before = told[key].before if key in told else self._items.get(key)
            if item is None:
                self._items.pop(key, None)
                self._deleted[key] = revision
            else:
                self._items[key] = item
                self._deleted.pop(key, None)
            told[key] = Known(key, before, item)
        try:
            for known in told.values():
                if known.before != known.now:
                    for prefix, callback in self._callbacks:
                        if known.key.startswith(prefix):
                            callback(known)
        except Exception as error:
            # Nobody is told again of what was to be told now, whoever asked for this read.
            self._fail(error)
            raise

    def _move(self, revision: int) -> None:
        self.revision = max(self.revision, revision)
        self._moved.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            error = task.exception()
            assert error is not None, "what a view does has no end of its own"
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        assert self._failed is not None
        if not self._failed.done():
            self._failed.set_exception(error)
            self._moved.set()
