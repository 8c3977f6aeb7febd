"""What goes wrong, and when. A seed has a mix of kinds, so that some of them come together often."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from penstock.cluster.core import election
from simulation.cluster.etcd import NAME as ETCD
from simulation.cluster.etcd import TTL
from simulation.cluster.loop import MS, SECOND

if TYPE_CHECKING:
    from simulation.cluster.node import Node
    from simulation.cluster.world import World


class Faults:
    def __init__(self, world: World, random: Random, lies: bool, unclean: bool) -> None:
        self.world = world
        self.random = random
        kinds: list[Callable[[], None]] = [
            self.crash, self.crash, self.crash_leader, self.crash_all, self.wipe, self.pause, self.pause_leader,
            self.isolate, self.isolate_leader, self.cut_link, self.cut_from_etcd, self.etcd_away, self.revoke,
            self.revoke, self.slow_disk, self.prefer, self.drain, self.reassign, self.there_and_back,
        ]  # fmt: skip
        self._kinds = random.sample(kinds, 2 + int(random.random() * 6)) + ([self.lie] * 3 if lies else [])
        self._kinds += [self.elect_unclean] * 3 if unclean else []
        self._pace = random.choice((120, 250, 500)) * MS
        network, etcd = world.network, world.etcd
        network.loss = random.choice((0.0, 0.0, 0.01, 0.04))
        network.double = self._double = random.choice((0.0, 0.02, 0.1))
        network.slow = random.choice((0.0, 0.01, 0.05, 0.15))
        if lies or random.random() < 0.2:
            etcd.stale = random.choice((0.1, 0.5, 0.9))
            etcd.lost_watches = random.choice((0.1, 0.5, 1.0))
            etcd.late_watches = random.choice((0.0, 0.3))
            etcd.lost_answers = random.choice((0.0, 0.1, 0.4))
            etcd.false_keepalives = random.choice((0.0, 0.5))
        world.retention = random.choice((0.0, 0.0, 0.0, 0.3))
        self.is_over = False
        self._next()

    def _next(self) -> None:
        self.world.loop.after(self._pace * (0.1 + self.random.random() * 2), self._fire)

    def _fire(self) -> None:
        if not self.is_over:
            self.random.choice(self._kinds)()
            self._next()

    def end(self, dead: Node | None = None) -> None:
        """All is well from now on, but that this one is dead."""
        self.is_over = True
        self.world.network.heal()
        etcd = self.world.etcd
        etcd.stale = etcd.lost_watches = etcd.late_watches = etcd.lost_answers = etcd.false_keepalives = 0.0
        etcd.away_until = min(etcd.away_until, self.world.loop.now)
        for node in self.world.nodes.values():
            node.slow_disk_until = 0
            node.paused_until = min(node.paused_until, self.world.loop.now)
            if node is dead:
                self.world.count("joiner dies")
                node.crash()
            elif not node.is_up:
                node.start()

    # ---- nodes

    def _node(self) -> Node:
        return self.world.nodes[self.random.choice(self.world.names)]

    def _leader(self) -> Node:
        record = self.world.etcd.records[int(self.random.random() * self.world.partitions)][1]
        return self.world.nodes[record.leader] if record.leader else self._node()

    def _while(self, longest: float) -> float:
        return longest * self.random.random() ** 2

    def _crash(self, node: Node, kind: str, longest: float = 1.5 * TTL) -> None:
        if node.is_up:
            self.world.count(kind)
            node.crash()
            self.world.loop.after(20 * MS + self._while(longest), self._restart, node)

    def _restart(self, node: Node) -> None:
        if not node.is_up:
            node.start()

    def crash(self) -> None:
        self._crash(self._node(), "crash")

    def crash_leader(self) -> None:
        self._crash(self._leader(), "leader crash")

    def crash_all(self) -> None:
        if self.random.random() < 0.5:
            for node in self.world.nodes.values():
                self._crash(node, "crash of all", longest=300 * MS)

    def wipe(self) -> None:
        """Never the last disk that has what is committed: that would be lost for good, as it is anywhere."""
        node = self._node()
        if self.world.etcd.under_way:
            return
        there = {disk.name for disk in self.world.disks()}
        for _, record in self.world.etcd.records.values():
            disks = {member.disk for member in record.isr}
            if not disks <= there or disks <= {node.disk.name}:
                return
        self._crash(node, "wipe")
        if not node.is_up:
            self.world.checker.graveyard.append(node.disk)
            node.disk = node.new_disk()

    def _pause(self, node: Node) -> None:
        self.world.count("pause")
        node.paused_until = self.world.loop.now + int(self._while(2.5 * TTL))

    def pause(self) -> None:
        self._pause(self._node())

    def pause_leader(self) -> None:
        self._pause(self._leader())

    def slow_disk(self) -> None:
        self._node().slow_disk_until = self.world.loop.now + int(self._while(3 * SECOND))
        self.world.count("slow disk")

    # ---- network

    def _cut(self, some: set[str], others: set[str]) -> None:
        self.world.count("network cut")
        pairs = self.world.network.pairs(some, others, is_one_way=self.random.random() < 0.4)
        self.world.network.blocked |= pairs
        self.world.loop.after(50 * MS + self._while(2 * TTL), self.world.network.blocked.difference_update, pairs)

    def _isolate(self, node: Node) -> None:
        others = set(self.world.names) - {node.name}
        self._cut({node.name}, others | ({ETCD} if self.random.random() < 0.5 else set()))

    def isolate(self) -> None:
        self._isolate(self._node())

    def isolate_leader(self) -> None:
        self._isolate(self._leader())

    def cut_link(self) -> None:
        a, b = self.random.sample(self.world.names, 2)
        self._cut({a}, {b})

    def cut_from_etcd(self) -> None:
        self._cut({(self._leader() if self.random.random() < 0.5 else self._node()).name}, {ETCD})

    # ---- etcd

    def etcd_away(self) -> None:
        self.world.count("etcd away")
        self.world.etcd.go_away(self.world.loop.now + int(self._while(1.5 * TTL)))

    def revoke(self) -> None:
        """The session of a live node ends, mostly of one that leads. It has done nothing wrong."""
        self.world.count("lease revoked")
        self.world.etcd.revoke((self._leader() if self.random.random() < 0.8 else self._node()).name)

    def lie(self) -> None:
        """For a while many answers are lost, or reads are old."""
        etcd = self.world.etcd
        etcd.stale = self.random.choice((0.0, 0.5, 1.0))
        etcd.lost_answers = self.random.choice((0.0, 0.1, 0.7))
        if self.random.random() < 0.4:
            self.revoke()

    def there_and_back(self) -> None:
        """A leader loses its session, then the next one does, which it could not hear; so it leads again, with all it
        had written. And what others said to it the first time arrives only now."""
        partition = int(self.random.random() * self.world.partitions)
        record = self.world.etcd.records[partition][1]
        nodes = [name for name in record.replicas if record.disk_of(name)]
        if len(nodes) < 3 or record.leader != nodes[0]:
            return
        self.world.count("there and back")
        leader, other, third = nodes[:3]
        network, etcd = self.world.network, self.world.etcd
        for pairs, since, until in (
            (network.pairs({leader}, {other}), 0, 2_500),
            (network.pairs({leader}, {ETCD}), 200, 1_000),
            (network.pairs({other}, {ETCD}), 1_300, 2_300),
            (network.pairs({third}, {leader}, is_one_way=True), 1_200, 2_200),
        ):
            self._then(since, network.blocked.update, pairs)
            self._then(until, network.blocked.difference_update, pairs)
        network.double = 0.5
        self._then(800, setattr, network, "double", self._double)
        self._then(200, etcd.revoke, leader)
        self._then(1_300, etcd.revoke, other)

    def _then(self, ms: int, do: Callable[..., None], *args: Any) -> None:
        self.world.loop.after(ms * MS, lambda: self.is_over or do(*args))

    # ---- operators

    def _command(self, kind: str, partition: int, record: object) -> None:
        if record is not None:
            self.world.count(kind)
            self.world.etcd.swap(partition, self.world.etcd.records[partition][0], record)  # type: ignore[arg-type]

    def prefer(self) -> None:
        for partition, (_, record) in self.world.etcd.records.items():
            self._command("prefer", partition, election.prefer(record, self.world.etcd.live))

    def drain(self) -> None:
        for partition, (_, record) in self.world.etcd.records.items():
            if record.leader:
                self._command("drain", partition, election.drain(record, record.leader, self.world.etcd.live))

    def elect_unclean(self) -> None:
        """As an operator would: if nobody else can be elected. Some can't wait."""
        for partition, (_, record) in self.world.etcd.records.items():
            live = self.world.etcd.live
            there = [node for node in record.hosting if node in live]
            is_stuck = not election.is_led(record, live) and election.elect(record, live) is None
            if there and (is_stuck or self.random.random() < (0.0 if self.is_over else 0.1)):
                node = self.random.choice(there)
                self._command("unclean", partition, election.elect_unclean(record, node, live))

    def reassign(self) -> None:
        partition = int(self.random.random() * self.world.partitions)
        record = self.world.etcd.records[partition][1]
        live = self.world.etcd.live
        count = max(record.min_isr, min(len(live), len(record.replicas) + self.random.choice((-1, 0, 0, 1))))
        if len(live) >= count:
            target = self.random.sample(sorted(live), count)
            there = {disk.name for disk in self.world.disks()}
            staying = {member.disk for member in record.isr if member.node in target}
            if staying and not staying & there:
                # Their disks are gone, and neither the leader nor etcd knows yet: all would be lost.
                return
            self._command("reassign", partition, election.reassign(record, target, live))
