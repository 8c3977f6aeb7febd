"""What an operator asks of a cluster, at any of its nodes: how it is, and what is to be moved. And what nodes ask each
other for that.

Moves and elections are asked for here and carried out by those who lead: a reply says what was put into etcd, and
`SurveyCluster` how far it has come.
"""

from __future__ import annotations

import msgspec

from penstock.client.requests import Request

# --- how it is ----------------------------------------------------------------------------------------------


class NodeReport(msgspec.Struct, frozen=True):
    """One that is alive, or has replicas, or is being drained. Of one that is not alive, the rest is not known."""

    id: str
    is_alive: bool
    is_draining: bool
    leaders: int
    replicas: int
    native: str = ""
    http: str = ""
    grpc: str = ""
    rack: str = ""
    version: str = ""
    disk: str = ""
    # When its process joined; 0 if that is not known.
    since_us: int = 0


class FollowerReport(msgspec.Struct, frozen=True):
    """What a follower lacks of the leader's logs, in offsets: -1 if it has not been heard of."""

    node: str
    messages_behind: int = -1
    deliveries_behind: int = -1


class PartitionReport(msgspec.Struct, frozen=True):
    """`leader` is "" while nobody who is alive leads it. `in_sync` are those of the in-sync replicas that are alive and
    keep up, if the leader was heard: it takes nobody out if too few would be left. `target` are the replicas it is
    being moved to. `last_in_sync` are all that had everything which is committed, alive or not: while nobody leads it,
    one of them must come back.

    `followers` are all others that have a copy, or are to get one. Offsets are -1 if the leader was not heard.
    """

    topic: str
    number: int
    id: str
    leader: str
    epoch: int
    replicas: tuple[str, ...]
    in_sync: tuple[str, ...]
    min_isr: int
    target: tuple[str, ...] = ()
    followers: tuple[FollowerReport, ...] = ()
    start_offset: int = -1
    end_offset: int = -1
    last_in_sync: tuple[str, ...] = ()

    @property
    def is_under_replicated(self) -> bool:
        return len(set(self.in_sync) & set(self.replicas)) < len(self.replicas)

    @property
    def is_under_min_isr(self) -> bool:
        """Nothing can be published to it."""
        return len(self.in_sync) < self.min_isr


class QuarantinedCopy(msgspec.Struct, frozen=True):
    """A copy with more than the records in etcd know: it is kept, and takes no part in replication. `topic` is "" if
    etcd does not know the partition. `epoch` is the last one of the copy, and `end_offset` where its messages end."""

    node: str
    id: str
    topic: str
    number: int
    epoch: int
    start_offset: int
    end_offset: int
    why: str


class ClusterReport(msgspec.Struct, frozen=True):
    """As `node` knows it. `silent` are nodes that did not say what they lead; `throttle` is in bytes a second, 0 for
    none. `is_cut_off` if `node` has not reached etcd for some seconds: then all of it is as of before."""

    id: str
    node: str
    revision: int
    controller: str
    nodes: tuple[NodeReport, ...]
    topics: int
    partitions: tuple[PartitionReport, ...]
    silent: tuple[str, ...] = ()
    throttle: int = 0
    is_cut_off: bool = False
    # Of nodes that have answered.
    quarantined: tuple[QuarantinedCopy, ...] = ()
    # The feature level that all nodes support; 0 if an older version has answered.
    level: int = 0


class SurveyCluster(Request[ClusterReport], frozen=True):
    """Without names, of all topics."""

    topics: tuple[str, ...] = ()


# --- what is to be different --------------------------------------------------------------------------------


class Move(msgspec.Struct, frozen=True):
    topic: str
    number: int
    replicas: tuple[str, ...]
    target: tuple[str, ...]


class Reassign(Request[list[Move]], frozen=True):
    """Of one partition, or of all of a topic: to these nodes, the preferred leader first. For all of a topic, the next
    one is preferred in each next partition. `throttle` is what each leader sends at most to replicas that catch up, in
    bytes a second, until all moves are over; None leaves it as it is, 0 lifts it."""

    topic: str
    partition: int | None
    nodes: tuple[str, ...]
    throttle: int | None = None


class CancelMoves(Request[list[Move]], frozen=True):
    """Back to the replicas there were."""

    topic: str
    partition: int | None


class Plan(msgspec.Struct, frozen=True):
    """`skipped` partitions have replicas on nodes that are not alive: moved now, they would wait for those."""

    moves: list[Move]
    skipped: int = 0


class Rebalance(Request[Plan], frozen=True):
    is_dry: bool
    throttle: int | None = None


class Elected(msgspec.Struct, frozen=True):
    """`leader` is who leads, or is to.

    Of an unclean election: `loses` says what it gives up. `end` is where the messages of the leader's copy end, -1
    otherwise. `groups` had come further by that copy, each to the offset that is said here, and are set back to `end`.
    """

    topic: str
    number: int
    before: str
    leader: str
    loses: str = ""
    end: int = -1
    groups: dict[str, int] = {}


class ElectLeaders(Request[list[Elected]], frozen=True):
    """The preferred leaders, or `node`, of one partition or of all of a topic; without a topic, of all there are.

    `is_unclean`: only where nobody leads and nobody in sync is alive, and somebody who may lack what was acknowledged.
    `is_dry` changes nothing, and says what would be: of an unclean election also for several partitions.
    """

    topic: str | None
    partition: int | None = None
    node: str | None = None
    is_unclean: bool = False
    is_dry: bool = False


class DrainNode(Request[list[Move]], frozen=True):
    """No leaders and no new replicas there, until it is undone: also after a restart. With `moves`, its replicas go
    elsewhere, too."""

    node: str
    moves: bool = False
    throttle: int | None = None


class UndrainNode(Request[None], frozen=True):
    node: str


class DiscardCopy(Request[None], frozen=True):
    """Delete a quarantined copy of the partition with this id from a node. If the partition is to have a replica there,
    the node fetches another from the leader."""

    node: str
    id: str


# --- of nodes to each other ---------------------------------------------------------------------------------


class ReplicaReport(msgspec.Struct, frozen=True):
    """A copy on the node that answers: of both logs, where they start and end. If it leads: how far each of the
    `followers` has come, if it has been heard of, and which of those in sync do not keep up. `last_epoch` is that of
    what it ends with; 0 if it is empty, or of an older version. `groups`, if they were asked for, are those whose
    deliveries go beyond the messages, and how far each had come. `quarantined` says why it takes no part in
    replication; empty if it does."""

    id: str
    epoch: int
    is_leader: bool
    starts: tuple[int, int]
    ends: tuple[int, int]
    followers: dict[str, tuple[int, int]] = {}
    lagging: tuple[str, ...] = ()
    last_epoch: int = 0
    groups: dict[str, int] = {}
    quarantined: str = ""


class DescribeReplicas(Request[list[ReplicaReport]], frozen=True):
    """All, or those with these ids. `with_groups` reads their deliveries logs, which takes a while."""

    ids: tuple[str, ...] | None = None
    with_groups: bool = False


class GroupsIn(msgspec.Struct, frozen=True):
    """Of a partition: `end` is where the next message would be that groups see."""

    groups: tuple[str, ...]
    end: int


class FindGroups(Request[GroupsIn], frozen=True):
    """Those that have begun in a partition, which the node leads."""

    topic: str
    partition: int


OF_NODES = (DescribeReplicas, FindGroups)
