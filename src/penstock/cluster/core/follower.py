"""The replica that follows: it asks its leader, cuts what the leader does not have, and stores what it has.

It never cuts to the high watermark. What it knows of that may be old, and what it has beyond may be all that is left of
something that was acknowledged. The leader says where the follower's last epoch ends there; the follower cuts to that,
or to where its own part of that epoch ends, and asks again, until they agree.

Nor does it ever go back to before its log's start: what was there was committed, and deleted as such. A leader that has
less is one that was; unless it was elected at the cost of what is committed.

It asks only when all it has is on disk, so that a fetch acknowledges what it does not ask for.
"""

from __future__ import annotations

from penstock.cluster.core.effects import Ask, Cut, Effect, Follow, Reread, Reset, Store, Trim, Wake
from penstock.cluster.core.extent import LOGS
from penstock.cluster.core.messages import Data, Diverged, Fetch, Part, Reply, StartAt
from penstock.cluster.core.record import PartitionRecord
from penstock.cluster.core.site import Site


class Follower:
    def __init__(self, site: Site, leader: str, record: PartitionRecord, out: list[Effect]) -> None:
        self.site = site
        self.leader = leader
        self.epoch = record.epoch
        self._unclean = max(record.unclean, default=0)
        # The number of the fetch that is not answered yet.
        self._asked: int | None = None
        # It was fenced, and does not ask before.
        self._not_before_us = 0
        out.append(Follow(leader, record.epoch))
        self.ask(out)

    def ask(self, out: list[Effect]) -> None:
        site = self.site
        if self._asked is not None or self._not_before_us or not site.is_settled:
            return
        messages, deliveries = site.logs
        site.request += 1
        self._asked = site.request
        ends = messages.durable, deliveries.durable
        lasts = messages.lineage.last, deliveries.lineage.last
        fetch = Fetch(site.node, site.disk, site.incarnation, self.epoch, site.request, ends, lasts)
        out.append(Ask(self.leader, fetch))

    def unanswered(self, out: list[Effect]) -> None:
        self._asked = None
        self.ask(out)

    def ticked(self, now_us: int, out: list[Effect]) -> None:
        if self._not_before_us and now_us >= self._not_before_us:
            self._not_before_us = 0
            self.ask(out)

    def replied(self, now_us: int, reply: Reply, out: list[Effect]) -> None:
        if reply.request != self._asked or reply.incarnation != self.site.incarnation:
            return
        self._asked = None
        if reply.is_fenced or reply.epoch != self.epoch or any(self._is_behind(log, reply.parts[log]) for log in LOGS):
            self._not_before_us = now_us + self.site.timing.retry_us
            out.append(Reread())
            out.append(Wake(self._not_before_us))
            return
        known = self.site.committed
        self.site.committed = max(known[0], reply.committed[0]), max(known[1], reply.committed[1])
        for log in LOGS:
            part = reply.parts[log]
            if not isinstance(part, Diverged | StartAt):
                # First: while more and more comes, room is to be made for it. And what its leader has forgotten, with
                # its time, does not stand in the way of what comes.
                self._trim(log, reply.starts[log], out)
            self._take(log, part, out)
        self.ask(out)

    def _is_behind(self, log: int, part: Part) -> bool:
        """Whether the leader lacks what was committed here."""
        own = self.site.logs[log]
        offset = part.start if isinstance(part, StartAt) else part.end if isinstance(part, Diverged) else own.start
        return offset < own.start and self._unclean <= own.lineage.last

    def _take(self, log: int, part: Part, out: list[Effect]) -> None:
        own = self.site.logs[log]
        match part:
            case Data() if part.first == own.end and part.end > part.first:
                own.is_busy = True
                out.append(Store(log, part))
            case Diverged():
                # If all here is of later epochs, they part at the start, or before.
                offset = min(part.end, max(own.lineage.end_of(part.epoch, own.end)[1], own.start))
                if own.start < offset:
                    assert offset < own.end, f"{part} does not shorten {own}"
                    own.is_busy = True
                    out.append(Cut(log, offset))
                else:
                    self._reset(log, offset, out)
            case StartAt():
                self._reset(log, part.start, out)

    def _reset(self, log: int, start: int, out: list[Effect]) -> None:
        own = self.site.logs[log]
        own.is_busy = own.is_resetting = True
        out.append(Reset(log, start))

    def _trim(self, log: int, start: int, out: list[Effect]) -> None:
        own = self.site.logs[log]
        if own.start < start <= own.end and not own.is_busy:
            own.trim(start)
            out.append(Trim(log, start))
