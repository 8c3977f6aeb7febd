"""What replicas of a partition say to each other. Whoever runs them sends many of these in one request.

A follower's fetch says how far it is, on disk, and so is its acknowledgement too. The leader answers when there is
something to tell, be it much later: until then it holds the fetch, and neither side has anything to do. A lost one is
asked again, under another number.
"""

from __future__ import annotations

from msgspec import Struct

from penstock.cluster.core.extent import Both


class Fetch(Struct, frozen=True, gc=False):
    """Both logs from `ends` on, please: so far they are on my disk, with last frames of the epochs `lasts`.

    `starts`: where the follower's logs begin, on disk. None if its build does not report that. `ids`: of the epochs
    `lasts`; 0 if the follower does not know it.
    """

    node: str
    disk: str
    incarnation: str
    epoch: int
    request: int
    ends: Both
    lasts: Both
    starts: Both | None = None
    ids: Both = (0, 0)


class Withdraw(Struct, frozen=True, gc=False):
    """The sender no longer follows this leader at this epoch. Its fetches of the epoch, up to `request`, are void: they
    no longer extend the leader's right to serve."""

    node: str
    disk: str
    incarnation: str
    epoch: int
    request: int


class Data(Struct, frozen=True, tag="data", gc=False):
    """Frames from `first` on. The leader's replica gives how much there is; what is sent may end sooner, and `epochs`
    is filled in from the frames that are: each epoch among them, with its first offset. `ids` are those of `epochs`."""

    first: int
    end: int
    epochs: tuple[tuple[int, int], ...] = ()
    ids: tuple[int, ...] = ()


class Diverged(Struct, frozen=True, tag="diverged", gc=False):
    """Your last frame is not in my log. The largest epoch up to yours that I have ends here."""

    epoch: int
    end: int


class StartAt(Struct, frozen=True, tag="start", gc=False):
    """Nothing of what you have is left in my log: begin anew, where it begins."""

    start: int


class Foreign(Struct, frozen=True, tag="foreign", gc=False):
    """I have an epoch of that number, and it is another: etcd was restored from a backup, and the number used twice."""


Part = Data | Diverged | StartAt | Foreign | None


class Reply(Struct, frozen=True, gc=False):
    """To the fetch of that number, by that incarnation of that node. A part for each log, None if it has no news."""

    to: str
    incarnation: str
    epoch: int
    request: int
    parts: tuple[Part, Part] = (None, None)
    # How far all is committed, and where the logs of all replicas are to begin.
    committed: Both = (0, 0)
    starts: Both = (0, 0)
    # The fetch is of another epoch, or not from a replica: look at the record again.
    is_fenced: bool = False
