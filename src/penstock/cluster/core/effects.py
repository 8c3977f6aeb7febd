"""What is to be done: `Replica.step` returns these, to be carried out in this order, one step after the other.

Besides these, `Reply` is one: to be filled with frames and sent.
"""

from __future__ import annotations

from msgspec import Struct

from penstock.cluster.core.messages import Data, Fetch, Reply
from penstock.cluster.core.record import PartitionRecord


class Begin(Struct, frozen=True, gc=False):
    """This node leads. Append to both logs the frame that begins the epoch. Report `Begun` in any case, and `Wrote` as
    the frames reach the disk. From now on appends are stamped with this epoch. The node serves no requests yet."""

    epoch: int


class Follow(Struct, frozen=True, gc=False):
    """Another leads. No appends any more: sync, and tell `Wrote`. Who waits for a commit does not hear of it here."""

    leader: str
    epoch: int


class Rest(Struct, frozen=True, gc=False):
    """Nobody leads, or the partition is none of this node's business (any more), at this revision of the record.

    In the second case its copy may be deleted, once a transaction has shown that etcd still has this revision: what a
    process reads when it starts may be older than the copy.
    """

    is_host: bool
    revision: int


class Serve(Struct, frozen=True, gc=False):
    """Writers and readers may be served while boot time is below that. A later one takes its place, also if it ends
    sooner."""

    until_us: int


class Hold(Struct, frozen=True, gc=False):
    """Leadership is being handed over, or another node may lead by now: take no writes until the next `Serve`. What was
    taken goes on."""


class Committed(Struct, frozen=True, gc=False):
    """Below this all of the log is committed: tell those who wait for it, and show it to readers."""

    log: int
    offset: int


class Cut(Struct, frozen=True, gc=False):
    """Truncate the log, and tell `WasCut` once that is on disk."""

    log: int
    offset: int


class Reset(Struct, frozen=True, gc=False):
    """Drop all of the log; it begins at `start`, and is empty. Tell `WasCut` once that is on disk."""

    log: int
    start: int


class Trim(Struct, frozen=True, gc=False):
    """Delete what is below `start`; report `Trimmed` once that is on disk. Followers do so before their leader."""

    log: int
    start: int


class Ask(Struct, frozen=True, gc=False):
    """Send the fetch. It takes the place of an earlier one for this partition, to whomever that went."""

    leader: str
    fetch: Fetch


class Store(Struct, frozen=True, gc=False):
    """Append the frames that came with this part of the reply, and tell `Stored` once they are on disk."""

    log: int
    data: Data


class Propose(Struct, frozen=True, gc=False):
    """Put the record into etcd if it still has this revision there. Then `RecordSeen`, if it is known what is there,
    and in any case `ProposalEnded`."""

    revision: int
    record: PartitionRecord


class Reread(Struct, frozen=True, gc=False):
    """Something does not fit what this node knows: read the record and the nodes again."""


class Wake(Struct, frozen=True, gc=False):
    """Give a `Tick` at that time."""

    at_us: int


Effect = (
    Begin
    | Follow
    | Rest
    | Serve
    | Hold
    | Committed
    | Cut
    | Reset
    | Trim
    | Ask
    | Store
    | Reply
    | Propose
    | Reread
    | Wake
)
