"""The partition record: the one thing about a partition that must never be in doubt. It lives in etcd, as JSON.

It is changed only by compare-and-swap on its revision, and only the newest revision a node has seen counts. Between two
elections only the leader changes the ISR; an election is a change of the leader, and has an epoch of its own.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock.decoding import from_json
from penstock.errors import InvalidInput


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

    def elected(self, leader: str, incarnation: str, isr: tuple[Member, ...]) -> PartitionRecord:
        """With that leader, at the next epoch. Whatever the old one was asked to do is not asked of the new one."""
        return replace(self, leader=leader, incarnation=incarnation, epoch=self.epoch + 1, isr=isr, successor=None)


def encode(record: PartitionRecord) -> bytes:
    return msgspec.json.encode(record)


def decode(data: bytes | str) -> PartitionRecord:
    try:
        return from_json(data, PartitionRecord)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"This is no partition record: {error}. Was it written by something else?") from None
