"""Who answers which request: each handler is one call of the broker, and the way to it and back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Any, NamedTuple, Protocol, TypeVar

from penstock.broker.broker import Broker
from penstock.client.cluster_requests import (
    CancelMoves,
    ClusterReport,
    DescribeReplicas,
    DiscardCopy,
    DrainNode,
    Elected,
    ElectLeaders,
    FindGroups,
    GroupsIn,
    Move,
    Plan,
    Reassign,
    Rebalance,
    ReplicaReport,
    SurveyCluster,
    UndrainNode,
)
from penstock.client.placement import (
    AssignPartition,
    ClusterInfo,
    Coordinator,
    FindOwners,
    Owner,
    Placement,
    StartGroup,
    TopicPlacement,
)
from penstock.client.requests import Request
from penstock.clock import Clock

Q = TypeVar("Q", bound=Request[Any])
R = TypeVar("R")


class Operating(Protocol):
    """What an operator can have done, at any node."""

    async def survey(self, request: SurveyCluster) -> ClusterReport: ...

    async def reassign(self, request: Reassign) -> list[Move]: ...

    async def cancel(self, request: CancelMoves) -> list[Move]: ...

    async def rebalance(self, request: Rebalance) -> Plan: ...

    async def elect(self, request: ElectLeaders) -> list[Elected]: ...

    async def drain(self, request: DrainNode) -> list[Move]: ...

    async def undrain(self, request: UndrainNode) -> None: ...

    async def discard(self, request: DiscardCopy) -> None: ...

    async def replicas(self, request: DescribeReplicas) -> list[ReplicaReport]: ...


# As `Broker.walk`.
Walk = Callable[[Iterator[TopicPlacement | None]], Awaitable[list[TopicPlacement]]]


class Cluster(Protocol):
    """What a node knows of the cluster it is in."""

    @property
    def operations(self) -> Operating: ...

    def describe(self) -> ClusterInfo: ...

    async def placement(self, topics: Collection[str], walk: Walk) -> Placement: ...

    def coordinator(self, group: str) -> Coordinator: ...

    async def refresh(self) -> None:
        """Whatever was decided before is known after it."""

    async def caught_up(self, revision: int) -> None:
        """Return once this node knows what was decided up to that revision. StaleMetadata if that takes too long."""

    def unready(self) -> dict[str, list[int]]:
        """Partitions, by topic, that this node leads and does not serve yet."""

    async def start_group(self, request: StartGroup) -> None: ...

    async def assign(self, request: AssignPartition) -> bool: ...

    def owners(self, request: FindOwners) -> list[Owner]: ...

    def groups_in(self, request: FindGroups) -> GroupsIn: ...


class Site(NamedTuple):
    """What handlers work with."""

    broker: Broker
    clock: Clock
    new_id: Callable[[], bytes]
    on_a_thread: Callable[[Callable[[], Any]], Awaitable[Any]]
    archive_dir: str | None
    # Of a node in a cluster.
    cluster: Cluster | None = None


Handler = Callable[[Site, Any], Awaitable[Any]]
HANDLERS: dict[type[Request[Any]], Handler] = {}
# Those of one change, which is over when other nodes know of it: in a cluster, that may take longer than anybody waits.
AWAITING_REPLICAS: set[type[Request[Any]]] = set()


def handles(
    kind: type[Q], *, awaits_replicas: bool = False
) -> Callable[[Callable[[Site, Q], Awaitable[R]]], Callable[[Site, Q], Awaitable[R]]]:
    def register(handler: Callable[[Site, Q], Awaitable[R]]) -> Callable[[Site, Q], Awaitable[R]]:
        assert kind not in HANDLERS, kind
        HANDLERS[kind] = handler
        if awaits_replicas:
            AWAITING_REPLICAS.add(kind)
        return handler

    return register
