"""What must hold, looked at whenever something is committed, answered or cut: the promises of the cluster.

- (partition, offset) names one value for ever, once it was committed; and it is committed on at least `min_isr` disks,
  among them those of the whole ISR.
- One leader commits at an epoch, it has all that was committed at earlier ones, and none of those commits beyond it.
- What was acknowledged (`all`) is committed, and each producer's messages are there once and in order.
- Where a leader's logs start never goes back. (That no replica keeps for ever what is to be deleted is looked at by
  `World`, at the end.)
- A message whose acknowledgement was answered with OK is not delivered again; no message is leased twice at a time.
- A leader that was replaced serves no client for longer than its followers and its session are trusted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulation.cluster.disk import Disk, DiskLog, Entry

if TYPE_CHECKING:
    from simulation.cluster.hosted import Hosted
    from simulation.cluster.world import World


class Violation(AssertionError):
    """A promise was broken."""


def check(holds: bool, *says: Any) -> None:
    if not holds:
        raise Violation(" ".join(str(word() if callable(word) else word) for word in says))


class Epoch:
    """One leader's time."""

    def __init__(self, hosted: Hosted) -> None:
        self.by = hosted.node.incarnation
        self.since = hosted.world.loop.now
        # Where it began, and how far it has committed.
        self.firsts: list[int | None] = [None, None]
        self.ends = [0, 0]


class Truth:
    """One partition: all that was ever committed."""

    def __init__(self) -> None:
        self.logs: tuple[list[Entry], list[Entry]] = ([], [])
        self.epochs: dict[int, Epoch] = {}
        # By producer: the last sequence. By (producer, sequence): where.
        self.last: dict[str, int] = {}
        self.places: dict[tuple[str, int], int] = {}
        # Leases by their offset, that were told to a consumer and have not ended.
        self.live: dict[int, int] = {}
        self.ended: set[int] = set()
        self.acked: set[int] = set()
        self.ok_acked: dict[int, int] = {}
        # By epoch: where the leader's logs began when it last served a reader.
        self.starts: dict[int, list[int]] = {}


class Checker:
    def __init__(self, world: World, is_strict: bool = True) -> None:
        self._world = world
        # Look, too, at what no client could see (yet).
        self._is_strict = is_strict
        self.truths = [Truth() for _ in range(world.partitions)]
        # Disks that were wiped. What was on them was there when it counted.
        self.graveyard: list[Disk] = []
        self.acks = self.leases = self.reads = 0

    def _is_given_up(self, partition: int) -> bool:
        """An operator had somebody elected who may not have all: whatever is gone now was given up."""
        return bool(self._world.etcd.records[partition][1].unclean)

    # ---- replication

    def committed(self, hosted: Hosted, log: int, end: int) -> None:
        if self._is_given_up(hosted.partition):
            return
        truth, own, number = self.truths[hosted.partition], hosted.logs[log], hosted.replica.role.epoch
        epoch = truth.epochs.get(number)
        if epoch is None:
            epoch = truth.epochs[number] = Epoch(hosted)
        check(
            epoch.by == hosted.node.incarnation,
            "two leaders commit at epoch",
            number,
            epoch.by,
            hosted.node.incarnation,
        )
        check(end <= own.end, "committed beyond the end")
        if epoch.firsts[log] is None:
            epoch.firsts[log] = hosted.replica.role.firsts[log]
            before = max((e.ends[log] for n, e in truth.epochs.items() if n < number), default=0)
            check(end >= before, "HW went back at epoch", number, "of", log, "from", before, "to", end)
        for later, other in truth.epochs.items():
            if later > number and other.firsts[log] is not None:
                check(end <= other.firsts[log], "epoch", number, "commits beyond the beginning of", later)
        known = truth.logs[log]
        first = max(epoch.ends[log], own.base)
        upto = min(end, len(known))
        check(
            own.read(first, upto) == known[first:upto],
            "committed entries of log", log, "changed at epoch", number, "on", hosted.node.name,
            lambda: (own.read(first, upto), known[first:upto]),
        )  # fmt: skip
        epoch.ends[log] = end
        if end > len(known):
            check(own.base <= len(known), "committed entries vanished")
            new = own.read(len(known), end)
            known += new
            self._on_disks(hosted, log, end)
            for offset, (_, value) in enumerate(new, end - len(new)):
                if value is not None:
                    (self._message if log == 0 else self._row)(truth, offset, value)

    def _on_disks(self, hosted: Hosted, log: int, end: int) -> None:
        partition = hosted.partition
        entry = hosted.logs[log].entries[-1 - (hosted.logs[log].end - end)]

        def has(disk: Disk) -> bool:
            copy = disk.partitions[partition][log]
            return copy.durable >= end and (copy.base >= end or copy.entries[end - 1 - copy.base] == entry)

        having = {disk.name for disk in self._world.disks() if has(disk)}
        having |= {disk.name for disk in self.graveyard if has(disk)}
        record = self._world.etcd.records[partition][1]
        check(len(having) >= record.min_isr, "committed on", having, "alone: log", log, "to", end)
        if self._is_strict:
            for member in record.isr:
                check(member.disk in having, member, "is in the ISR without log", log, "to", end, having, record)

    def cut(self, hosted: Hosted, log: int, offset: int) -> None:
        """Nobody in the ISR loses what is committed. Others may, by a leader that was, and get it again."""
        own, known = hosted.logs[log], self.truths[hosted.partition].logs[log]
        record = self._world.etcd.records[hosted.partition][1]
        if not self._is_strict or record.unclean or not record.is_in_sync(hosted.node.name, hosted.node.disk.name):
            return
        if own.base <= offset < min(own.end, len(known)):
            check(own.read(offset, offset + 1) != known[offset : offset + 1], "a committed entry was cut", log, offset)

    def served(self, hosted: Hosted) -> None:
        """A client is served there, whatever it wants."""
        world, epochs = self._world, self.truths[hosted.partition].epochs
        lies = world.etcd.told
        if self._is_given_up(hosted.partition) or lies["false keepalive"] or lies["stale"] or lies["lost watch"]:
            # A session says nothing then, or not who leads.
            return
        later = min((number for number in epochs if number > hosted.epoch), default=None)
        if later is not None:
            # Clocks differ by a hundredth.
            since, trusted = epochs[later].since, world.timing.trust_us * 101 // 100
            check(
                world.loop.now <= since + trusted,
                "epoch", hosted.epoch, "is served on", hosted.node.name, (world.loop.now - since) // 1000,
                "ms after epoch", later, "has committed",
            )  # fmt: skip

    # ---- messages

    def _message(self, truth: Truth, offset: int, value: tuple[str, int]) -> None:
        producer, sequence = value
        last = truth.last.get(producer, -1)
        check(sequence > last, "message", value, "at", offset, "after", last)
        if producer.endswith("all"):
            check(sequence == last + 1, "message", value, "at", offset, "after", last, ": one between was lost")
        truth.last[producer] = sequence
        truth.places[value] = offset

    def acked(self, partition: int, producer: str, sequence: int) -> None:
        self.acks += 1
        check(
            self._is_given_up(partition) or (producer, sequence) in self.truths[partition].places,
            "acknowledged, not committed",
            producer,
            sequence,
        )

    def _begins(self, hosted: Hosted) -> None:
        """For a reader. A leader that was, and does not know yet, may be behind the one that is."""
        starts, epoch = self.truths[hosted.partition].starts, hosted.epoch
        for log, own in enumerate(hosted.logs):
            before = max((start[log] for other, start in starts.items() if other <= epoch), default=0)
            check(own.base >= before, "log", log, "of", hosted.node.name, "starts at", own.base, "after", before)
        starts[epoch] = [own.base for own in hosted.logs]

    def read(self, hosted: Hosted, first: int) -> None:
        """A reader is shown what is committed from there on."""
        self.reads += 1
        if self._is_given_up(hosted.partition):
            return
        self._begins(hosted)
        truth, epoch, end = self.truths[hosted.partition], hosted.epoch, hosted.replica.committed[0]
        before = max((e.ends[0] for n, e in truth.epochs.items() if n < epoch), default=0)
        check(end >= before, "for a reader, HW went back at epoch", epoch, "from", before, "to", end)
        seen, known = hosted.logs[0].read(first, end), truth.logs[0][first:end]
        check(seen == known, "a reader saw what was not committed, from", first, lambda: (seen, known))

    # ---- deliveries

    def _row(self, truth: Truth, at: int, row: tuple[str, int, int]) -> None:
        kind, lease, offset = row
        if kind == "lease":
            check(offset not in truth.acked, "leased after its acknowledgement", row, "at", at)
            return
        if kind == "done":
            truth.ended.update(lease for other, lease in truth.live.items() if other < offset)
            truth.live = {other: lease for other, lease in truth.live.items() if other >= offset}
            return
        truth.ended.add(lease)
        if truth.live.get(offset) == lease:
            del truth.live[offset]
        if kind == "ack":
            truth.acked.add(offset)

    def leased(self, partition: int, lease: int, offset: int) -> None:
        self.leases += 1
        truth = self.truths[partition]
        if lease in truth.ended or self._is_given_up(partition):
            # Told late: it has run out, and the consumer can do nothing with it.
            return
        check(truth.ok_acked.get(offset) is None, "delivered after its acknowledgement", partition, offset)
        other = truth.live.get(offset)
        check(other is None, "leased twice at a time", partition, offset, other, lease)
        truth.live[offset] = lease

    def ok_acked(self, partition: int, lease: int, offset: int) -> None:
        truth = self.truths[partition]
        check(
            self._is_given_up(partition) or offset in truth.acked,
            "an acknowledgement was answered, and not committed",
            partition,
            offset,
        )
        truth.ok_acked[offset] = lease

    # ---- at the end

    def at_the_end(self) -> None:
        """All replicas have all that was committed, and the same."""
        for partition, truth in enumerate(self.truths):
            record = self._world.etcd.records[partition][1]
            copies = [self._world.nodes[name].disk.partitions[partition] for name in record.replicas]
            for log in (0, 1):
                known = [] if record.unclean else truth.logs[log]
                for copy in copies:
                    self._same(copy[log], copies[0][log], known, f"partition {partition} log {log}")

    def _same(self, copy: DiskLog, other: DiskLog, known: list[Entry], where: str) -> None:
        first = max(copy.base, other.base)
        check(
            copy.end == other.end and copy.read(first, copy.end) == other.read(first, other.end),
            "replicas differ:",
            where,
        )
        check(copy.end >= len(known), "committed entries are gone:", where)
        have = copy.read(copy.base, max(copy.base, len(known)))
        check(have == known[copy.base :], "committed entries are others now:", where)
