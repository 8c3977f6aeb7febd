"""The feature level of a cluster: what every node may rely on the others to know.

    <prefix>/level            the level that is finalized; missing: 1
    <prefix>/cluster          the cluster's id and secret; from level 2 on under a name that level 1 does not know
    <prefix>/brokers/<node>   a live node: the highest level that its build supports
    <prefix>/nodes/<node>     a node that has joined before: the same, of the build that joined last

The levels:

    1   builds that know nothing of levels
    2   who deletes a topic leaves a tombstone, so a partition without a record and without a tombstone was forgotten

A build whose level is lower than the finalized one does not join. Builds of level 1 do not look at the level, so the
raise to 2 renames a field that they need to start. The controller raises the level once all members
support it: the nodes that are alive, and those that have replicas. Until then a newer build does nothing that an older
one would break. A level is never lowered.

A join and a raise both change the key, guarded by its revision, so neither overlooks the other.
"""

from __future__ import annotations

import logging

import msgspec

from penstock.cluster.etcd.store import ABSENT, Put, Store, Won
from penstock.cluster.etcd.view import View
from penstock.cluster.keys import Keys
from penstock.cluster.members import Members
from penstock.cluster.partitions import Partitions
from penstock.decoding import from_json
from penstock.errors import InvalidSetting

log = logging.getLogger("penstock.cluster")

# Of this build.
LEVEL = 2
TOMBSTONES = 2


class Finalized(msgspec.Struct, frozen=True):
    level: int = 1


class Cluster(msgspec.Struct, frozen=True, omit_defaults=True):
    """The cluster's id, and the secret by which its nodes know each other: in one of two fields, by the level."""

    id: str
    secret: str = ""
    node_secret: str = ""

    @property
    def shared_secret(self) -> str:
        return self.secret or self.node_secret

    def closed_to_level_1(self) -> Cluster:
        """Return the same cluster as builds of level 1 cannot decode it, which require `secret`."""
        return Cluster(self.id, node_secret=self.shared_secret)


class Levels:
    def __init__(self, store: Store, view: View, keys: Keys, members: Members, partitions: Partitions) -> None:
        self._store = store
        self._view = view
        self._key = keys.level
        self._cluster_key = keys.cluster
        self._members = members
        self._partitions = partitions
        # Nodes whose builds are too old, as far as the log says so already.
        self._warned: frozenset[str] = frozenset()

    @property
    def finalized(self) -> int:
        item = self._view.get(self._key)
        return 1 if item is None else from_json(item.value, Finalized).level

    def check(self) -> None:
        """That this build may join."""
        if self.finalized > LEVEL:
            raise InvalidSetting(
                f"the cluster is at feature level {self.finalized}, and this build supports levels up to {LEVEL}: it "
                "would break what newer nodes rely on. Start a build at least as new as those of the other nodes "
                "(`penstock cluster status` shows the level, `penstock cluster nodes` their versions)",
                setting="cluster",
                level=self.finalized,
                supported=LEVEL,
            )

    def joining(self) -> tuple[dict[str, int], Put]:
        """Guards of a commit by which a node joins, and what it puts: the level stays, and its revision changes."""
        item = self._view.get(self._key)
        value = msgspec.json.encode(Finalized()) if item is None else item.value
        return {self._key: ABSENT if item is None else item.revision}, Put(self._key, value)

    async def raise_level(self) -> None:
        """By the controller: to what all members support."""
        supported = self._supported()
        finalized = self.finalized
        self._warn({node for node in self._members.brokers if supported[node] < finalized})
        level = min((LEVEL, *supported.values()))
        if level <= finalized or not supported:
            return
        guards, _ = self.joining()
        puts = [Put(self._key, msgspec.json.encode(Finalized(level)))]
        cluster = self._view.get(self._cluster_key)
        if cluster is not None:
            closed = from_json(cluster.value, Cluster).closed_to_level_1()
            guards[self._cluster_key] = cluster.revision
            puts.append(Put(self._cluster_key, msgspec.json.encode(closed)))
        outcome = await self._store.commit(guards, puts)
        if isinstance(outcome, Won):
            log.info("all nodes support feature level %d: the cluster is at it now", level)

    def _supported(self) -> dict[str, int]:
        members = self._members
        hosting = {node for record in self._partitions.records() for node in record.hosting}
        alive = {node: broker.level for node, broker in members.brokers.items()}
        return {node: members.levels.get(node, 1) for node in hosting} | alive

    def _warn(self, outdated: set[str]) -> None:
        for node in sorted(outdated - self._warned):
            log.warning(
                "node %s runs a build that does not support feature level %d of the cluster: replace it by one as new "
                "as the others",
                node,
                self.finalized,
            )
        self._warned = frozenset(outdated)
