"""Records of partitions that no topic has: those of a large topic, which comes into etcd, and goes, in several steps.

Whoever makes one writes the ids of its partitions down ahead of their records, under a key of its own, and deletes that
key in the very commit by which the topic is there. Whoever deletes one writes down which records are left. So what is
still written down after a while is of no topic: the controller deletes it. Before that it changes the key, on whose
revision all commits of whoever wrote it depend; one that was merely slow can't go on.

Only what is written down is deleted. A record whose topic is missing for another reason may be all that is left of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import msgspec

from penstock.cluster.core import unknown_fields
from penstock.cluster.etcd.store import Item, Put, Store, Won
from penstock.cluster.etcd.view import Known, View
from penstock.cluster.keys import Keys
from penstock.cluster.tombstones import tombstone

log = logging.getLogger("penstock.cluster")

# Much longer than the steps take, of as many partitions as a topic may have.
AFTER_US = 60_000_000
_AT_ONCE = 100


class _Written(msgspec.Struct, frozen=True, omit_defaults=True):
    partitions: tuple[str, ...]
    # So that nobody takes this for what was written first.
    is_given_up: bool = False


def written(partitions: Iterable[str]) -> bytes:
    return msgspec.json.encode(_Written(tuple(partitions)))


class Unclaimed:
    """Made before the view is started."""

    def __init__(
        self, store: Store, view: View, keys: Keys, now_us: Callable[[], int], wall_us: Callable[[], int]
    ) -> None:
        self._store = store
        self._keys = keys
        self._now_us = now_us
        self._wall_us = wall_us
        # As they are, and since when that is known here.
        self._known: dict[str, tuple[Item, int]] = {}
        view.on_change(keys.unclaimed, self._follow)

    def _follow(self, known: Known) -> None:
        if known.now is None:
            self._known.pop(known.key, None)
        else:
            self._known[known.key] = known.now, self._now_us()

    async def clear(self) -> None:
        due = [item for item, since_us in self._known.values() if self._now_us() - since_us >= AFTER_US]
        for item in due:
            await self._delete(item)

    async def _delete(self, item: Item) -> None:
        left, unknown = unknown_fields.decode(item.value, _Written)
        partitions = left.partitions
        given_up = Put(item.key, unknown_fields.encode(_Written(partitions, is_given_up=True), unknown))
        # Nodes may have copies of them by now.
        deleted = tombstone(self._keys, self._keys.name(item.key), partitions, self._wall_us())
        outcome = await self._store.commit({item.key: item.revision}, [given_up, deleted])
        if not isinstance(outcome, Won):
            return
        records = [self._keys.partition(identity) for identity in partitions]
        for at in range(0, len(records), _AT_ONCE):
            await self._store.commit({}, deletes=records[at : at + _AT_ONCE])
        await self._store.commit({item.key: outcome.revision}, deletes=[item.key])
        log.info("%d records of partitions that are of no topic are deleted", len(records))
