"""One seed: a cluster, its users, what goes wrong, and what must hold. The same seed does the same, step by step.

Times are a third of the real ones (a session's TTL of 2 s for 6 s), so that more happens in less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random

from penstock.cluster.core import election
from penstock.cluster.core.events import Registered
from penstock.cluster.core.leader import Leader
from penstock.cluster.core.record import PartitionRecord
from penstock.cluster.core.timing import Timing
from simulation.cluster.checker import Checker, check
from simulation.cluster.clients import Client, Consumer, Producer, Reader
from simulation.cluster.disk import Disk
from simulation.cluster.etcd import Etcd
from simulation.cluster.faults import Faults
from simulation.cluster.loop import MS, SECOND, Loop
from simulation.cluster.network import Network
from simulation.cluster.node import Node

# Of trouble, and then at most until all is well again.
TROUBLE = 5 * SECOND
RECOVERY = 10 * SECOND
# In seeds from here on operators elect whom they like, and what must hold is less.
UNCLEAN = 2_000_000


def lies(seed: int) -> bool:
    """Whether etcd's are to be many."""
    return seed % 6 == 5


def member_of(node: Node) -> tuple[str, str]:
    return node.name, node.disk.name


class World:
    def __init__(self, seed: int, *, is_strict: bool = True) -> None:
        random = Random(seed)
        self.loop = Loop()
        self.counts: Counter[str] = Counter()
        self.timing = Timing(lag_us=1_300 * MS, trust_us=1_700 * MS, retry_us=100 * MS, handover_us=300 * MS)
        self.partitions = random.choice((1, 1, 1, 2, 3))
        self.names = [f"n{i}" for i in range(random.choice((3, 3, 3, 4, 5)))]
        self.pace_ms = random.choice((60, 120, 200)) * self.partitions
        self.retention = 0.0
        self.is_over = False
        self._unclean = seed >= UNCLEAN
        self._leases = 0
        self.network = Network(self.loop, Random(random.getrandbits(64)), Random(f"streams of {seed}"))
        self.etcd = Etcd(self.loop, self.network, Random(random.getrandbits(64)))
        self.checker = Checker(self, is_strict)
        self.nodes = {name: Node(self, name, Random(random.getrandbits(64))) for name in self.names}
        live = {name: Registered(node.disk.name, f"{name}.1") for name, node in self.nodes.items()}
        for partition in range(self.partitions):
            replicas = random.sample(self.names, random.choice((3, 3, 3, min(len(self.names), 4), 2)))
            min_isr = random.choice((2, 2, 2, 1)) if len(replicas) > 2 else random.choice((1, 2))
            self.etcd.records[partition] = 1, election.first("t", partition, replicas, min_isr, live)
        for node in self.nodes.values():
            node.start()
        self.producers: list[Producer] = []
        self.clients: list[Client] = []
        for partition in range(self.partitions):
            acks = ["all", random.choice(("all", "leader", "none"))]
            for i, kind in enumerate(acks):
                producer = Producer(self, Random(random.getrandbits(64)), partition, f"p{partition}{i}", kind)
                self.producers.append(producer)
            for kind_of in (Consumer, Consumer, Reader):
                self.clients.append(kind_of(self, Random(random.getrandbits(64)), partition))
        self.faults = Faults(self, Random(random.getrandbits(64)), lies(seed), self._unclean)

    # ---- what the parts ask of it

    def count(self, kind: str) -> None:
        self.counts[kind] += 1

    def next_lease(self) -> int:
        self._leases += 1
        return self._leases

    def disks(self) -> list[Disk]:
        return [node.disk for node in self.nodes.values()]

    def elect(self, record: PartitionRecord, live: Mapping[str, Registered]) -> PartitionRecord | None:
        return election.elect(record, live)

    # ---- the run

    def run(self) -> Counter[str]:
        self.loop.run_until(TROUBLE)
        joiner = self._joiner()
        self.faults.end(joiner)
        healed = self.loop.now
        self._run_until(self._is_writable, healed + RECOVERY, "not writable again")
        self.is_over = True
        if joiner is not None:
            joiner.start()
        self._run_until(self._has_converged, healed + 2 * RECOVERY, "replicas do not converge")
        self.checker.at_the_end()
        return self._summary()

    def _run_until(self, is_done: object, end: int, complaint: str) -> None:
        while not is_done():  # type: ignore[operator]
            check(self.loop.now < end, complaint, self.etcd.records, self.etcd.live)
            self.loop.run_until(self.loop.now + 100 * MS)
            if self._unclean:
                self.faults.elect_unclean()

    def _joiner(self) -> Node | None:
        """Somebody who was to be in sync, and nobody knows whether it is. The others can do without."""
        for partition, (_, record) in self.etcd.records.items():
            leader = self.nodes[record.leader] if record.leader else None
            role = leader.hosted[partition].replica.role if leader is not None and leader.is_up else None
            if not isinstance(role, Leader) or role.ballot.is_proposing:
                continue
            for member in role.ballot.voters:
                node = self.nodes[member.node]
                if node.is_up and not record.is_in_sync(*member_of(node)) and self._can_do_without(node):
                    return node
        return None

    def _can_do_without(self, node: Node) -> bool:
        for _, record in self.etcd.records.values():
            others = [self.nodes[name] for name in record.replicas if name != node.name]
            if len(others) < record.min_isr or not any(record.is_in_sync(*member_of(other)) for other in others):
                return False
            if record.target:
                # It may be one of them by the time that the move ends, which may be now.
                return False
        return True

    def _is_writable(self) -> bool:
        return all(p.acked_at > TROUBLE for p in self.producers if p.acks == "all")

    def _has_converged(self) -> bool:
        for partition, (_, record) in self.etcd.records.items():
            disks = {member.disk for member in record.isr}
            copies = [self.nodes[name] for name in record.replicas]
            if record.target or record.successor or disks != {node.disk.name for node in copies}:
                return False
            for log in (0, 1):
                logs = [node.disk.partitions[partition][log] for node in copies]
                # Retention may have left one of them empty.
                if len({(log.end, log.durable) for log in logs}) > 1 or logs[0].durable < logs[0].end:
                    return False
                if len({log.entries[-1] for log in logs if log.entries}) > 1:
                    return False
            if not self._has_trimmed(partition, record):
                return False
        return True

    def _has_trimmed(self, partition: int, record: PartitionRecord) -> bool:
        """No replica keeps what retention does not need any more."""
        role = self.nodes[record.leader or ""].hosted[partition].replica.role
        if not isinstance(role, Leader):
            return False
        copies = [self.nodes[name].disk.partitions[partition] for name in record.replicas]
        return all(copy[log].base >= role.starts[log] for copy in copies for log in (0, 1))

    def _summary(self) -> Counter[str]:
        counts = self.counts
        counts += self.etcd.told
        counts["lost message"] += self.network.lost
        counts["acknowledged"] += self.checker.acks
        counts["leased"] += self.checker.leases
        counts["read"] += self.checker.reads
        counts["steps"] += self.loop.steps
        counts["epochs"] += sum(record.epoch - 1 for _, record in self.etcd.records.values())
        return counts
