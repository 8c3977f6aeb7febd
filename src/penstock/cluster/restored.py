"""An etcd that was set back to a backup: its records may be older than the copies on this disk.

    file "seen" in the data directory: magic "PNS", version 1 (4 bytes) · CRC-32C of the rest (4 bytes) · JSON
    <prefix>/restored          how often that was found so, the generation; missing: 0

A node writes down the newest revision of etcd that it has seen, and whether it stopped because etcd was replaced. At a
start with an older etcd, or after such a stop, it begins another generation: each partition loses its leader, and its
epoch goes up by far more than there were elections since the backup. So no epoch is ever used twice, and an epoch tells
its generation (`record.generation_of`). From then on:

- a copy of an earlier generation that its leader's log does not go on from is quarantined, and not cut off;
- a copy of an earlier generation, or of a later epoch than the record, is not deleted because it was moved away;
- a copy of a partition without a record is deleted only if there is a tombstone.

Not noticed: an etcd that was set back while no node was running, and has come past all that this node has seen before
the node starts, unless a copy here is of a later epoch than its record.
"""

from __future__ import annotations

import logging

import msgspec

from penstock.broker.events import HISTORY_SHIFT
from penstock.cluster.core.record import encode, generation_of
from penstock.cluster.etcd.store import ABSENT, Lost, Put, Store
from penstock.cluster.etcd.view import View
from penstock.cluster.keys import Keys
from penstock.cluster.partitions import Partitions
from penstock.decoding import from_json
from penstock.storage.checked import read_checked, write_checked
from penstock.storage.files import Files

log = logging.getLogger("penstock.cluster")

NAME = "seen"
_MAGIC = b"PNS\x01"
_AT_ONCE = 100


class Seen(msgspec.Struct, frozen=True):
    revision: int = 0
    generation: int = 0
    # The node stopped by `EtcdReplaced`. Etcd may be at a later revision now: a backup can be restored so.
    was_replaced: bool = False


class _Restored(msgspec.Struct, frozen=True):
    generation: int


def read_seen(files: Files) -> Seen:
    body = read_checked(files, NAME, _MAGIC, "newest revision of etcd")
    return Seen() if body is None else from_json(body, Seen)


def write_seen(files: Files, seen: Seen) -> None:
    write_checked(files, NAME, _MAGIC, msgspec.json.encode(seen))


def generation_in(view: View, keys: Keys) -> int:
    item = view.get(keys.restored)
    return 0 if item is None else from_json(item.value, _Restored).generation


class Restored:
    def __init__(self, store: Store, view: View, keys: Keys, partitions: Partitions) -> None:
        self._store = store
        self._view = view
        self._keys = keys
        self._partitions = partitions

    @property
    def generation(self) -> int:
        return generation_in(self._view, self._keys)

    def version(self, revision: int) -> int:
        """What clients know that revision by. Later ones are larger, also of an etcd that was set back in between."""
        return (self.generation << HISTORY_SHIFT) + revision

    def now(self, *, was_replaced: bool = False) -> Seen:
        return Seen(self._view.revision, self.generation, was_replaced)

    async def check(self, seen: Seen) -> None:
        """Begin another generation if etcd is older than what this node has seen, and no other node has done so."""
        begun = max((generation_of(placed.record.epoch) for _, placed in self._partitions.items()), default=0)
        if begun > self.generation:
            # A node was interrupted while it fenced partitions. Its own commits may have brought etcd past `seen`.
            await self.begin(begun)
        if self._is_older(seen):
            # Surely by the newest that there is.
            await self._view.refresh()
        if self._is_older(seen):
            log.error(
                "etcd was set back to a backup%s: it is at revision %d, and this node has seen revision %d. Copies "
                "with more than its records know are quarantined: see `penstock cluster status`",
                " while this node ran" if seen.was_replaced else "",
                self._view.revision,
                seen.revision,
            )
            await self.begin(max(self.generation, seen.generation) + 1)

    def _is_older(self, seen: Seen) -> bool:
        """Return whether etcd is older than what this node has seen, and no generation was begun since."""
        if self.generation == seen.generation:
            return seen.was_replaced or self._view.revision < seen.revision
        return self.generation < seen.generation

    async def begin(self, generation: int) -> None:
        """Remove the leader of every partition: each next epoch is of that generation."""
        while self.generation < generation:
            old = [each for each in self._partitions.items() if generation_of(each[1].record.epoch) < generation]
            for at in range(0, len(old), _AT_ONCE):
                keyed = [(self._keys.partition(identity), placed) for identity, placed in old[at : at + _AT_ONCE]]
                puts = [Put(key, encode(placed.record.fenced(generation))) for key, placed in keyed]
                await self._store.commit({key: placed.revision for key, placed in keyed}, puts)
            await self._view.refresh()
            if any(generation_of(placed.record.epoch) < generation for _, placed in self._partitions.items()):
                # Somebody else has changed a record at the same time.
                continue
            item = self._view.get(self._keys.restored)
            guards = {self._keys.restored: ABSENT if item is None else item.revision}
            put = Put(self._keys.restored, msgspec.json.encode(_Restored(generation)))
            if isinstance(await self._store.commit(guards, [put]), Lost):
                log.info("another node has begun a generation of epochs at the same time")
            await self._view.refresh()
