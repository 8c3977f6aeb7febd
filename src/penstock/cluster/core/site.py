"""What leader and follower have in common: who this node is, its copies of the logs, and its surroundings."""

from __future__ import annotations

from penstock.cluster.core.events import Tick
from penstock.cluster.core.extent import DELIVERIES, MESSAGES, Both, Extent
from penstock.cluster.core.timing import Timing


class Site:
    __slots__ = ("beginning", "committed", "disk", "incarnation", "logs", "node", "request", "tick", "timing")

    def __init__(
        self, node: str, disk: str, incarnation: str, logs: tuple[Extent, Extent], timing: Timing | None = None
    ) -> None:
        self.node = node
        self.disk = disk
        self.incarnation = incarnation
        self.logs = logs
        self.timing = timing or Timing()
        # The last that was seen of it. It never goes back here.
        self.committed: Both = (0, 0)
        # The number of the last fetch of this incarnation.
        self.request = 0
        self.tick = Tick(0, {}, {})
        # How often `Begin` is under way: until `Begun`, a frame may come into the logs, also if another leads by then.
        self.beginning = 0

    @property
    def starts(self) -> Both:
        return self.logs[MESSAGES].start, self.logs[DELIVERIES].start

    @property
    def trimming_to(self) -> Both:
        """Where the logs begin once every `Trim` that is under way is done."""
        return self.logs[MESSAGES].trimming_to, self.logs[DELIVERIES].trimming_to

    @property
    def ends(self) -> Both:
        return self.logs[MESSAGES].end, self.logs[DELIVERIES].end

    @property
    def last_epoch(self) -> int:
        """The latest that anything here was written at."""
        return max(self.logs[MESSAGES].lineage.last, self.logs[DELIVERIES].lineage.last)

    @property
    def is_settled(self) -> bool:
        return not self.beginning and self.logs[MESSAGES].is_settled and self.logs[DELIVERIES].is_settled
