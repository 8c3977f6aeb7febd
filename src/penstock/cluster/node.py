"""A node of a cluster: its session in etcd, the replicas it hosts, and whom it fetches from.

    etcd ── view ──► members, partitions, catalog ──► replicas here (`hosted`) ◄── feeding, following ──► other nodes

Opened in two steps: `open` reads what there is, claims the node's name, and opens the replicas; `join` makes the node
known, once its doors are open and others can reach it. Before the name is its own, it hosts and fetches nothing.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from threading import get_ident
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from penstock.broker.broker import Broker as Queue
from penstock.broker.disk import Synced
from penstock.broker.partition import Partition
from penstock.broker.topic import TooFew
from penstock.client.placement import DescribeCluster, NodeInfo
from penstock.clock import Clock
from penstock.cluster.catalog import ClusterCatalog
from penstock.cluster.controller import Chosen, Controller
from penstock.cluster.core.events import RecordSeen, Tick
from penstock.cluster.core.messages import Fetch, Reply
from penstock.cluster.core.record import PartitionRecord, decode, encode, generation_of
from penstock.cluster.core.timing import Timing
from penstock.cluster.etcd.session import BootTime, Time
from penstock.cluster.etcd.store import ABSENT, Lost, Put, Store, Won
from penstock.cluster.etcd.view import Known, View
from penstock.cluster.feeding import Feeding
from penstock.cluster.following import Following
from penstock.cluster.handing_over import hand_over, hand_over_these
from penstock.cluster.hosted import Hosted, Logs
from penstock.cluster.inventory import Inventory
from penstock.cluster.keys import Keys, check_node
from penstock.cluster.levels import LEVEL, TOMBSTONES, Cluster, Levels
from penstock.cluster.members import Members
from penstock.cluster.partitions import Partitions, Placed
from penstock.cluster.placing import Placing
from penstock.cluster.presence import Presence
from penstock.cluster.registration import Broker, mark_disk, own_disk
from penstock.cluster.restored import Restored, Seen, read_seen, write_seen
from penstock.cluster.storing import Storing
from penstock.cluster.tally import Tally
from penstock.cluster.tasks import start
from penstock.cluster.throttle import Setting
from penstock.cluster.tombstones import Tombstones
from penstock.cluster.unclaimed import Unclaimed
from penstock.cluster.words import Replicate
from penstock.decoding import from_json
from penstock.environment import random_id
from penstock.errors import (
    DiskFull,
    EtcdError,
    EtcdReplaced,
    EtcdUnavailable,
    Fatal,
    InvalidInput,
    LogClosed,
    NotFound,
    OutcomeUnknown,
    PenstockError,
    SessionLost,
)
from penstock.net.address import place_of
from penstock.net.connection import Place
from penstock.net.remote import RemoteTransport
from penstock.storage.files import Files
from penstock.storage.log import Log

log = logging.getLogger("penstock.cluster")

T = TypeVar("T")
TTL_S = 6
TICK_S = 1.0
_TICK_S_MIN = 0.02
TIDY_S = 60.0
RECOLLECT_S = 1.0
# A millisecond's worth, unless the disk is slow; then so many times as long, and at least so long, for everybody else.
_FRAMES_AT_ONCE, _REST, _BREATH_S = 200, 4, 0.01
_RETRY_S = 0.25
_ANSWER_S = 1.0
# A node detects a restored etcd if the backup is older than this.
_SEEN_S = 5.0
_NEVER = 1 << 62


class KeptCopy(NamedTuple):
    """A quarantined copy of a partition that is not hosted here: of that epoch, from where to where its logs go."""

    epoch: int
    starts: tuple[int, int]
    ends: tuple[int, int]
    why: str


async def _raised(error: EtcdError) -> None:
    raise error


class Node:
    """Opened with `Node.open`. Belongs to one event loop."""

    def __init__(
        self,
        name: str,
        store: Store,
        files: Files,
        clock: Clock,
        *,
        time: Time,
        new_id: Callable[[], bytes],
        cluster: str,
        ttl_s: int,
    ) -> None:
        self.name = check_node(name)
        self.keys = Keys(cluster)
        self._new_id = new_id
        self.incarnation = new_id().hex()
        self._store = store
        self._files = files
        self._clock = clock
        self._timing = Timing.of_session(ttl_s * 1_000_000)
        self._loop = asyncio.get_running_loop()
        self._time = time
        self.view = View(store, self.keys.prefix, self._time)
        self.members = Members(self.view, self.keys)
        self.partitions = Partitions(self.view, self.keys)
        self.placing = Placing(self.members, self.partitions)
        self.catalog = ClusterCatalog(self.view, store, self.keys, self.placing.place, clock=clock, new_id=new_id)
        self.levels = Levels(store, self.view, self.keys, self.members, self.partitions)
        self.tombstones = Tombstones(store, self.view, self.keys, clock.now_us)
        self.restored = Restored(store, self.view, self.keys, self.partitions)
        self._seen = Seen()
        # Copies on this disk that are kept though nothing in etcd says that they should be here, by partition.
        self.kept: dict[str, KeptCopy] = {}
        # Of copies that were discarded: the last fetch. A leader ignores fetches that do not count up.
        self._requests: dict[str, int] = {}
        self.tally = Tally()
        self.presence = Presence(
            self.name, store, self.view, self.keys, self.members, self.levels, ttl_s, self.tally, self._namesake_answers
        )
        self.controller = Controller(
            Chosen(self.name, self.incarnation),
            store,
            self.view,
            self.keys,
            self.members,
            self.partitions,
            lambda: self.presence.session,
            self.tally,
            Unclaimed(store, self.view, self.keys, self.now_us, clock.now_us),
            self.tombstones,
            self.levels,
            self.now_us,
        )
        self.hosted: dict[str, Hosted] = {}
        self._thread = get_ident()
        # No partition that is shown expires before this.
        self._expires_us = _NEVER
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._dropping: dict[str, asyncio.Task[None]] = {}
        # Partitions that are led here since a moment ago.
        self._to_take_up: set[str] = set()
        self._taking_up: asyncio.Task[None] | None = None
        self._handing_over: asyncio.Task[None] | None = None
        # When each was made: one that was deleted may be there again.
        self._groups: dict[str, int] = {}
        self._storing = Storing(lambda: self.queue.disk, self.on_a_thread)
        self.feeding = Feeding(self.hosted, lambda: self.members.live, self.now_us, self.broke, self.tally)
        self.feeding.changed = self._feeds_changed
        self.feeding.reread = self.reread
        self.view.on_change(self.keys.throttle, self._throttled)
        self.following: Following
        self.queue: Queue
        self._inventory: Inventory
        self.id = ""
        self.secret = ""
        self._disk = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._keeping: asyncio.Task[None] | None = None
        self._rereading: asyncio.Task[None] | None = None
        self.failure: PenstockError | None = None
        self._broke: Callable[[PenstockError], None] = lambda error: None
        self._unreachable: Callable[[EtcdError], Awaitable[None]] = _raised
        self._tls: ssl.SSLContext
        self._is_closed = False
        # Told of nodes that came or went, for whoever looks after groups.
        self.nodes_changed: Callable[[], None] = lambda: None

    @classmethod
    async def open(
        cls,
        name: str,
        store: Store,
        files: Files,
        open_queue: Callable[[ClusterCatalog], Awaitable[Queue]],
        *,
        clock: Clock,
        time: Time | None = None,
        new_id: Callable[[], bytes] = random_id,
        cluster: str = "default",
        ttl_s: int = TTL_S,
        broke: Callable[[PenstockError], None] = lambda error: None,
        tls: ssl.SSLContext | None = None,
        unreachable: Callable[[EtcdError], Awaitable[None]] = _raised,
        partitions_max: int | None = None,
    ) -> Node:
        """`files` are locked; `open_queue` opens the broker over them. `tls` is for nodes whose doors have it; without
        one, those are trusted whom the system trusts. `unreachable` is told that etcd does not answer, while the node
        opens or joins: when it returns, that is tried again. No topic is created that would give a node more replicas
        than `partitions_max`."""
        node = cls(name, store, files, clock, time=time or BootTime(), new_id=new_id, cluster=cluster, ttl_s=ttl_s)
        node._broke = broke
        node._unreachable = unreachable
        node.placing.partitions_max = partitions_max
        node._tls = tls or ssl.create_default_context()
        try:
            await node._open(open_queue)
        except BaseException:
            await node.close()
            raise
        return node

    async def _open(self, open_queue: Callable[[ClusterCatalog], Awaitable[Queue]]) -> None:
        await self._patiently(self._found)
        loop = self._loop
        disk = await loop.run_in_executor(None, own_disk, self._files, self.name, self.id, self._new_id())
        self._disk = disk.id
        self._inventory = await loop.run_in_executor(None, Inventory, self._files)
        me = Replicate(self.name, disk.id, self.incarnation)
        self.following = Following(self.place, self.hosted, me, self._clock, self.tally, self.broke)
        await self._patiently(self.view.start)
        self.levels.check()
        self._seen = await loop.run_in_executor(None, read_seen, self._files)
        await self._patiently(lambda: self.restored.check(self._seen))
        await self._patiently(lambda: self.presence.claim(disk.id))
        await loop.run_in_executor(None, mark_disk, self._files, disk)
        self.queue = await open_queue(self.catalog)
        self.queue.replicated.too_few = self._too_few_to_begin
        self.queue.replicated.hide_expired = self._hide_expired
        self.catalog.changed = self._catalog_changed
        self._catalog_changed()
        self.partitions.changed = self._partition_changed
        self.members.changed = self._members_changed
        self.members.term = self.view.revision
        await self._patiently(self._leave_isrs_without_copies)
        for identity, placed in self.partitions.items():
            self._partition_changed(identity, placed, placed.revision)
        await self._settled()
        if self.failure is not None:
            raise self.failure
        await self._patiently(self._check_epochs)
        await self._sweep()
        await self._note_seen()

    async def _leave_isrs_without_copies(self) -> None:
        """A restored etcd may say that this node is in sync with what it has deleted since the backup: an empty copy
        would be elected."""
        names = set(await self.on_a_thread(self.queue.directories.names))
        for identity, placed in self.partitions.items():
            record = placed.record
            # A directory that is missing although the inventory lists it is damage, which stops the node.
            is_here = identity in names or identity in self._inventory
            if is_here or not generation_of(record.epoch) or not record.is_in_sync(self.name, self._disk):
                continue
            if not await self._leave_isr(identity):
                continue
            log.error(
                "node %s has no copy of partition %d of %s, but the restored etcd lists the node as in sync: the node "
                "leaves the ISR",
                self.name,
                record.number,
                record.topic,
            )
        await self.view.refresh()

    async def _leave_isr(self, identity: str) -> bool:
        """Whether it was this node that changed the record. Other nodes may do the same at the same time."""
        key = self.keys.partition(identity)
        while (placed := self.partitions.get(identity)) is not None:
            record = placed.record
            if not record.is_in_sync(self.name, self._disk):
                return False
            isr = tuple(member for member in record.isr if member.node != self.name)
            changed = [Put(key, encode(replace(record, isr=isr)))]
            if isinstance(await self._store.commit({key: placed.revision}, changed), Won):
                return True
            await self.view.refresh()
        return False

    async def _check_epochs(self) -> None:
        """Etcd is older than a copy here, though its revision is not: begin another generation."""
        if any(hosted.quarantined for hosted in self.hosted.values()):
            # Surely by the newest that there is.
            await self.view.refresh()
        if any(hosted.quarantined for hosted in self.hosted.values()):
            log.error("etcd was set back to a backup: copies on this node are of later epochs than their records")
            # Copies may be of a generation that etcd has forgotten.
            known = [generation_of(hosted.replica.site.last_epoch) for hosted in self.hosted.values()]
            await self.restored.begin(max(self.restored.generation, *known) + 1)

    async def _note_seen(self) -> None:
        seen = self.restored.now(was_replaced=isinstance(self.failure, EtcdReplaced))
        if seen == self._seen:
            return
        try:
            await self._loop.run_in_executor(None, write_seen, self._files, seen)
            self._seen = seen
        except DiskFull as error:
            log.warning("the revision of etcd can't be written down yet: %s", error.message)

    async def _keep_noting_seen(self) -> None:
        while True:
            await asyncio.sleep(_SEEN_S)
            await self._note_seen()

    async def _patiently(self, work: Callable[[], Awaitable[None]]) -> None:
        """What may be tried again while etcd is away."""
        while True:
            try:
                return await work()
            except (EtcdUnavailable, OutcomeUnknown, SessionLost) as error:
                if error.details.get("is_of_tls"):
                    raise
                await self._unreachable(error)

    async def _found(self) -> None:
        """The cluster, or makes it: who comes first gives it its id and its secret."""
        made = Cluster(self._new_id().hex(), self._new_id().hex() + self._new_id().hex())
        outcome = await self._store.commit(
            {self.keys.cluster: ABSENT}, [Put(self.keys.cluster, msgspec.json.encode(made))]
        )
        if isinstance(outcome, Lost):
            made = from_json(outcome.items[self.keys.cluster].value, Cluster)
        self.id, self.secret = made.id, made.shared_secret
        self.catalog.secret = self.secret

    async def join(self, info: NodeInfo, *, has_tls: bool = False) -> None:
        """Others can reach it there, by TLS if its native door has that."""
        broker = Broker(
            self._disk,
            self.incarnation,
            info.native,
            info.http,
            info.grpc,
            info.rack,
            info.version,
            self._clock.now_us(),
            has_tls,
            LEVEL,
        )
        await self._patiently(lambda: self.presence.announce(broker))
        self._keeping = start(self.presence.keep(broker, self.broke), self.broke)
        self.catalog.check = self.check_etcd
        for work in (
            self._tick(),
            self.controller.run(),
            self._watch(),
            self._tidy(),
            self._recollect(),
            self._keep_noting_seen(),
        ):
            self._tasks.append(start(work, self.broke))

    async def _watch(self) -> None:
        try:
            await self.view.failure()
        except PenstockError as error:
            self.broke(error if isinstance(error, Fatal | EtcdReplaced) else Fatal(f"metadata: {error.message}"))

    # --- replicas ----------------------------------------------------------------------------------------

    def _partition_changed(self, identity: str, placed: Placed | None, revision: int) -> None:
        self.controller.stir()
        hosted = self.hosted.get(identity)
        record = None if placed is None else placed.record
        if hosted is not None:
            hosted.step(RecordSeen(revision, record))
        elif record is not None and record.hosts(self.name) and identity not in self._opening and not self._is_closed:
            self._opening[identity] = start(self._host(identity), self.broke)

    async def _host(self, identity: str) -> None:
        try:
            dropping = self._dropping.get(identity)
            if dropping is not None:
                await asyncio.wait([dropping])
            logs = await self.on_a_thread(partial(self._open_copy, identity))
        except DiskFull as error:
            # Everything else goes on.
            log.warning("partition %s can't be opened yet: %s", identity, error.message)
            self._loop.call_later(TICK_S, self._host_again, identity)
            return
        except PenstockError as error:
            log.error("partition %s can't be opened: %s", identity, error.message)
            self.broke(error)
            return
        finally:
            self._opening.pop(identity, None)
        hosted = Hosted(identity, logs, self, self.name, self._disk, self.incarnation, self._timing)
        if self._is_closed:
            await hosted.close()
            return
        hosted.replica.site.request = self._requests.pop(identity, 0)
        self.hosted[identity] = hosted
        self.kept.pop(identity, None)
        hosted.step(self._surroundings())
        placed = self.partitions.get(identity)
        if placed is not None:
            hosted.step(RecordSeen(placed.revision, placed.record))
        else:
            self.drop(hosted)

    def _host_again(self, identity: str) -> None:
        placed = self.partitions.get(identity)
        if placed is not None:
            self._partition_changed(identity, placed, placed.revision)

    def _open_copy(self, identity: str) -> Logs:
        """On a thread."""
        directories = self.queue.directories
        self._inventory.check(identity, directories.has)
        logs = directories.logs(identity)
        try:
            self._inventory.add(identity, logs)
        except BaseException:
            for each in logs:
                each.close()
            raise
        return logs

    def _remove_copy(self, identity: str) -> None:
        self._inventory.remove(identity)
        self.queue.directories.remove(identity)

    async def _settled(self) -> None:
        while self._opening:
            await asyncio.wait(self._opening.values())

    async def _sweep(self) -> None:
        """Copies that the records in etcd do not place here: of partitions that were moved away or deleted while this
        node was down. Those that may be newer than the records are kept."""
        for identity in await self.on_a_thread(self.queue.directories.names):
            placed = self.partitions.get(identity)
            if placed is not None and placed.record.hosts(self.name):
                continue
            if identity in self.hosted or identity in self._opening or identity in self._dropping:
                # Moved away since this node has opened it: that sees to the copy.
                continue
            # Should its record place it here meanwhile, it is opened after that.
            self._dropping[identity] = sweeping = start(self._sweep_copy(identity), self.broke)
            await asyncio.wait([sweeping])
        if self.failure is not None:
            raise self.failure

    async def _sweep_copy(self, identity: str) -> None:
        try:
            # If the inventory was found and lacks the copy, an interrupted removal has left it.
            is_left_over = self._inventory.was_found and identity not in self._inventory
            if not is_left_over or not self._is_surely_elsewhere(identity):
                copy = await self.on_a_thread(partial(self._look_at_copy, identity))
                if not copy.why:
                    copy = copy._replace(why=self._why_kept(identity, copy.epoch))
                if copy.why:
                    self._keep(identity, copy)
                    return
            await self.on_a_thread(partial(self._remove_copy, identity))
            log.info("the copy of partition %s is removed: it was moved away, or deleted", identity)
        except DiskFull as error:
            log.warning("%s was moved away, and is removed at the next start: %s", identity, error.message)
        finally:
            self._dropping.pop(identity, None)

    def _is_surely_elsewhere(self, identity: str) -> bool:
        """By its record, or by a tombstone."""
        return self.partitions.get(identity) is not None or identity in self.tombstones

    def _look_at_copy(self, identity: str) -> KeptCopy:
        """On a thread."""
        try:
            logs = self.queue.directories.logs(identity)
        except PenstockError as error:
            if isinstance(error, Fatal):
                raise
            return KeptCopy(0, (0, 0), (0, 0), f"it can't be opened: {error.message}")
        messages, deliveries = logs
        copy = KeptCopy(
            max(messages.last_epoch, deliveries.last_epoch),
            (messages.start_offset, deliveries.start_offset),
            (messages.end_offset, deliveries.end_offset),
            "",
        )
        for each in logs:
            each.close()
        return copy

    def _why_kept(self, identity: str, epoch: int) -> str:
        """Why a copy of that epoch, which is not hosted here, must not be deleted. Empty if it may be."""
        placed = self.partitions.get(identity)
        if placed is None:
            if identity in self.tombstones:
                return ""
            return "etcd knows no such partition, and does not say that it was deleted: etcd may have been set back"
        if placed.record.epoch < epoch:
            of = f"it is of epoch {epoch}, and the record in etcd of epoch {placed.record.epoch}"
            return f"{of}: etcd was set back to a backup"
        if generation_of(placed.record.epoch) > generation_of(epoch):
            return "it is from before etcd was set back to a backup, which may have forgotten what is in it"
        return ""

    def _keep(self, identity: str, copy: KeptCopy) -> None:
        self.kept[identity] = copy
        log.error(
            "partitions/%s is quarantined: %s. Nothing of it is deleted. Decide what becomes of it: see `penstock "
            "cluster status`",
            identity,
            copy.why,
        )

    def _members_changed(self) -> None:
        self.controller.stir()
        # At the next turn the view has come to where they changed.
        self._loop.call_soon(self._note_term)
        now = self._surroundings()
        for hosted in list(self.hosted.values()):
            hosted.step(now)
        # Behind them: replicas know by now whose fetches these are.
        self.feeding.members_changed()

    def _note_term(self) -> None:
        self.members.term = self.view.revision
        self.nodes_changed()

    def _feeds_changed(self) -> None:
        now = self._surroundings()
        for hosted in list(self.hosted.values()):
            if hosted.is_leader:
                hosted.step(now)

    def _surroundings(self) -> Tick:
        live, lost = self.members.live, self.feeding.lost
        if lost:
            # A process that dies closes its connections. Its session lasts for seconds, and to wait for that would hold
            # up every partition that it follows here: it leaves their ISRs at once, and is back as soon as it fetches.
            live = {name: each for name, each in live.items() if lost.get(name) != each.incarnation}
        return Tick(self.presence.valid_until_us, live, self.feeding.contacts())

    def _until_tick_s(self) -> float:
        """Nobody is served for longer than it may be."""
        shown = [hosted.serves_until_us for hosted in self.hosted.values() if hosted.is_shown]
        left_s = (min(shown, default=self.now_us() + 1_000_000) - self.now_us()) / 1e6
        return min(max(left_s, _TICK_S_MIN), TICK_S)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._until_tick_s())
            now_us, surroundings = self.now_us(), self._surroundings()
            for hosted in list(self.hosted.values()):
                if not hosted.is_leader:
                    continue
                hosted.step(surroundings)
                if hosted.partition is not None and hosted.serves_until_us <= now_us:
                    self.hide(hosted)
            self._hand_over_for_room()

    def _hide_expired(self) -> None:
        """Hide what this node may serve no longer. After a pause of the process, requests that waited in sockets come
        before the next tick. Only the event loop hides: a lookup on another thread changes nothing."""
        now_us = self.now_us()
        if now_us < self._expires_us or get_ident() != self._thread:
            return
        shown = [hosted for hosted in self.hosted.values() if hosted.is_shown]
        # First, since hiding looks up topics.
        self._expires_us = min(
            (each.serves_until_us for each in shown if each.serves_until_us > now_us), default=_NEVER
        )
        for hosted in shown:
            if hosted.serves_until_us <= now_us:
                self.hide(hosted)

    def _hand_over_for_room(self) -> None:
        """Other replicas may have room for what happens to messages."""
        lacking = {
            identity
            for identity, hosted in self.hosted.items()
            if hosted.partition is not None and hosted.partition.groups.lacks_room
        }
        if lacking and (self._handing_over is None or self._handing_over.done()):
            asked = hand_over_these(self.name, lacking, self._store, self.keys, self.members, self.partitions)
            self._handing_over = start(asked, self.broke)

    def _throttled(self, known: Known) -> None:
        rate = 0 if known.now is None else from_json(known.now.value, Setting).bytes_per_s
        self.feeding.throttle.set(rate)

    def session_left_s(self) -> float:
        """For how long the session is surely valid; 0 if it is not."""
        return max(0, self.presence.valid_until_us - self.now_us()) / 1e6

    @property
    def is_cut_off(self) -> bool:
        """From etcd, for longer than its session is surely valid."""
        return self._keeping is not None and not self.session_left_s()

    def check_etcd(self) -> None:
        """Ahead of a change: nobody waits for what is known to fail."""
        if self.is_cut_off:
            raise EtcdUnavailable(
                f"node {self.name} has not reached etcd for some seconds: nothing can be changed until it does",
                node=self.name,
            )

    def check_ready(self) -> None:
        """Without etcd it is, as long as it serves something of what it leads: nobody else would."""
        if self._keeping is None:
            raise SessionLost("the node has not joined its cluster yet")
        if not self.is_cut_off or not self.hosted:
            return
        led = [hosted for hosted in self.hosted.values() if hosted.is_leader]
        if led and not any(hosted.is_shown for hosted in led):
            raise SessionLost("the node reaches neither etcd nor enough followers, and serves nothing of what it leads")
        if not led and not self.following.is_connected:
            raise SessionLost("the node reaches neither etcd nor any node that leads what it has copies of")

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(TIDY_S)
            await self.tidy()

    async def tidy(self) -> None:
        """All copies. Of partitions that are led here the broker sees to that."""
        for hosted in list(self.hosted.values()):
            if not hosted.is_leader and self.hosted.get(hosted.identity) is hosted:
                try:
                    await self.on_a_thread(hosted.tidy)
                    await self._clean(hosted)
                except LogClosed:
                    continue
                except PenstockError as error:
                    if isinstance(error, Fatal):
                        self.broke(error)
                    log.warning("the copy of %s can't be tidied: %s", hosted.identity, error.message)

    async def _clean(self, hosted: Hosted) -> None:
        """What its leader has removed goes here, too."""
        while (query := hosted.cleaner.query()) is not None:
            answer = await self.following.cleaned(query)
            if answer is None or not await self.on_a_thread(partial(hosted.cleaner.apply, answer)):
                return

    async def _recollect(self) -> None:
        """So that those who follow would have little left to read before they lead. A little at a time, by turns: what
        is there when the node starts may take minutes."""
        while True:
            behind = [each for each in self.hosted.values() if not each.is_leader and each.recollection.is_behind]
            for hosted in behind:
                began = self._loop.time()
                try:
                    await self.queue.on_a_reading_thread(partial(hosted.recollection.go_on, _FRAMES_AT_ONCE))
                except LogClosed:
                    continue
                except Fatal as error:
                    self.broke(error)
                await asyncio.sleep(max(_BREATH_S, _REST * (self._loop.time() - began)))
            if not behind:
                await asyncio.sleep(RECOLLECT_S)

    def _catalog_changed(self) -> None:
        self.queue.follow_catalog()
        groups = {record.name: record.generation for record in self.catalog.groups}
        for name, generation in self._groups.items():
            if groups.get(name) != generation:
                self.queue.drop_here(name)
        self._groups = groups
        for hosted in list(self.hosted.values()):
            if hosted.partition is not None and hosted.serves_until_us > self.now_us():
                self.show(hosted)

    # --- what replicas need ------------------------------------------------------------------------------

    def now_us(self) -> int:
        return self._time.now_us()

    def wall_us(self) -> int:
        return self._clock.now_us()

    def on_a_thread(self, work: Callable[[], T]) -> Awaitable[T]:
        return self.queue.on_a_thread(work)

    def store(self, log: Log, append: Callable[[], T], size: int, *, begins_epoch: bool) -> Awaitable[T]:
        return self._storing.store(log, append, size, begins_epoch=begins_epoch)

    def store_soon(self, log: Log, append: Callable[[], T], size: int, done: Synced) -> T | None:
        return self._storing.store_soon(log, append, size, done)

    def ask(self, leader: str, hosted: Hosted, fetch: Fetch) -> None:
        self.following.ask(leader, hosted, fetch)

    def withdraw(self, hosted: Hosted) -> None:
        self.following.withdraw(hosted.identity)

    def reply(self, hosted: Hosted, reply: Reply) -> None:
        self.feeding.reply(hosted, reply)

    async def propose(self, hosted: Hosted, revision: int, record: PartitionRecord) -> RecordSeen | None:
        key, before = self.keys.partition(hosted.identity), hosted.record
        try:
            outcome = await self._store.commit({key: revision}, [Put(key, encode(record))])
        except EtcdError as error:
            self.tally.etcd_errors += 1
            log.debug("%s: a change of its record failed: %s", hosted.identity, error.message)
            return None
        if isinstance(outcome, Won):
            self._count(before, record)
            return RecordSeen(outcome.revision, record)
        item = outcome.items.get(key)
        return RecordSeen(outcome.revision, None) if item is None else RecordSeen(item.revision, decode(item.value))

    def _count(self, before: PartitionRecord | None, after: PartitionRecord) -> None:
        if before is not None and before.replicas == after.replicas:
            self.tally.isr_shrinks += len(after.isr) < len(before.isr)
            self.tally.isr_expands += len(after.isr) > len(before.isr)

    def reread(self) -> None:
        if self._rereading is None or self._rereading.done():
            self._rereading = start(self._reread(), self.broke)

    async def _reread(self) -> None:
        try:
            await self.view.refresh()
        except EtcdUnavailable:
            self.tally.etcd_errors += 1
        except PenstockError as error:
            self.broke(error)
        # Whoever knew the newest already is told again how things are.
        await asyncio.sleep(_RETRY_S)

    def wake(self, hosted: Hosted, at_us: int) -> None:
        def tick() -> None:
            if self.hosted.get(hosted.identity) is not hosted:
                return
            if self.now_us() < at_us:
                # The loop counts in milliseconds, and may be early: a step now would come to nothing.
                self.wake(hosted, at_us)
            else:
                hosted.step(self._surroundings())

        self._loop.call_later(max(0, at_us - self.now_us()) / 1e6, tick)

    async def lead(self, hosted: Hosted) -> Partition | None:
        found = self.queue.replicated.place_of(hosted.identity)
        while found is None:
            if hosted.is_closed or not hosted.is_leader:
                return None
            # The record of a partition may come ahead of its topic's, which may never come.
            await asyncio.sleep(_RETRY_S / 10)
            found = self.queue.replicated.place_of(hosted.identity)
        self.tally.leaderships += 1
        partition = await self.queue.replicated.lead(found[0], hosted.logs, hosted.wrote, hosted.recollected())
        for group, (reached, offset) in partition.groups.set_back.items():
            log.warning(
                "group %s is set back from offset %d to %d of %s: an unclean election lost the messages between",
                group,
                reached,
                offset,
                hosted.shown,
            )
        return partition

    def show(self, hosted: Hosted) -> None:
        found = self.queue.replicated.place_of(hosted.identity)
        if found is None or hosted.partition is None:
            return
        topic, number = found
        self._expires_us = min(self._expires_us, hosted.serves_until_us)
        if topic.here.get(number) is not hosted.partition:
            hosted.is_shown = True
            self.queue.replicated.show(topic, number, hosted.partition)
            self._to_take_up.add(hosted.identity)
            if self._taking_up is None or self._taking_up.done():
                self._taking_up = start(self._take_up(), self.broke)
            log.info("leads partition %d of %s at epoch %d", number, topic.name, hosted.epoch)

    def _too_few_to_begin(self, identity: str) -> TooFew | None:
        """Of what is surely led here."""
        hosted = self.hosted.get(identity)
        return None if hosted is None or not self.session_left_s() else hosted.too_few_to_begin()

    async def _take_up(self) -> None:
        """What was left undone where others led before. By a catalog that is surely as new as what they did: a group
        that is not in it was deleted."""
        while self._to_take_up and not self._is_closed:
            try:
                some, self._to_take_up = self._to_take_up, set()
                await self.view.refresh()
                await asyncio.sleep(0)
            except EtcdUnavailable:
                self._to_take_up |= some
                await asyncio.sleep(_RETRY_S)
                continue
            except PenstockError as error:
                self.broke(error)
                return
            for identity in some:
                found = self.queue.replicated.place_of(identity)
                if found is not None and found[1] in found[0].here:
                    self.queue.take_up(*found)

    def hide(self, hosted: Hosted) -> None:
        hosted.is_shown = False
        found = self.queue.replicated.place_of(hosted.identity)
        if found is not None and found[0].here.get(found[1]) is hosted.partition:
            self.queue.replicated.hide(*found)

    def drop(self, hosted: Hosted) -> None:
        """The record says that no replica is here any more: moved away, or its topic was deleted."""
        if self.hosted.pop(hosted.identity, None) is not None:
            self._dropping[hosted.identity] = start(self._drop(hosted), self.broke)

    async def _drop(self, hosted: Hosted) -> None:
        try:
            await hosted.close()
            while await self._is_surely_not_here(hosted.identity):
                why = self._why_kept(hosted.identity, hosted.replica.site.last_epoch)
                # Older nodes leave no tombstones.
                is_deleted = self.partitions.get(hosted.identity) is None and self.levels.finalized < TOMBSTONES
                if why and not is_deleted:
                    self._keep(hosted.identity, _copy_of(hosted, why))
                    return
                try:
                    await self.on_a_thread(partial(self._remove_copy, hosted.identity))
                except DiskFull as error:
                    # Even this takes a little.
                    log.warning("the copy of partition %s can't be removed yet: %s", hosted.identity, error.message)
                    await asyncio.sleep(_RETRY_S)
                    continue
                log.info("the copy of partition %s is removed", hosted.identity)
                return
            log.info("the copy of partition %s is wanted again", hosted.identity)
        except PenstockError as error:
            self.broke(error)
        finally:
            self._dropping.pop(hosted.identity, None)

    async def discard(self, identity: str) -> None:
        """Delete a quarantined copy at the request of an operator."""
        # Another operator may just have had this copy elected.
        await self.view.refresh()
        for under_way in (self._opening.get(identity), self._dropping.get(identity)):
            if under_way is not None:
                await asyncio.wait([under_way])
        hosted = self.hosted.get(identity)
        if identity not in self.kept and (hosted is None or not hosted.quarantined):
            raise NotFound(f"node {self.name} has no quarantined copy of a partition {identity}", partition=identity)
        if hosted is not None:
            record = hosted.record
            if record is not None and record.is_in_sync(self.name, self._disk):
                raise InvalidInput(
                    f"{hosted.shown} counts on this copy: by its record {self.name} is in sync. Have another replica "
                    "lead it first, which takes this one out of sync after some seconds; then try again",
                    partition=identity,
                )
            self.hosted.pop(identity)
            self._requests[identity] = hosted.replica.site.request
            self.following.withdraw(identity)
        # Should its record change meanwhile, the copy is opened anew after that; and the caller may give up waiting.
        self._dropping[identity] = discarding = self._loop.create_task(self._discard(identity, hosted))
        await asyncio.shield(discarding)

    async def _discard(self, identity: str, hosted: Hosted | None) -> None:
        try:
            if hosted is not None:
                await hosted.close()
            await self.on_a_thread(partial(self._remove_copy, identity))
            self.kept.pop(identity, None)
            log.warning("the quarantined copy of partition %s is deleted at the request of an operator", identity)
        except Fatal as error:
            # The operator may not wait for the outcome any more.
            self.broke(error)
            raise
        finally:
            self._dropping.pop(identity, None)
            self._host_again(identity)

    async def _is_surely_not_here(self, identity: str) -> bool:
        """By a read that has everything: what was known when the node started may be older than the copy."""
        while not self._is_closed:
            try:
                await self.view.refresh()
            except EtcdUnavailable:
                await asyncio.sleep(_RETRY_S)
                continue
            placed = self.partitions.get(identity)
            return placed is None or not placed.record.hosts(self.name)
        return False

    def broke(self, error: PenstockError) -> None:
        if self.failure is None:
            self.failure = error
            self._broke(error)

    # --- others ------------------------------------------------------------------------------------------

    def place(self, node: str) -> Place | None:
        """Where another node is, and how to get in as one of the same cluster."""
        broker = self.members.brokers.get(node)
        if broker is None or not broker.native:
            return None
        place = place_of(broker.native, key=self.secret, tls=self._tls if broker.tls else None)
        return place._replace(client=f"node {self.name}")

    async def _namesake_answers(self) -> bool:
        try:
            place = self.place(self.name)
            if place is None:
                return False
            async with asyncio.timeout(_ANSWER_S):
                transport = await RemoteTransport.to(place, self._clock, patience_s=0)
                try:
                    # Another one may be there by now.
                    return (await transport.call(DescribeCluster())).node == self.name
                finally:
                    await transport.close()
        except (PenstockError, TimeoutError):
            return False

    # --- the end -----------------------------------------------------------------------------------------

    async def hand_over(self) -> None:
        """Before a planned end."""
        session = self.presence.session
        if session is not None:
            await hand_over(self.name, session, self._store, self.view, self.keys, self.members, self.partitions)

    @property
    def is_left_alone(self) -> bool:
        """There are others, or were a moment ago, and all of them are being stopped, too."""
        others = self.members.known - {self.name}
        return bool(others) and not any(node in self.members.live for node in others - self.members.leaving)

    async def leave(self) -> None:
        """Ends the session: others are elected at once for what is led here, and not served any more."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        try:
            await self.presence.close()
        except Exception:
            log.exception("the session in etcd can't be given back; it runs out by itself")

    async def close(self) -> None:
        """Of what was opened; the broker itself and etcd are closed by whoever opened them."""
        self._is_closed = True
        under_way = (*self._tasks, self._rereading, self._taking_up, self._handing_over)
        tasks = [task for task in under_way if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        # First: it must not be lost that etcd was replaced.
        if hasattr(self, "queue"):
            try:
                await self._note_seen()
            except PenstockError as error:
                log.warning("the revision of etcd can't be written down: %s", error.message)
        # Before the replicas: whatever those wait for, nobody else has to.
        await self.leave()
        await self._settled()
        for hosted in list(self.hosted.values()):
            await hosted.close()
        self.hosted.clear()
        if hasattr(self, "following"):
            await self.following.close()
        if self._dropping:
            await asyncio.wait(self._dropping.values())
        if hasattr(self, "_inventory"):
            try:
                await self._loop.run_in_executor(None, self._inventory.close)
            except PenstockError as error:
                log.warning("the list of copies can't be written anew, and is at the next start: %s", error.message)
        await self.view.close()


def _copy_of(hosted: Hosted, why: str) -> KeptCopy:
    site = hosted.replica.site
    return KeptCopy(site.last_epoch, site.starts, site.ends, why)
