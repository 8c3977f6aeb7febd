"""The records of all partitions, as the view has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.cluster.core.record import PartitionRecord, decode
from penstock.cluster.etcd.view import Known, View
from penstock.cluster.keys import Keys
from penstock.errors import InvalidInput, LogCorrupt


class Placed:
    """A record and its revision in etcd."""

    __slots__ = ("record", "revision")

    def __init__(self, revision: int, record: PartitionRecord) -> None:
        self.revision = revision
        self.record = record


class Partitions:
    """`changed` is told on the loop, of a partition by its id, and None for its record if it was deleted."""

    def __init__(self, view: View, keys: Keys) -> None:
        self._keys = keys
        self._known: dict[str, Placed] = {}
        self.changed: Callable[[str, Placed | None, int], None] = lambda identity, placed, revision: None
        self._view = view
        view.on_change(keys.partitions, self._follow)

    def _follow(self, known: Known) -> None:
        identity = self._keys.name(known.key)
        if known.now is None:
            self._known.pop(identity, None)
            # Its leader may know of a change of its own that this view has not heard of, and is told nothing older.
            self.changed(identity, None, self._view.known_at(known.key))
            return
        try:
            placed = Placed(known.now.revision, decode(known.now.value))
        except InvalidInput as error:
            raise LogCorrupt(f"{known.key} in etcd can't be read: {error.message}") from error
        self._known[identity] = placed
        self.changed(identity, placed, placed.revision)

    def get(self, identity: str) -> Placed | None:
        return self._known.get(identity)

    def records(self) -> Iterator[PartitionRecord]:
        return (placed.record for placed in self._known.values())

    def items(self) -> list[tuple[str, Placed]]:
        return list(self._known.items())
