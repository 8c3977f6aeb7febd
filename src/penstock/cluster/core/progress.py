"""What a leader knows of a follower, since one start of one process on one disk, at the leader's epoch."""

from __future__ import annotations

from penstock.cluster.core.extent import Both


class Progress:
    """Before a fetch has fitted the leader's lineage, the follower has nothing that counts (`ends` is None)."""

    __slots__ = (
        "_goal",
        "_goal_us",
        "caught_up_us",
        "disk",
        "ends",
        "heard_us",
        "incarnation",
        "is_waiting",
        "request",
    )

    def __init__(self, disk: str, incarnation: str, now_us: int) -> None:
        self.disk = disk
        self.incarnation = incarnation
        self.ends: Both | None = None
        # The last fetch, and whether it is held until there is something to tell.
        self.request = 0
        self.is_waiting = False
        self.heard_us = now_us
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

    def heard(self, heard_us: int, leaders: Both) -> None:
        """Its node was heard to still wait for answers."""
        if self.is_waiting and heard_us > self.heard_us:
            self.heard_us = heard_us
            if self.ends == leaders:
                self.caught_up_us = heard_us
