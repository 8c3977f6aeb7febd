"""What happens to a replica: each is given to `Replica.step`, together with the node's boot time.

Besides these, `Fetch` and `Withdraw` (to a leader) and `Reply` (to a follower) are events as they come in.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from penstock.cluster.core.messages import Fetch, Reply, Withdraw
from penstock.cluster.core.record import PartitionRecord


class Registered(Struct, frozen=True, gc=False):
    """What a live node has registered in etcd."""

    disk: str
    incarnation: str


class RecordSeen(Struct, frozen=True, gc=False):
    """From a watch, a read, or the answer to a proposal. Late ones do no harm. None: the partition was deleted."""

    revision: int
    record: PartitionRecord | None


class ProposalEnded(Struct, frozen=True, gc=False):
    """The last `Propose` was carried out, or was not, or nobody knows. If it is known, `RecordSeen` came first."""


class Contact(Struct, frozen=True, gc=False):
    """The stream by which another node fetches from this one."""

    # When the stream was opened. Fetches that came before it are void: the follower repeats those it still waits for.
    since_us: int
    # When the last packet arrived. It may have been sent much earlier: a stopped process finds packets waiting.
    heard_us: int
    # When this node sent the last packet that the follower has answered: the follower spoke later than that.
    confirmed_us: int = 0


class Tick(Struct, frozen=True, gc=False):
    """Once a second for a leader, when a `Wake` is due, and when nodes come or go: how things are on this node.

    The same mappings serve all of a node's replicas; nobody changes them.
    """

    # The session is surely valid until then: when the last keepalive that was answered had been sent, plus trust.
    session_until_us: int
    live: Mapping[str, Registered]
    # By node: the stream of every node that fetches from here.
    contacts: Mapping[str, Contact]


class Wrote(Struct, frozen=True, gc=False):
    """This node's own appends, as leader: how far the log goes, and how far it is on disk."""

    log: int
    end: int
    durable: int


class Begun(Struct, frozen=True, gc=False):
    """`Begin` was done: the epoch's first frames are at these offsets. `Wrote` goes on telling what is on disk.

    None: there was no room for it until the epoch was over.
    """

    epoch: int
    firsts: tuple[int | None, int | None]
    id: int = 0


class Stored(Struct, frozen=True, gc=False):
    """`Store` was done, and is on disk. Or nothing was stored: what came does not go on from what is here, or there was
    no room for it."""

    log: int
    end: int
    epochs: tuple[tuple[int, int, int], ...]
    is_diverged: bool = False


class WasCut(Struct, frozen=True, gc=False):
    """`Cut` or `Reset` was done, and is on disk."""

    log: int
    start: int
    end: int


class Expired(Struct, frozen=True, gc=False):
    """The leader's retention needs nothing below `start` any more: never what is not committed."""

    log: int
    start: int


class Trimmed(Struct, frozen=True, gc=False):
    """`Trim` was done, and is on disk: the log begins here."""

    log: int
    start: int


class Unanswered(Struct, frozen=True, gc=False):
    """The connection to the leader was lost, or it is silent for too long: the fetch may never be answered."""


Event = (
    RecordSeen
    | ProposalEnded
    | Tick
    | Wrote
    | Begun
    | Stored
    | WasCut
    | Expired
    | Trimmed
    | Unanswered
    | Fetch
    | Withdraw
    | Reply
)
