"""What a controller, or an operator, makes of a record. Put into etcd by compare-and-swap, as any change of it.

A controller may be one that was, and what it knows of the nodes may be old: then it elects somebody without need, but
never somebody who lacks what is committed. None always means: leave the record as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from penstock.cluster.core.events import Registered
from penstock.cluster.core.extent import Both
from penstock.cluster.core.record import Member, PartitionRecord
from penstock.errors import InvalidInput

Live = Mapping[str, Registered]


class Copy(NamedTuple):
    """How far a copy goes. One of a later epoch has more of what is committed, also if it is shorter."""

    last_epoch: int
    ends: Both


# Among nodes that can lead, the one for whom this is lowest; of equals the first replica.
Rank = Callable[[str], int]


def _equal(node: str) -> int:
    return 0


def first(topic: str, number: int, replicas: Sequence[str], min_isr: int, live: Live) -> PartitionRecord:
    """The record of a new partition, led by the first of them, which is alive. All copies are empty, so all are in
    sync; nodes that are not alive get theirs when they are."""
    is_led = bool(replicas) and replicas[0] in live
    if not is_led or len(set(replicas)) < len(replicas) or not 1 <= min_isr <= len(replicas):
        raise InvalidInput(f"{list(replicas)} can't hold a partition of min_isr {min_isr}, with {sorted(live)} alive")
    isr = tuple(Member(node, live[node].disk) for node in replicas if node in live)
    record = PartitionRecord(topic, number, tuple(replicas), min_isr)
    return record.elected(replicas[0], live[replicas[0]].incarnation, isr)


def elect(record: PartitionRecord, live: Live, rank: Rank = _equal) -> PartitionRecord | None:
    """Another leader, if the one there is has died, or was started again; None too if nobody can be elected. After etcd
    was restored, the first leader is elected by `elect_furthest`: the ISR is that of the backup, and proves nothing.

    Who is in the ISR stays in it. To take out the dead is up to the new leader: should that one be gone too, what only
    the dead one has is not given up for lost.
    """
    if is_led(record, live) or record.is_fenced:
        return None
    leader = min(_candidates(record, live), key=rank, default=None)
    if leader is None:
        return None
    return record.elected(leader, live[leader].incarnation, record.isr)


def elect_furthest(record: PartitionRecord, copies: Mapping[str, Copy], live: Live) -> PartitionRecord | None:
    """The first leader after etcd was restored. The ISR is that of the backup, and members of it may lack what was
    committed since; replicas outside of it may have all. So the copy that goes furthest leads, and the others join the
    ISR again when they have caught up. An empty copy leads only if it is in the ISR."""
    able = [
        node
        for node in record.hosting
        if node in live and node in copies and (copies[node].last_epoch or record.is_in_sync(node, live[node].disk))
    ]
    if not able:
        return None
    leader = max(able, key=lambda node: (copies[node].last_epoch, copies[node].ends))
    return record.elected(leader, live[leader].incarnation, (Member(leader, live[leader].disk),))


def prefer(record: PartitionRecord, live: Live) -> PartitionRecord | None:
    """Ask the leader to hand over to the first of the replicas, if that one can take over."""
    preferred = record.replicas[0]
    if record.leader == preferred or preferred not in _candidates(record, live):
        return None
    return _with_successor(record, preferred)


def hand_over(record: PartitionRecord, node: str, live: Live) -> PartitionRecord | None:
    """Ask the leader to hand over to that node, if it can take over."""
    return None if record.leader == node or node not in _candidates(record, live) else _with_successor(record, node)


def drain(record: PartitionRecord, node: str, live: Live, rank: Rank = _equal) -> PartitionRecord | None:
    """Ask a leader to hand over to anybody else. None if it does not lead, or nobody can take over, or it was asked."""
    if record.leader != node:
        return None
    others = [name for name in _candidates(record, live) if name != node]
    return None if not others or record.successor in others else replace(record, successor=min(others, key=rank))


def reassign(record: PartitionRecord, target: Sequence[str], live: Live) -> PartitionRecord | None:
    """Have the partition moved to these nodes: those that are new catch up first. The present ones: call a move off."""
    missing = [node for node in target if node not in live and node not in record.replicas]
    if missing or len(set(target)) < len(target) or len(target) < record.min_isr:
        raise InvalidInput(
            f"{list(target)} can't hold a partition of min_isr {record.min_isr}: {missing} are not live."
        )
    if tuple(target) == (record.target or record.replicas):
        return None
    leaving = tuple(node for node in record.hosting if node not in record.replicas and node not in target)
    return replace(record, target=tuple(target), leaving=leaving, successor=None)


def move_beside(record: PartitionRecord, sibling: PartitionRecord, live: Live) -> PartitionRecord | None:
    """Have the partition moved to where the sibling is or is to be, and to more of its own replicas if it needs more.
    None if it is there, or goes there, or a node is not live that it would have to be copied to."""
    beside, own = sibling.target or sibling.replicas, record.target or record.replicas
    others = [node for node in own if node not in beside]
    target = (*beside, *others[: max(record.min_isr - len(beside), 0)])
    is_possible = len(target) >= record.min_isr and all(node in live or node in record.replicas for node in target)
    return reassign(record, target, live) if is_possible and set(target) != set(own) else None


def elect_unclean(record: PartitionRecord, node: str, live: Live) -> PartitionRecord:
    """An operator gives up what only disks have that are lost: this node leads, with what it has.

    Everybody else follows it. Readers are told that the log was truncated, by the epoch among `unclean`.
    """
    if node not in live or not record.hosts(node):
        raise InvalidInput(f"{node} can't lead this partition: it is not live, or has no copy of it.")
    elected = record.elected(node, live[node].incarnation, (Member(node, live[node].disk),))
    return replace(elected, unclean=(*record.unclean, elected.epoch))


def is_led(record: PartitionRecord, live: Live) -> bool:
    """Whether the leader is there, and is the process that was elected."""
    registered = live.get(record.leader) if record.leader is not None else None
    return registered is not None and registered.incarnation == record.incarnation


def _candidates(record: PartitionRecord, live: Live) -> list[str]:
    """Those in the ISR that are live, on the disk by which they are in it; by preference."""
    return [name for name in record.hosting if name in live and record.is_in_sync(name, live[name].disk)]


def _with_successor(record: PartitionRecord, node: str) -> PartitionRecord | None:
    return None if record.successor == node else replace(record, successor=node)
