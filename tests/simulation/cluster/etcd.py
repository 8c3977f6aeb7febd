"""A fake etcd: one truth, changed by compare-and-swap; and its lies.

What it may do: read an old state, lose or delay a watch, lose a request or an answer, be away for a while, answer a
keepalive with yes although the lease is gone. What it never does, as the real one: carry out a compare-and-swap whose
guard does not hold, or show a state that never was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from penstock.cluster.core.events import Registered
from penstock.cluster.core.record import PartitionRecord
from simulation.cluster.loop import MS, SECOND, Loop
from simulation.cluster.network import Network

NAME = "etcd"
TTL = 2 * SECOND
TIMEOUT = 500 * MS
UNKNOWN = None

Live = dict[str, Registered]
# All that a full read shows: revision, live nodes, controller with its revision, records with theirs.
State = tuple[int, Live, str | None, dict[int, tuple[int, PartitionRecord]]]


class Etcd:
    def __init__(self, loop: Loop, network: Network, random: Random) -> None:
        self._loop = loop
        self._network = network
        self._random = random
        self.revision = 1
        self.live: Live = {}
        self.controller: str | None = None
        self._controller_lease = 0
        self.records: dict[int, tuple[int, PartitionRecord]] = {}
        self._leases: dict[int, tuple[str, int]] = {}
        self._leases_made = 0
        # An earlier one of the same node runs out by itself.
        self._registered_by: dict[str, int] = {}
        self.history: list[State] = []
        self.watchers: dict[str, Callable[[State], None]] = {}
        self.away_until = 0
        # Changes of records that have not arrived yet.
        self.under_way = 0
        # The lies: how often.
        self.stale = self.lost_watches = self.late_watches = self.lost_answers = self.false_keepalives = 0.0
        self.told: Counter[str] = Counter()

    # ---- requests

    def call(self, node: str, answer: Callable[[Any], None], do: Callable[..., Any], *args: Any) -> None:
        """Asks for `do(*args)`; `answer` is called once, with UNKNOWN if nothing was heard in time."""
        waiting = [answer]
        is_change = do == self.swap

        def answered(result: Any) -> None:
            if waiting:
                waiting.pop()(result)

        def arrived() -> None:
            self.under_way -= is_change
            if self._loop.now < self.away_until:
                return
            result = do(*args)
            if self._random.random() < self.lost_answers:
                self.told["lost answer"] += 1
                return
            self._network.send(NAME, node, answered, result)

        self.under_way += is_change * self._network.send(node, NAME, arrived)
        self._loop.after(TIMEOUT, answered, UNKNOWN)

    def read(self) -> State:
        if self.history and self._random.random() < self.stale:
            self.told["stale"] += 1
            return self.history[-1 - int(self._random.random() * min(len(self.history), 12))]
        return self.state()

    def swap(self, partition: int, revision: int, record: PartitionRecord) -> tuple[int, PartitionRecord]:
        """What is there afterwards, with its revision."""
        if self.records[partition][0] == revision:
            self._count(self.records[partition][1], record)
            self._changed()
            self.records = {**self.records, partition: (self.revision, record)}
            self._tell()
        return self.records[partition]

    def _count(self, before: PartitionRecord, after: PartitionRecord) -> None:
        for kind, is_so in {
            "shrunk": len(after.isr) < len(before.isr),
            "grown": len(after.isr) > len(before.isr),
            "moved": after.replicas != before.replicas,
            "handed over": before.successor is not None and after.leader == before.successor,
        }.items():
            self.told[kind] += is_so

    def is_still_at(self, partition: int, revision: int) -> bool:
        return self.records[partition][0] == revision

    def register(self, node: str, registered: Registered) -> tuple[int, int]:
        """The lease, and the revision at which the node is registered."""
        self._leases_made += 1
        lease = self._leases_made
        self._leases[lease] = (node, self._loop.now + TTL)
        self._loop.after(TTL, self._expire, lease)
        self._changed()
        self.live = {**self.live, node: registered}
        self._registered_by[node] = lease
        self._tell()
        return lease, self.revision

    def keep(self, lease: int) -> bool:
        """Whether the lease is alive."""
        if lease in self._leases:
            self._leases[lease] = (self._leases[lease][0], self._loop.now + TTL)
            return True
        if self._random.random() < self.false_keepalives:
            self.told["false keepalive"] += 1
            return True
        return False

    def control(self, incarnation: str, lease: int) -> str | None:
        if self.controller is None and lease in self._leases:
            self._changed()
            self.controller, self._controller_lease = incarnation, lease
            self._tell()
        return self.controller

    # ---- what it does by itself

    def state(self) -> State:
        return self.revision, self.live, self.controller, self.records

    def go_away(self, until: int) -> None:
        """Leases do not run out meanwhile, and get their full time when it is back."""
        self.away_until = max(self.away_until, until)
        for lease, (node, _) in self._leases.items():
            self._leases[lease] = (node, self.away_until + TTL)

    def _expire(self, lease: int) -> None:
        if lease not in self._leases:
            return
        _, until = self._leases[lease]
        if self._loop.now < until:
            self._loop.after(until - self._loop.now, self._expire, lease)
            return
        self._revoke(lease)

    def revoke(self, node: str) -> None:
        for lease in [lease for lease, (name, _) in self._leases.items() if name == node]:
            self._revoke(lease)

    def _revoke(self, lease: int) -> None:
        node, _ = self._leases.pop(lease)
        self._changed()
        if self._registered_by.get(node) == lease:
            self.live = {name: registered for name, registered in self.live.items() if name != node}
        if self._controller_lease == lease:
            self.controller = None
        self._tell()

    def _changed(self) -> None:
        self.history.append(self.state())
        self.revision += 1

    def _tell(self) -> None:
        state = self.state()
        for node, tell in self.watchers.items():
            chance = self._random.random()
            if chance < self.lost_watches:
                self.told["lost watch"] += 1
            elif chance < self.lost_watches + self.late_watches:
                self._loop.after(self._random.random() * SECOND, self._network.send, NAME, node, tell, state)
            else:
                self._network.send(NAME, node, tell, state)
