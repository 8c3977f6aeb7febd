"""Who is in the ISR: what a leader would have the record say.

It never shrinks below `min_isr`. Nothing could be committed by fewer, so nothing is gained by taking somebody out; and
whoever stays in it has all that is committed, and can be elected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock.cluster.core.progress import Progress
from penstock.cluster.core.record import Member, PartitionRecord

if TYPE_CHECKING:
    from penstock.cluster.core.leader import Leader


def in_sync(now_us: int, leader: Leader) -> PartitionRecord:
    """The leader's record, with the ISR as it should be."""
    record = leader.ballot.record
    if not leader.site.tick.live:
        return record
    joining = tuple(
        Member(node, progress.disk)
        for node, progress in leader.followers.items()
        if _may_join(now_us, leader, node, progress)
    )
    # If a node joins with another disk, the one it had is gone.
    names = {member.node for member in joining}
    members = tuple(member for member in record.isr if member.node not in names)
    staying = tuple(member for member in members if _may_stay(now_us, leader, member))
    isr = staying + joining
    if len(isr) < record.min_isr:
        isr = members + joining
    # What is asked of a leader that has not begun yet, it sees to when it has.
    successor = record.successor if leader.is_handing_over or not leader.is_open else None
    return (
        record if (isr, successor) == (record.isr, record.successor) else replace(record, isr=isr, successor=successor)
    )


def still_in_sync(now_us: int, leader: Leader) -> tuple[Member, ...]:
    """Those of the ISR that are, as far as the leader knows: also those are missing that stay in it because too few
    would be left."""
    isr = leader.ballot.record.isr
    if not leader.site.tick.live:
        return isr
    return tuple(member for member in isr if _may_stay(now_us, leader, member))


def _may_stay(now_us: int, leader: Leader, member: Member) -> bool:
    site = leader.site
    if member.node == site.node:
        return True
    registered = site.tick.live.get(member.node)
    if registered is None or registered.disk != member.disk:
        return False
    progress = leader.followers.get(member.node)
    caught_up_us = leader.began_us if progress is None or progress.disk != member.disk else progress.caught_up_us
    return now_us - caught_up_us <= site.timing.lag_us


def _may_join(now_us: int, leader: Leader, node: str, progress: Progress) -> bool:
    """It has all that is committed, and the beginning of this epoch, on the disk that it is registered with; and has
    deleted what the leader has, or is about to: if it is elected, no log's start goes back."""
    site, ends, firsts = leader.site, progress.ends, leader.firsts
    if ends is None or firsts is None or leader.ballot.record.is_in_sync(node, progress.disk):
        return False
    registered = site.tick.live.get(node)
    if registered is None or (registered.disk, registered.incarnation) != (progress.disk, progress.incarnation):
        return False
    if now_us - progress.caught_up_us > site.timing.lag_us or not progress.begins_at(site.trimming_to):
        return False
    committed = site.committed
    return ends[0] >= max(committed[0], firsts[0] + 1) and ends[1] >= max(committed[1], firsts[1] + 1)
