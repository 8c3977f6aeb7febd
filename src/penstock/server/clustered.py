"""A server that is a node of a cluster: etcd, the node, and the broker whose partitions it leads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from socket import gethostname

from msgspec.structs import replace

import penstock
from penstock.broker.broker import Broker
from penstock.broker.names import check_name
from penstock.broker.settings import partitions_with
from penstock.client.cluster_requests import FindGroups, GroupsIn
from penstock.client.placement import (
    AssignPartition,
    ClusterInfo,
    Coordinator,
    FindOwners,
    NodeInfo,
    Owner,
    Placed,
    Placement,
    StartGroup,
    TopicPlacement,
)
from penstock.client.transport import Transport
from penstock.cluster.catalog import ClusterCatalog
from penstock.cluster.consumers import ClusterConsumers
from penstock.cluster.coordination import Coordination
from penstock.cluster.core.election import is_led
from penstock.cluster.core.record import PartitionRecord
from penstock.cluster.etcd.session import BootTime
from penstock.cluster.etcd.settings import EtcdSettings, endpoints_of
from penstock.cluster.etcd.store import Store
from penstock.cluster.etcd.view import Known
from penstock.cluster.node import Node
from penstock.cluster.operations import Operations
from penstock.errors import ConnectionLost, EtcdUnavailable, InvalidName, PenstockError, StaleMetadata, TopicNotFound
from penstock.local.handlers import Walk
from penstock.local.keeper import Keeper
from penstock.local.transport import READERS, THREADS, LocalTransport
from penstock.net.connection import Place
from penstock.net.remote import RemoteTransport
from penstock.net.routing.pace import Pace
from penstock.server.config import Address, Config
from penstock.server.forwarding.forwarding import Forwarding
from penstock.server.host import Host
from penstock.server.metrics import Counts
from penstock.server.metrics_cluster import of_cluster
from penstock.server.server import Ready

log = logging.getLogger("penstock.cluster")

# So many topics that a node does not know are looked for in etcd before it says that they are not there: for one who
# asks, for all of them, and at the same time. etcd has more to do, and the node's session waits for the same way to it.
_UNKNOWN_MAX, _LOOKED_FOR_MAX, _LOOKS_MAX = 4, 64, 2
# Whoever asks by HTTP or gRPC is told soon that etcd is away, and tries again if it likes to.
_ETCD_S = 2.0
# A node that lags behind waits this long for changes from etcd; then the request fails and is retried.
_BEHIND_S = 1.0


class Clustered:
    def __init__(self, node: Node, store: Store, config: Config, host: Host) -> None:
        self.node = node
        self.site: LocalTransport
        self._store = store
        self._config = config
        self._host = host
        self._others: dict[str, tuple[Place, RemoteTransport]] = {}
        self._closing: list[RemoteTransport] = []
        self.operations = Operations(node, store, self.transport)
        self.coordination: Coordination
        # What the doors work with that forward to whoever leads.
        self.forwarding: Forwarding
        self._looked_for: dict[str, asyncio.Task[None]] = {}
        self._looks = asyncio.Semaphore(_LOOKS_MAX)
        self._change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for prefix in (node.keys.partitions, node.keys.brokers, node.keys.topics):
            node.view.on_change(prefix, self._changed)

    async def join(self, where: Ready) -> None:
        """Its doors are open there."""
        await self.node.join(
            NodeInfo(
                self.node.name,
                self._reached(where.native),
                self._reached(where.http),
                self._reached(where.grpc),
                self._config.rack or "",
                penstock.__version__,
            ),
            has_tls=self._config.tls_cert is not None,
        )

    def _reached(self, door: Address | None) -> str:
        if door is None:
            return ""
        host = self._config.advertise or (gethostname() if door.host in ("0.0.0.0", "::") else door.host)
        return str(door._replace(host=host))

    # --- what the node knows -----------------------------------------------------------------------------

    def describe(self) -> ClusterInfo:
        node = self.node
        return ClusterInfo(
            node.id, node.name, self._version(), node.controller.node, node.members.infos(), node.is_cut_off
        )

    async def placement(self, topics: Collection[str], walk: Walk) -> Placement:
        node, topics = self.node, frozenset(topics)
        unknown = [topic for topic in topics if not node.catalog.has_topic(topic)]
        if unknown and not node.is_cut_off:
            # Made at another node, maybe, a moment ago.
            await asyncio.gather(*[self._look_for(topic) for topic in unknown[:_UNKNOWN_MAX]])
            # At the next turn of the loop the catalog has them, too.
            await asyncio.sleep(0)
        # Before the walk: what changes meanwhile is of a later version.
        version = self._version()
        placed = await walk(self._placed(sorted(topics) or [record.name for record in node.catalog.topics]))
        return Placement(version, node.members.infos(), tuple(placed))

    def _placed(self, topics: Sequence[str]) -> Iterator[TopicPlacement | None]:
        node = self.node
        for topic in topics:
            if not node.catalog.has_topic(topic):
                yield None
                continue
            record, partitions = node.catalog.topic(topic), []
            for number, identity in enumerate(record.partitions):
                known = node.partitions.get(identity)
                if known is None:
                    partitions.append(Placed(number, "", 0, (), ()))
                else:
                    found = known.record
                    in_sync = tuple(member.node for member in found.isr)
                    leader = self._led_by(found) or ""
                    partitions.append(Placed(number, leader, found.epoch, found.replicas, in_sync, found.min_isr))
            yield TopicPlacement(record.name, record.id, tuple(partitions))

    def _version(self) -> int:
        return self.node.restored.version(self.node.view.revision)

    async def _look_for(self, topic: str) -> None:
        """One look for all who ask for the same. Of a name that no topic has, or if there are too many, none."""
        if topic not in self._looked_for:
            try:
                check_name("topic", topic)
            except InvalidName:
                return
            if len(self._looked_for) >= _LOOKED_FOR_MAX:
                return
            self._looked_for[topic] = asyncio.ensure_future(self._look(topic))
            self._looked_for[topic].add_done_callback(lambda _: self._looked_for.pop(topic))
        await asyncio.shield(self._looked_for[topic])

    async def _look(self, topic: str) -> None:
        async with self._looks:
            with suppress(EtcdUnavailable):
                await self.node.view.knows(self.node.keys.topics + topic)

    def coordinator(self, group: str) -> Coordinator:
        return replace(self.coordination.of(group), is_cut_off=self.node.is_cut_off)

    # --- what doors need of it, which forward ------------------------------------------------------------

    def info(self, node: str) -> NodeInfo | None:
        return self.node.members.info(node)

    def place_at(self, native: str) -> Place | None:
        """Of the node with that address, if one that is alive has it."""
        found = (name for name, broker in self.node.members.brokers.items() if broker.native == native)
        name = next(found, None)
        return None if name is None else self.node.place(name)

    def leaders(self, topics: Sequence[str]) -> list[str]:
        """Of any of their partitions, those that are alive. TopicNotFound if one of them is not known."""
        found = set()
        for topic in topics:
            for identity in self.node.queue.topic(topic).record.partitions:
                placed = self.node.partitions.get(identity)
                found.add(None if placed is None else self._led_by(placed.record))
        return sorted(leader for leader in found if leader is not None)

    def _led_by(self, record: PartitionRecord) -> str | None:
        """Not by one that was started anew since it was elected: it leads nothing by that."""
        return record.leader if is_led(record, self.node.members.live) else None

    def changed(self) -> asyncio.Future[None]:
        """Done when something of that may be different."""
        if self._change.done():
            self._change = asyncio.get_running_loop().create_future()
        return self._change

    def _changed(self, known: Known) -> None:
        if not self._change.done():
            self._change.set_result(None)

    def check_ready(self) -> None:
        self.node.check_ready()

    # --- what groups need of it --------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.node.name

    def term(self) -> int:
        return self.node.members.term

    def version(self) -> int:
        return self.node.restored.version(self.node.members.term)

    def candidates(self) -> list[str]:
        """One that is being drained looks after groups only if there is nobody else."""
        members = self.node.members
        return list(members.usable or members.brokers)

    def nodes(self) -> list[str]:
        return list(self.node.members.brokers)

    def leader(self, topic: str, partition: int) -> str | None:
        on_topic = self.node.queue.replicated.get(topic)
        if on_topic is None or not 0 <= partition < on_topic.count:
            raise TopicNotFound(f"there is no partition {partition} of {topic}", topic=topic)
        placed = self.node.partitions.get(on_topic.record.partitions[partition])
        return None if placed is None else self._led_by(placed.record)

    def transport(self, node: str) -> Transport:
        if node == self.node.name:
            return self.site
        place = self.node.place(node)
        known = self._others.get(node)
        if place is None:
            raise ConnectionLost(f"node {node} is not alive, as far as is known here", node=node)
        if known is None or known[0] != place:
            if known is not None:
                self._closing.append(known[1])
            known = self._others[node] = (place, self._remote(place))
        return known[1]

    def _remote(self, place: Place) -> RemoteTransport:
        return RemoteTransport(place, self._host.clock, patience_s=0, new_id=self._host.new_id)

    async def refresh(self) -> None:
        await self.refreshed()

    async def refreshed(self) -> bool:
        try:
            await self.node.view.refresh()
        except EtcdUnavailable:
            return False
        return True

    async def caught_up(self, revision: int) -> None:
        view = self.node.view
        if self._version() >= revision or self.node.is_cut_off:
            # Without etcd this node learns nothing new, and it can still answer for the partitions that it leads.
            return
        try:
            async with asyncio.timeout(_BEHIND_S):
                while self._version() < revision:
                    await view.reached(view.revision + 1)
        except TimeoutError:
            raise StaleMetadata(
                f"node {self.name} is at revision {self._version()} of the cluster's metadata, not at {revision} yet",
                node=self.name,
            ) from None
        # What is in the view is taken up at the next turn of the loop.
        await asyncio.sleep(0)

    def unready(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for record in self.node.catalog.topics:
            topic = self.node.queue.replicated.get(record.name)
            for number, identity in enumerate(record.partitions):
                placed = self.node.partitions.get(identity)
                if placed is None or placed.record.leader != self.name or (topic is not None and number in topic.here):
                    continue
                if self._led_by(placed.record) is not None:
                    found.setdefault(record.name, []).append(number)
        return found

    def broke(self, error: PenstockError) -> None:
        self.node.broke(error)

    async def start_group(self, request: StartGroup) -> None:
        await self.coordination.start_group(request)

    async def assign(self, request: AssignPartition) -> bool:
        return await self.coordination.assign(request)

    def owners(self, request: FindOwners) -> list[Owner]:
        return self.coordination.owners(request)

    def groups_in(self, request: FindGroups) -> GroupsIn:
        return self.coordination.groups_in(request)

    async def close(self) -> None:
        await self.forwarding.close()
        await self.coordination.close()
        for look in list(self._looked_for.values()):
            look.cancel()
        for other in [*self._closing, *(transport for _, transport in self._others.values())]:
            await other.close()
        await self.node.close()
        await self._store.close()


async def open_clustered(
    config: Config,
    counts: Counts,
    broke: Callable[[PenstockError], None],
    unreachable: Callable[[PenstockError], Awaitable[None]],
    descriptors_max: int,
    host: Host,
) -> Clustered:
    assert config.cluster is not None
    assert config.node_id is not None
    settings = EtcdSettings(
        endpoints_of(config.cluster.split(",")),
        ca=config.etcd_ca,
        cert=config.etcd_cert,
        key=config.etcd_key,
        user=config.etcd_user,
        password=config.etcd_password,
    )
    tls = host.trust(config.tls_ca)
    store, clock = host.metadata(settings), host.clock
    executor = host.executor(THREADS, "penstock-disk")
    readers = host.executor(READERS, "penstock-read")
    loop = asyncio.get_running_loop()
    files = None
    try:
        opening = partial(host.files, config.data, counts.synced, descriptors_max)
        files = await loop.run_in_executor(executor, opening)
        await loop.run_in_executor(executor, files.lock)

        async def open_queue(catalog: ClusterCatalog) -> Broker:
            assert files is not None
            return await Broker.open(
                files,
                clock=clock,
                executor=executor,
                readers=readers,
                limits=config.limits,
                new_id=host.new_id,
                syncs=host.syncs(),
                catalog=catalog,
                consumers=partial(ClusterConsumers, catalog=catalog),
            )

        node = await Node.open(
            config.node_id,
            store,
            files,
            open_queue,
            clock=clock,
            time=BootTime(clock),
            new_id=host.new_id,
            cluster=config.cluster_name,
            ttl_s=int(config.session_ttl),
            broke=broke,
            tls=tls,
            unreachable=unreachable,
            partitions_max=partitions_with(descriptors_max),
        )
    except BaseException:
        if files is not None:
            files.close()
        await store.close()
        executor.shutdown(wait=False)
        readers.shutdown(wait=False)
        raise
    clustered = Clustered(node, store, config, host)
    clustered.site = LocalTransport(
        node.queue,
        clock,
        executor,
        readers,
        config.limits,
        Keeper(node.queue),
        config.archive_dir,
        cluster=clustered,
        new_id=host.new_id,
    )
    assert isinstance(node.queue.consumers, ClusterConsumers)
    clustered.coordination = Coordination(clustered, node.queue, node.queue.consumers)
    node.queue.coordination = clustered.coordination
    node.nodes_changed = clustered.coordination.nodes_changed
    clustered.forwarding = Forwarding(clustered, Pace(etcd_s=_ETCD_S, dice=host.dice), new_id=host.new_id)
    node.queue.dead_letters.copies = clustered.forwarding.copies
    counts.of_cluster = partial(of_cluster, node)
    return clustered
