"""How far this node's copy of one log goes."""

from __future__ import annotations

from penstock.cluster.core.lineage import Lineage

MESSAGES, DELIVERIES = LOGS = (0, 1)

# One number for each log.
Both = tuple[int, int]


class Extent:
    """Invariant: start <= durable <= end.

    A copy that is opened is durable as far as it goes: recovery syncs it.
    """

    __slots__ = ("durable", "end", "is_busy", "is_resetting", "lineage", "start", "trimming_to")

    def __init__(self, start: int = 0, end: int = 0, lineage: Lineage | None = None) -> None:
        assert start <= end
        self.start = start
        self.end = end
        self.durable = end
        self.lineage = lineage or Lineage()
        # It is being cut or written to for a follower, and nobody knows how far yet; or made empty.
        self.is_busy = False
        self.is_resetting = False
        # Where the log will begin when a `Trim` is done; `start` if none is under way.
        self.trimming_to = start

    def __repr__(self) -> str:
        return f"Extent({self.start}..{self.durable}..{self.end}, {self.lineage})"

    @property
    def is_settled(self) -> bool:
        return not self.is_busy and self.durable == self.end

    def wrote(self, end: int, durable: int) -> None:
        assert self.start <= durable <= end
        self.end = end
        self.durable = durable

    def stored(self, end: int, epochs: tuple[tuple[int, int, int], ...]) -> None:
        self.is_busy = False
        self.end = self.durable = end
        for entry in epochs:
            self.lineage.add(*entry)

    def cut(self, start: int, end: int) -> None:
        self.is_busy = False
        self.start = self.trimming_to = start
        self.end = self.durable = end
        # Of a log that begins anew it is not known what came before.
        self.lineage.cut(0 if self.is_resetting else end)
        self.is_resetting = False

    @property
    def is_trimming(self) -> bool:
        return self.trimming_to > self.start

    def trim(self, start: int) -> None:
        self.start = start
        self.trimming_to = max(self.trimming_to, start)
        self.lineage.trim(start)
