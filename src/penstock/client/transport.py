"""The port between a client and a broker, wherever that is: in the same process (`local`), or behind a connection.

It carries frames as they lie on disk, single messages, and receipts. What is not about messages on their way goes
through `call`, as one of the requests in `requests.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from pyroaring import BitMap64

from penstock.acks import ALL
from penstock.client.answers import Answer
from penstock.client.requests import Request
from penstock.errors import LeaseError
from penstock.frame import Frame
from penstock.limits import Limits
from penstock.message import Message

R = TypeVar("R")


# The offset of what nobody waited for.
UNKNOWN = -1


class Stored(NamedTuple):
    """Where something went; and how many partitions the topic has now, so that a producer hears of new ones."""

    partition: int
    offset: int
    append_time: int
    partitions: int


class Terms(NamedTuple):
    """How a group works, as far as those must know who hold messages for it."""

    ordering: str
    on_poison: str
    lanes: str


class Receipt(NamedTuple):
    """What a consumer answers with: some messages of one lease."""

    topic: str
    partition: int
    lease: int
    offsets: BitMap64

    def __repr__(self) -> str:
        where = f"{self.topic}:{self.partition}" + (f":{self.offsets.min()} on" if self.offsets else "")
        return f"<{type(self).__name__} of lease {self.lease} for {len(self.offsets)} messages, from {where}>"


class Lease(NamedTuple):
    """By its number, which only its partition knows."""

    topic: str
    partition: int
    number: int


class Delivery(NamedTuple):
    """Messages leased from one partition and lane: those of `frames` whose offsets are in the receipt.

    `attempts` names only those that were delivered before. The lease lasts until `deadline_us` on the clock of
    `monotonic_us` at least: at the broker it may end later, by what the request took to get there, and never earlier.
    """

    receipt: Receipt
    frames: Sequence[Frame]
    attempts: Mapping[int, int]
    deadline_us: int
    terms: Terms


class Page(NamedTuple):
    """Whole frames of a log. The first may start before what was asked for, and the last end behind it. `epoch` is that
    of whoever leads the partition; 0 without a cluster, or if nobody says."""

    frames: Sequence[Frame]
    next_offset: int
    epoch: int = 0


ACK_LEASES_MAX = 1_000
# Of some leases, by their numbers: offsets.
Leases = Sequence[tuple[int, BitMap64]]


class Transport(Protocol):
    """Belongs to one event loop, except for the clocks and `limits`. Errors are those of `penstock.errors`."""

    @property
    def limits(self) -> Limits: ...

    @property
    def principal(self) -> str:
        """The one that the broker binds our producer ids to; empty if it does not."""

    @property
    def is_lost(self) -> bool:
        """It was connected to a broker, and is not now. From any thread."""

    def is_led(self, topic: str, partition: int) -> bool:
        """Whether a node that can be reached leads the partition, as far as is known. From any thread."""

    def now_us(self) -> int:
        """The broker's clock, as well as it is known here."""

    def monotonic_us(self) -> int:
        """Of this process, for how long something lasts."""

    async def publish(self, topic: str, message: Message, partition: int | None, acks: str = ALL) -> Stored: ...

    async def publish_frame(self, topic: str, partition: int, frame: Frame, acks: str = ALL) -> Stored:
        """A frame that is sent again is recognised by its producer and sequence. Those of one partition arrive in the
        order in which this is called."""

    async def join(self, group: str, consumer: str, topics: Sequence[str], settings: Mapping[str, Any]) -> None:
        """A member until it leaves, or the transport is gone. Makes the group if it is not there."""

    async def leave(self, group: str, consumer: str) -> None: ...

    async def poll(
        self, group: str, consumer: str, topics: Sequence[str], *, count: int, bytes_max: int, wait_us: int
    ) -> Sequence[Delivery]:
        """MemberNotFound if it has to join (again). A poll that is cancelled has leased nothing."""

    async def answer(self, group: str, receipt: Receipt, answer: Answer) -> None:
        """On disk when this returns."""

    async def ack_all(
        self, group: str, topic: str, partition: int, leases: Leases, *, again: bool = False
    ) -> Sequence[LeaseError | None]:
        """Messages of several leases of one partition are done: of ACK_LEASES_MAX at most, each named once. Of each why
        that could not be said; the others are on disk."""

    async def read(
        self,
        topic: str,
        partition: int,
        offset: int,
        until: int,
        bytes_max: int,
        columns: Sequence[str] | None = None,
        epoch: int = 0,
    ) -> Page:
        """The log as it was written; an empty page where there is nothing any more.

        With `columns`, those of a message that are wanted; frames may have others, too, which are not to be relied on.
        `epoch` is that of the page before: LogTruncated if a leader was elected since that did not have all in front of
        `until`, which was there.
        """

    async def call(self, request: Request[R]) -> R: ...

    async def close(self, timeout_s: float) -> None:
        """`timeout_s`: how long a broker that does not answer is waited for."""
