"""The partition record: the one thing about a partition that must never be in doubt. It lives in etcd, as JSON.

It is changed only by compare-and-swap on its revision, and only the newest revision a node has seen counts. Between two
elections only the leader changes the ISR; an election is a change of the leader, and has an epoch of its own.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock.cluster.core import unknown_fields
from penstock.cluster.core.unknown_fields import Unknown
from penstock.errors import InvalidInput

# Of an epoch: below are elections, above how often etcd was found to be set back to a backup.
_GENERATION_BITS = 20


def generation_of(epoch: int) -> int:
    """Epochs of one generation are never used twice. Those of two may be of histories that know nothing of each other:
    see `cluster/restored.py`."""
    return epoch >> _GENERATION_BITS


class Member(Struct, frozen=True, order=True):
    """A replica that has all that is committed: not the node alone, for the disk in it may be another by now."""

    node: str
    disk: str


class PartitionRecord(Struct, frozen=True, omit_defaults=True):
    topic: str
    number: int
    # Preferred leader first.
    replicas: tuple[str, ...]
    min_isr: int
    isr: tuple[Member, ...] = ()
    leader: str | None = None
    # Of the leader's process. A process that was started again may have lost what others have got from it, so it may
    # not go on at the same epoch.
    incarnation: str = ""
    epoch: int = 0
    # Who the replicas are to be. Those that are new catch up first.
    target: tuple[str, ...] = ()
    # Who was to be a replica, and is no longer: they stay until the move ends.
    leaving: tuple[str, ...] = ()
    # To whom the leader is asked to hand over.
    successor: str | None = None
    # Epochs that began with less than was committed, because an operator said so.
    unclean: tuple[int, ...] = ()
    # What a newer build has written that this one does not know. Not a field in etcd.
    unknown: Unknown = msgspec.field(default=(), name="")

    def hosts(self, node: str) -> bool:
        return node in self.replicas or node in self.target or node in self.leaving

    @property
    def hosting(self) -> tuple[str, ...]:
        """All that have a copy, or are to get one, by preference."""
        return tuple(dict.fromkeys(self.replicas + self.target + self.leaving))

    def disk_of(self, node: str) -> str | None:
        """The disk by which a node is in the ISR."""
        return next((member.disk for member in self.isr if member.node == node), None)

    def is_in_sync(self, node: str, disk: str) -> bool:
        return self.disk_of(node) == disk

    def fenced(self, generation: int) -> PartitionRecord:
        """Without a leader, ahead of all epochs of that generation."""
        return replace(self, leader=None, incarnation="", successor=None, epoch=generation << _GENERATION_BITS)

    @property
    def is_fenced(self) -> bool:
        """No leader was elected since etcd was restored. Its ISR is that of the backup."""
        return self.leader is None and self.epoch == generation_of(self.epoch) << _GENERATION_BITS > 0

    def elected(self, leader: str, incarnation: str, isr: tuple[Member, ...]) -> PartitionRecord:
        """With that leader, at the next epoch. Whatever the old one was asked to do is not asked of the new one."""
        return replace(self, leader=leader, incarnation=incarnation, epoch=self.epoch + 1, isr=isr, successor=None)


def encode(record: PartitionRecord) -> bytes:
    return unknown_fields.encode(replace(record, unknown=()), record.unknown)


def decode(data: bytes | str) -> PartitionRecord:
    try:
        record, unknown = unknown_fields.decode(data, PartitionRecord)
        return replace(record, unknown=unknown) if unknown else record
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"This is no partition record: {error}. Was it written by something else?") from None
