"""The port to the store of the cluster's metadata: keys with values, each with the revision of its last change.

The store counts one revision up with every commit that changes something, and never twice to the same number. So a
guard (this key, at this revision) is a compare-and-swap that nobody can fool by putting an old value back.

    found = await store.get("/penstock/partitions/")
    item = found.items["/penstock/partitions/7"]
    answer = await store.commit({item.key: item.revision}, [Put(item.key, b"...")])

A commit is won, or lost to somebody else, or its outcome is unknown (`OutcomeUnknown`): it was sent, and the answer did
not come. Then it may have been carried out, or may be later, within etcd's own time-outs. It is never sent twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from penstock.cluster.etcd.session import Session

# The revision of a key that is not there, for guards.
ABSENT = 0


class Item(NamedTuple):
    """At the revision of its last change; `created` is that of its first one, since the key was last absent."""

    key: str
    value: bytes
    revision: int
    created: int


class Snapshot(NamedTuple):
    """All at one revision of the store."""

    items: dict[str, Item]
    revision: int


class Put(NamedTuple):
    """With a session, the key goes when the session does."""

    key: str
    value: bytes
    session: Session | None = None


class Won(NamedTuple):
    """`revision` is the one that all its keys have now; of a commit that only deleted what was not there, any."""

    revision: int


class Lost(NamedTuple):
    """A guard did not hold, and nothing was changed. `items` are the guarded keys that are there, as they are."""

    items: dict[str, Item]
    revision: int


class Change(NamedTuple):
    """`item` is None if the key was deleted."""

    key: str
    item: Item | None
    revision: int


class Changes(NamedTuple):
    """Everything up to `revision` that had not been told. Without changes: a sign of life."""

    changes: list[Change]
    revision: int


class Store(Protocol):
    async def get(self, prefix: str) -> Snapshot:
        """Linearizable: whatever was committed before the call is in it. `EtcdUnavailable` if nobody answers."""

    async def commit(
        self, guards: Mapping[str, int], puts: Sequence[Put] = (), deletes: Collection[str] = ()
    ) -> Won | Lost:
        """All puts and deletes, if every guarded key is at its revision (`ABSENT`: is not there); otherwise none.

        `OutcomeUnknown` if the answer was lost. With every other error nothing was changed.
        """

    def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[Changes]:
        """Changes from that revision on, included, in their order; those of one revision come together.

        Ends by an error only: `WatchBehind` if the store has forgotten what happened then, `EtcdUnavailable` if the
        connection broke. It may also fall silent without one: see `View`. To be closed (`contextlib.aclosing`).
        """

    async def session(self, ttl_s: int) -> Session: ...

    async def close(self) -> None: ...
