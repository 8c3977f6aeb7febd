"""Where things are in a cluster: what a client asks any of its nodes, and what nodes ask each other.

A broker on its own answers `DescribeCluster` with no nodes: there is nowhere else to go.
"""

from __future__ import annotations

import msgspec
from pyroaring import BitMap64

from penstock.client.requests import Request


class NodeInfo(msgspec.Struct, frozen=True):
    """`native`, `http` and `grpc` are addresses, host:port, as others reach them; "" for a door that it has not."""

    id: str
    native: str
    http: str = ""
    grpc: str = ""
    rack: str = ""
    version: str = ""


class ClusterInfo(msgspec.Struct, frozen=True):
    """`nodes` are those that are alive, by what the answering `node` knows at `revision`. Larger ones are later, also
    after etcd was restored from a backup: so they need not be etcd's own.
    `is_cut_off` if it has not reached etcd for some seconds."""

    id: str = ""
    node: str = ""
    revision: int = 0
    controller: str = ""
    nodes: tuple[NodeInfo, ...] = ()
    is_cut_off: bool = False


class DescribeCluster(Request[ClusterInfo], frozen=True):
    pass


class Placed(msgspec.Struct, frozen=True):
    """A partition. `leader` is "" while nobody leads it; a larger epoch is a later leader. With fewer than `min_isr`
    in sync, nothing can be published to it."""

    number: int
    leader: str
    epoch: int
    replicas: tuple[str, ...]
    in_sync: tuple[str, ...]
    min_isr: int = 1


class TopicPlacement(msgspec.Struct, frozen=True):
    name: str
    id: str
    partitions: tuple[Placed, ...]


class Placement(msgspec.Struct, frozen=True):
    """As of `revision`. Topics that are not there are left out."""

    revision: int
    nodes: tuple[NodeInfo, ...]
    topics: tuple[TopicPlacement, ...]


class FindPlacement(Request[Placement], frozen=True):
    """Without names, of all topics."""

    topics: tuple[str, ...] = ()


class Coordinator(msgspec.Struct, frozen=True):
    """The coordinator of a group; `node` is "" while there is none. A larger `term` is a later answer."""

    node: str
    term: int
    # The answering node does not reach etcd: another node may know a later coordinator.
    is_cut_off: bool = False


class FindCoordinator(Request[Coordinator], frozen=True):
    group: str


# --- of nodes to each other ---------------------------------------------------------------------------------


class StartGroup(Request[None], frozen=True):
    """In these partitions, which the node leads, the group begins where its settings say, unless it has begun.

    `is_earlier`: than they are, or than somebody has led them. What was published to them since the group was made, and
    before it has begun there, is not of the past, for it.
    `created_us` is that of the group: another one may have had the same name, of which the node knows as yet.
    `since_us`, unless it is 0, is when it was to begin: nobody led these partitions then. One that begins at the latest
    message does so at the first of after that. `at`, if it is given, is where they ended when it was to begin, and
    goes before that: by the time that this is heard there may be more.
    """

    group: str
    topic: str
    partitions: tuple[int, ...]
    is_earlier: bool = False
    created_us: int = 0
    since_us: int = 0
    at: int | None = None


class AssignPartition(Request[bool], frozen=True):
    """A partition of a group belongs to that member from now on. False if the node has heard of a later generation."""

    group: str
    topic: str
    partition: int
    member: str | None
    generation: int
    reason: str
    is_lasting: bool


class Owner(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    member: str | None
    generation: int
    is_lasting: bool


class FindOwners(Request[list[Owner]], frozen=True):
    """Of the partitions that the node leads: whom they belong to in a group."""

    group: str


class KeepAlive(Request[list[bool]], frozen=True):
    """Groups and consumers whom another node has heard of: whether each is still a member, by what the node knows."""

    members: tuple[tuple[str, str], ...]


class FindLeft(Request[list[BitMap64]], frozen=True):
    """Of each of these leases of a partition that the node leads, what is not answered for and not over."""

    group: str
    topic: str
    partition: int
    leases: tuple[int, ...]


class FindPublished(Request[bool], frozen=True):
    """Whether a producer has published something to a partition that the node leads, from that offset on, which nobody
    loses any more."""

    topic: str
    partition: int
    since: int
    producer: int


class CountMessages(Request[int], frozen=True):
    """Of [first, last) of a partition that the node leads, without offsets that hold none."""

    topic: str
    partition: int
    first: int
    last: int


OF_NODES = (StartGroup, AssignPartition, FindOwners, KeepAlive, FindLeft, FindPublished, CountMessages)
