"""What a leader knows of a follower, since one start of one process on one disk, at the leader's epoch."""

from __future__ import annotations

from penstock.cluster.core.events import Contact
from penstock.cluster.core.extent import Both


class Progress:
    """Before a fetch has fitted the leader's lineage, the follower has nothing that counts (`ends` is None)."""

    __slots__ = (
        "_goal",
        "_goal_us",
        "caught_up_us",
        "confirmed_us",
        "disk",
        "ends",
        "fetched_us",
        "incarnation",
        "is_waiting",
        "request",
        "starts",
    )

    def __init__(self, disk: str, incarnation: str, now_us: int) -> None:
        self.disk = disk
        self.incarnation = incarnation
        self.ends: Both | None = None
        # Where its logs begin. None if its build does not report that.
        self.starts: Both | None = None
        # The last fetch, and whether it is held until there is something to tell.
        self.request = 0
        self.is_waiting = False
        # When that fetch arrived; None after the follower has withdrawn it.
        self.fetched_us: int | None = None
        # The follower surely followed this leader at this time, by the leader's clock. 0: not known.
        self.confirmed_us = 0
        self.caught_up_us = now_us
        self._goal: Both | None = None
        self._goal_us = now_us

    def fetched(self, now_us: int, ends: Both, leaders: Both) -> None:
        """It has all up to `ends` on disk. It was caught up when it last fetched, if it has all that there was then."""
        self.ends = ends
        if self._goal is not None and ends[0] >= self._goal[0] and ends[1] >= self._goal[1]:
            self.caught_up_us = max(self.caught_up_us, self._goal_us)
        self._goal, self._goal_us = leaders, now_us
        if ends == leaders:
            self.caught_up_us = now_us

    def begins_at(self, starts: Both) -> bool:
        """Return whether both logs begin at these offsets or later. True if the follower's build does not report it."""
        return self.starts is None or (self.starts[0] >= starts[0] and self.starts[1] >= starts[1])

    def contacted(self, contact: Contact, leaders: Both) -> None:
        """Its node is in contact. That counts only for fetches of the same stream which were not withdrawn."""
        if self.fetched_us is None or self.fetched_us < contact.since_us:
            return
        self.confirmed_us = max(self.confirmed_us, contact.confirmed_us)
        if self.is_waiting and self.ends == leaders:
            self.caught_up_us = max(self.caught_up_us, contact.heard_us)

    def withdraw(self, request: int) -> None:
        """Forget its fetches up to that one, also if they arrive later."""
        if request >= self.request:
            self.request = request
            self.is_waiting = False
            self.fetched_us = None
            self.confirmed_us = 0
