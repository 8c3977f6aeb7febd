"""The replica that follows: it asks its leader, cuts what the leader does not have, and stores what it has.

It never cuts to the high watermark. What it knows of that may be old, and what it has beyond may be all that is left of
something that was acknowledged. The leader says where the follower's last epoch ends there; the follower cuts to that,
or to where its own part of that epoch ends, and asks again, until they agree.

Nor does it ever go back to before its log's start: what was there was committed, and deleted as such. A leader that has
less is one that was; unless it was elected at the cost of what is committed.

Nor does it cut anything off for a leader of a later generation, or one that has another epoch of the same number: etcd
was restored from a backup in between, and a leader elected since then may lack committed data. The copy is quarantined
until an operator decides.

It fetches only when its whole log is on disk, and when it has deleted what the leader asked it to delete. So a fetch
acknowledges both.
"""

from __future__ import annotations

from penstock.cluster.core.effects import Ask, Cut, Effect, Follow, Reread, Reset, Store, Trim, Wake
from penstock.cluster.core.extent import LOGS
from penstock.cluster.core.messages import Data, Diverged, Fetch, Foreign, Part, Reply, StartAt
from penstock.cluster.core.record import PartitionRecord, generation_of
from penstock.cluster.core.site import Site


class Follower:
    def __init__(self, site: Site, leader: str, record: PartitionRecord, out: list[Effect]) -> None:
        self.site = site
        self.leader = leader
        self.epoch = record.epoch
        self._unclean = max(record.unclean, default=0)
        # It has what the leader lacks, of before etcd was set back.
        self.is_quarantined = False
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
        if messages.is_trimming or deliveries.is_trimming:
            return
        site.request += 1
        self._asked = site.request
        ends = messages.durable, deliveries.durable
        lasts = messages.lineage.last, deliveries.lineage.last
        ids = messages.lineage.last_id, deliveries.lineage.last_id
        fetch = Fetch(site.node, site.disk, site.incarnation, self.epoch, site.request, ends, lasts, site.starts, ids)
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
        if any(self._is_restored_over(log, reply.parts[log]) for log in LOGS):
            self.is_quarantined = True
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

    def _is_restored_over(self, log: int, part: Part) -> bool:
        """Return whether the leader's log goes another way since etcd was restored: what it lacks is not cut off."""
        own = self.site.logs[log]
        if isinstance(part, Foreign):
            return True
        return isinstance(part, Diverged | StartAt) and self.is_earlier(log) and own.start < own.end

    def is_earlier(self, log: int) -> bool:
        """Return whether etcd was restored since the last frame here was written. Before it was noticed, a node may
        have led at an epoch that was used already: then the leader does not know that the logs part."""
        return generation_of(self.site.logs[log].lineage.last) < generation_of(self.epoch)

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
        if own.trimming_to < start <= own.end and not own.is_busy:
            own.trimming_to = start
            out.append(Trim(log, start))
