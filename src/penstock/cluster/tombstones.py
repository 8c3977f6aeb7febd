"""Partitions that were deleted on purpose.

    <prefix>/deleted/<id>    the ids of the partitions, and when they were deleted: put by the commit that deletes

A node that finds a copy on its disk and no record of the partition can't tell a deleted topic from one that a restored
etcd has forgotten. It deletes a copy only if there is a tombstone. The controller removes a tombstone after a week; a
node that was down for longer keeps its copy, and reports it as quarantined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from penstock.cluster.etcd.store import Put, Store
from penstock.cluster.etcd.view import Known, View
from penstock.cluster.keys import Keys
from penstock.decoding import from_json

KEPT_US = 7 * 86_400_000_000
_AT_ONCE = 100


class _Deleted(msgspec.Struct, frozen=True):
    partitions: tuple[str, ...]
    # By the clock of the node that deleted them.
    at_us: int


def tombstone(keys: Keys, name: str, partitions: Iterable[str], now_us: int) -> Put:
    return Put(keys.deleted + name, msgspec.json.encode(_Deleted(tuple(partitions), now_us)))


class Tombstones:
    """Made before the view is started."""

    def __init__(self, store: Store, view: View, keys: Keys, wall_us: Callable[[], int]) -> None:
        self._store = store
        self._wall_us = wall_us
        self._known: dict[str, tuple[int, _Deleted]] = {}
        self._partitions: dict[str, str] = {}
        view.on_change(keys.deleted, self._follow)

    def _follow(self, known: Known) -> None:
        _, before = self._known.pop(known.key, (0, None))
        for identity in () if before is None else before.partitions:
            self._partitions.pop(identity, None)
        if known.now is not None:
            deleted = from_json(known.now.value, _Deleted)
            self._known[known.key] = known.now.revision, deleted
            self._partitions.update(dict.fromkeys(deleted.partitions, known.key))

    def __contains__(self, identity: str) -> bool:
        return identity in self._partitions

    async def clear(self) -> None:
        """By the controller."""
        before_us = self._wall_us() - KEPT_US
        old = {key: revision for key, (revision, deleted) in self._known.items() if deleted.at_us < before_us}
        some = dict(list(old.items())[:_AT_ONCE])
        if some:
            await self._store.commit(some, deletes=list(some))
