"""The records of a cluster's partitions, as an operator names them, and changes of them by compare-and-swap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from penstock.broker.names import DEAD_LETTERS
from penstock.cluster.core.record import PartitionRecord, encode
from penstock.cluster.etcd.store import Put, Store, Won
from penstock.cluster.node import Node
from penstock.errors import InvalidInput, NodeNotFound, OutcomeUnknown, PartitionNotFound, StaleMetadata, TopicNotFound

# A record that is changed by its leader again and again is caught in between.
_TRIES = 20

Decide = Callable[[PartitionRecord], PartitionRecord | None]


class Records:
    def __init__(self, node: Node, store: Store) -> None:
        self._node = node
        self._store = store

    async def refresh(self) -> None:
        await self._node.view.refresh()

    # --- what there is -----------------------------------------------------------------------------------

    def named(self, topic: str, number: int | None) -> dict[str, PartitionRecord]:
        found = next((record for record in self._node.catalog.topics if record.name == topic), None)
        if found is None:
            raise TopicNotFound.named(topic)
        if number is not None and not 0 <= number < len(found.partitions):
            raise PartitionNotFound(
                f"{topic} has partitions 0 to {len(found.partitions) - 1}, and none with the number {number}",
                topic=topic,
                partition=number,
            )
        ids = found.partitions if number is None else (found.partitions[number],)
        return {identity: placed.record for identity in ids if (placed := self._node.partitions.get(identity))}

    def units(self) -> dict[str, PartitionRecord]:
        """All partitions but those of dead letters, which go with another. There may be none: their topic may have been
        created again with fewer."""
        records = self.all()
        places = {(record.topic, record.number) for record in records.values()}
        return {
            identity: record
            for identity, record in records.items()
            if (source_of(record.topic), record.number) not in places
        }

    def all(self) -> dict[str, PartitionRecord]:
        """Those whose topics are there."""
        ids = [identity for record in self._node.catalog.topics for identity in record.partitions]
        return {identity: placed.record for identity in ids if (placed := self._node.partitions.get(identity))}

    def with_dead_letters(self, partitions: dict[str, PartitionRecord]) -> dict[str, PartitionRecord]:
        beside = {(record.topic + DEAD_LETTERS, record.number) for record in partitions.values()}
        letters = {
            identity: record for identity, record in self.all().items() if (record.topic, record.number) in beside
        }
        return {**partitions, **letters}

    def record(self, identity: str) -> PartitionRecord:
        placed = self._node.partitions.get(identity)
        if placed is None:
            raise StaleMetadata("a partition was deleted meanwhile; try again", partition=identity)
        return placed.record

    def racks(self) -> dict[str, str]:
        return {name: broker.rack for name, broker in sorted(self._node.members.usable.items())}

    # --- what is wrong -----------------------------------------------------------------------------------

    def check_together(self, topic: str) -> None:
        source = source_of(topic)
        if source is not None and any(record.name == source for record in self._node.catalog.topics):
            raise InvalidInput(f"{topic} has the dead letters of {source}, and goes where {source} goes", topic=topic)

    def unknown(self, node: str) -> NodeNotFound:
        alive = sorted(self._node.members.live)
        return NodeNotFound(f"no node {node} is alive; those that are: {listed(alive)}", node=node, nodes=alive)

    # --- changes -----------------------------------------------------------------------------------------

    async def change(
        self,
        identity: str,
        decide: Decide,
        also: Iterable[Put] = (),
        guards: Mapping[str, int] = MappingProxyType({}),
    ) -> bool:
        """False if there was nothing to change. In the view, when this returns. `guards` are as those of `commit`."""
        key = self._node.keys.partition(identity)
        for _ in range(_TRIES):
            placed = self._node.partitions.get(identity)
            if placed is None:
                return False
            wanted = decide(placed.record)
            if wanted is None:
                return False
            try:
                outcome = await self._store.commit({**guards, key: placed.revision}, [Put(key, encode(wanted)), *also])
            except OutcomeUnknown:
                await self._node.view.refresh()
                now = self._node.partitions.get(identity)
                if now is not None and _is_carried_out(placed.record, wanted, now.record):
                    return True
                continue
            if isinstance(outcome, Won):
                await self._node.view.shows(outcome.revision)
                return True
            await self._node.view.refresh()
        raise StaleMetadata("the record of a partition changes all the time; try again", partition=identity)

    async def put(self, key: str, value: bytes) -> None:
        try:
            await self._store.commit({}, [Put(key, value)])
        except OutcomeUnknown:
            await self._node.view.refresh()
            if self._node.view.get(key) is None:
                raise
        await self._node.view.refresh()

    async def delete(self, key: str) -> None:
        try:
            await self._store.commit({}, deletes=[key])
        except OutcomeUnknown:
            await self._node.view.refresh()
            if self._node.view.get(key) is not None:
                raise
        await self._node.view.refresh()


def _is_carried_out(before: PartitionRecord, wanted: PartitionRecord, now: PartitionRecord) -> bool:
    """Whether a change was, whose outcome nobody has told. Whoever was elected by it may have changed the record since;
    but an epoch is that of one election."""
    if now == wanted:
        return True
    is_election = wanted.epoch > before.epoch
    return is_election and (now.epoch, now.incarnation, now.unclean) == (
        wanted.epoch,
        wanted.incarnation,
        wanted.unclean,
    )


def source_of(topic: str) -> str | None:
    """The topic that dead letters are of."""
    return topic.removesuffix(DEAD_LETTERS) if topic.endswith(DEAD_LETTERS) else None


def name_of(record: PartitionRecord) -> str:
    return f"partition {record.number} of {record.topic}"


def listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
