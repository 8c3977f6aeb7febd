"""The replica that leads: it answers fetches, moves the high watermarks, and keeps the ISR in the record.

High watermark of a log: as far as it is on the disks of the leader and of all voters. It stands still while the ISR is
smaller than `min_isr`. It counts only beyond the frame that began this epoch: what lies below may have been on as many
disks before, and yet have been replaced by the leader of an epoch in between.

Low watermark of a log, its start: all voters delete what retention no longer needs, and the leader deletes it last. So
the next leader holds nothing that this leader has deleted: the start of a log never goes back.
"""

from __future__ import annotations

from penstock.cluster.core.ballot import Ballot
from penstock.cluster.core.effects import Begin, Committed, Effect, Hold, Reread, Serve, Trim, Wake
from penstock.cluster.core.events import Begun
from penstock.cluster.core.extent import LOGS, Both
from penstock.cluster.core.membership import in_sync
from penstock.cluster.core.messages import Data, Diverged, Fetch, Foreign, Part, Reply, StartAt, Withdraw
from penstock.cluster.core.progress import Progress
from penstock.cluster.core.record import PartitionRecord
from penstock.cluster.core.site import Site
from penstock.cluster.core.succession import Succession


class Leader:
    def __init__(self, site: Site, revision: int, record: PartitionRecord, now_us: int, out: list[Effect]) -> None:
        self.site = site
        self.epoch = record.epoch
        self.ballot = Ballot(site.node, revision, record)
        self.followers: dict[str, Progress] = {}
        # Where this epoch begins; None until it has.
        self.firsts: Both | None = None
        self.is_open = False
        self.until_us = 0
        self.began_us = now_us
        # Where the logs are to begin, on all replicas.
        self.starts = list(site.starts)
        for own in site.logs:
            # What this node had begun to delete as a follower is done before the epoch begins, or is not done.
            own.trimming_to = own.start
        self._succession = Succession(site)
        # Fetches from before the epoch has begun here, and when they arrived.
        self._early: dict[str, tuple[int, Fetch]] = {}
        # By follower: the incarnation that withdrew, and its last fetch until then.
        self._withdrawn: dict[str, tuple[str, int]] = {}
        site.beginning += 1
        out.append(Begin(self.epoch))

    @property
    def is_handing_over(self) -> bool:
        return self._succession.is_under_way

    # ---- what happens

    def begun(self, now_us: int, event: Begun, out: list[Effect]) -> None:
        messages, deliveries = event.firsts
        if event.epoch != self.epoch or messages is None or deliveries is None:
            return
        self.firsts = messages, deliveries
        committed = self.site.committed
        self.site.committed = min(committed[0], messages), min(committed[1], deliveries)
        self.starts = list(self.site.starts)
        early, self._early = self._early, {}
        for arrived_us, fetch in early.values():
            self.fetched(now_us, fetch, out, arrived_us)
        self.advance(now_us, out)

    def wrote(self, now_us: int, out: list[Effect]) -> None:
        self.advance(now_us, out)
        self._answer_held(out)

    def expired(self, now_us: int, log: int, start: int, out: list[Effect]) -> None:
        assert start <= self.site.committed[log], f"log {log} is not committed up to {start}, and must not be deleted"
        if start > self.starts[log]:
            self.starts[log] = start
            self._answer_held(out)
            self._trim(out)

    def fetched(self, now_us: int, fetch: Fetch, out: list[Effect], arrived_us: int | None = None) -> None:
        if not self._is_welcome(fetch):
            held = self.followers.get(fetch.node)
            if held is not None and held.incarnation == fetch.incarnation:
                # The follower no longer waits for its earlier fetch: a reply to that one would replace this one.
                held.withdraw(fetch.request)
            out.append(Reply(fetch.node, fetch.incarnation, self.epoch, fetch.request, is_fenced=True))
            out.append(Reread())
            return
        incarnation, request = self._withdrawn.get(fetch.node, ("", 0))
        if fetch.incarnation == incarnation and fetch.request <= request:
            return
        if self.firsts is None:
            # What is in its own logs is not known for sure before the epoch has begun.
            self._early[fetch.node] = now_us, fetch
            return
        progress = self.followers.get(fetch.node)
        if progress is None or (progress.incarnation, progress.disk) != (fetch.incarnation, fetch.disk):
            progress = self.followers[fetch.node] = Progress(fetch.disk, fetch.incarnation, now_us)
        if fetch.request <= progress.request:
            # A late one; it has asked again since.
            return
        progress.request = fetch.request
        progress.fetched_us = now_us if arrived_us is None else arrived_us
        parts = self._compare(0, fetch), self._compare(1, fetch)
        if parts != (None, None):
            progress.is_waiting = False
            self._reply(fetch.node, progress, parts, out)
            return
        progress.is_waiting = True
        progress.starts = fetch.starts
        progress.fetched(now_us, fetch.ends, self.site.ends)
        self._answer(fetch.node, progress, out)
        self.advance(now_us, out)
        if self.is_handing_over or not self.ballot.record.is_in_sync(fetch.node, fetch.disk):
            self.review(now_us, out)

    def withdrawn(self, now_us: int, event: Withdraw, out: list[Effect]) -> None:
        """The follower follows another leader, or none: it has seen a newer record than this node."""
        if event.epoch != self.epoch:
            return
        # The withdrawal may be ahead of the fetch that it is about.
        self._withdrawn[event.node] = event.incarnation, event.request
        progress = self.followers.get(event.node)
        if progress is not None and progress.incarnation == event.incarnation:
            progress.withdraw(event.request)
            self._serve(now_us, out)

    def seen(self, now_us: int, revision: int, record: PartitionRecord, out: list[Effect]) -> None:
        """A newer record of the same epoch."""
        self.ballot.seen(revision, record)
        for node in [node for node in self.followers if not record.hosts(node)]:
            del self.followers[node]
        self.advance(now_us, out)
        self.review(now_us, out)

    def proposal_ended(self, now_us: int, out: list[Effect]) -> None:
        again_us = now_us + self.site.timing.retry_us
        self.ballot.ended(again_us)
        if self.ballot.is_in_doubt:
            out.append(Reread())
            out.append(Wake(again_us))
        else:
            self.review(now_us, out)

    def ticked(self, now_us: int, out: list[Effect]) -> None:
        contacts, ends = self.site.tick.contacts, self.site.ends
        for node, progress in self.followers.items():
            if node in contacts:
                progress.contacted(contacts[node], ends)
        self.review(now_us, out)
        self._serve(now_us, out)

    # ---- what comes of it

    def advance(self, now_us: int, out: list[Effect]) -> None:
        """Move the high watermarks as far as they may."""
        if self.firsts is None or not self.ballot.has_quorum:
            return
        logs, followers = self.site.logs, self.followers
        messages, deliveries = logs[0].durable, logs[1].durable
        for voter in self.ballot.voters:
            progress = followers.get(voter.node)
            if progress is None or progress.ends is None or progress.disk != voter.disk:
                return
            messages = min(messages, progress.ends[0])
            deliveries = min(deliveries, progress.ends[1])
        if not self.is_open:
            if messages <= self.firsts[0] or deliveries <= self.firsts[1]:
                return
            if not all(followers[voter.node].begins_at(self.site.starts) for voter in self.ballot.voters):
                return
            self.is_open = True
            self._serve(now_us, out)
        before = self.site.committed
        self.site.committed = after = max(messages, before[0]), max(deliveries, before[1])
        for log in LOGS:
            if after[log] > before[log]:
                out.append(Committed(log, after[log]))
        self._trim(out)

    def _trim(self, out: list[Effect]) -> None:
        """Delete what all voters have deleted."""
        if not self.is_open:
            return
        for log, own in enumerate(self.site.logs):
            start = self.starts[log]
            if start <= own.trimming_to:
                continue
            for voter in self.ballot.voters:
                progress = self.followers.get(voter.node)
                if progress is None or progress.disk != voter.disk:
                    return
                if progress.starts is not None:
                    start = min(start, progress.starts[log])
            if start > own.trimming_to:
                own.trimming_to = start
                out.append(Trim(log, start))

    def review(self, now_us: int, out: list[Effect]) -> None:
        """Propose what the record should be, if it is not, or may not be, and nothing is being proposed."""
        heir = self._succession.heir(now_us, self)
        if self._succession.has_changed:
            self._succession.has_changed = False
            if self.is_handing_over:
                out.append(Hold())
                out.append(Wake(now_us + self.site.timing.settling_us))
                out.append(Wake(now_us + self.site.timing.handover_us))
            self.until_us = 0
            self._serve(now_us, out)
        wanted = heir or in_sync(now_us, self)
        if self.ballot.is_due(now_us, wanted):
            self.ballot.propose(wanted, out)

    def _serve(self, now_us: int, out: list[Effect]) -> None:
        """Extend the right to serve, or end it: the follower that it rested on may have left."""
        if not self.is_open or self.is_handing_over:
            return
        before_us, self.until_us = self.until_us, self._trusted_until()
        if self.until_us > now_us:
            if self.until_us != before_us:
                out.append(Serve(self.until_us))
        elif before_us > now_us:
            out.append(Hold())

    def _trusted_until(self) -> int:
        """Until when no other leader can serve: by the session or, if etcd is out of reach, by the followers.

        A clean successor is one of the voters, and a voter that leads has withdrawn its fetches here. So the followers
        extend the right to serve only while all voters follow at this epoch; without all of them nothing is committed
        anyway. A majority of the replicas would not do: after an election the operator may replace the replicas that
        are still with this leader.

        At least one follower is needed: the topic of a partition with one replica may have been deleted and created
        again elsewhere.

        Both count from when this node sent the question, not from when the answer arrived: an answer may have waited in
        a socket while this process was stopped. What is at stake are stale reads and publishes with `acks=leader`,
        which a new leader does not have.
        """
        voters = {voter.node: voter.disk for voter in self.ballot.voters}
        confirmed = {
            node: progress.confirmed_us
            for node, progress in self.followers.items()
            if progress.ends is not None and voters.get(node, progress.disk) == progress.disk
        }
        if not confirmed or not confirmed.keys() >= voters.keys():
            return self.site.tick.session_until_us
        by_followers = min(confirmed[node] for node in voters) if voters else max(confirmed.values())
        return max(self.site.tick.session_until_us, by_followers + self.site.timing.trust_us if by_followers else 0)

    # ---- fetches

    def _is_welcome(self, fetch: Fetch) -> bool:
        if fetch.epoch != self.epoch or not self.ballot.record.hosts(fetch.node):
            return False
        registered = self.site.tick.live.get(fetch.node)
        return registered is None or (registered.disk, registered.incarnation) == (fetch.disk, fetch.incarnation)

    def _compare(self, log: int, fetch: Fetch) -> Part:
        """None if the follower's log is the beginning of this one."""
        own, end, last = self.site.logs[log], fetch.ends[log], fetch.lasts[log]
        if end < own.start:
            return StartAt(own.start)
        if last == 0:
            # It has nothing, and so nothing else: it begins where it says, or is ahead of a leader that was.
            return None if end <= own.end else StartAt(own.start)
        epoch, epoch_end = own.lineage.end_of(last, own.end)
        if epoch == 0:
            return StartAt(own.start)
        own_id, id = own.lineage.id_of(last), fetch.ids[log]
        if own_id and id and own_id != id:
            return Foreign()
        return None if epoch == last and end <= epoch_end else Diverged(epoch, epoch_end)

    def _answer(self, node: str, progress: Progress, out: list[Effect]) -> None:
        """Reply with what the follower lacks or has to delete. Hold the fetch if there is nothing to send."""
        ends = progress.ends
        assert ends is not None
        messages, deliveries = self.site.logs
        if messages.end == ends[0] and deliveries.end == ends[1] and not self._is_to_trim(ends, progress.starts):
            return
        progress.is_waiting = False
        parts = (
            Data(ends[0], messages.end) if messages.end > ends[0] else None,
            Data(ends[1], deliveries.end) if deliveries.end > ends[1] else None,
        )
        self._reply(node, progress, parts, out)

    def _answer_held(self, out: list[Effect]) -> None:
        for node, progress in self.followers.items():
            if progress.is_waiting:
                self._answer(node, progress, out)

    def _is_to_trim(self, ends: Both, starts: Both | None) -> bool:
        """Return whether the follower has to trim. It trims before it fetches again, so no reply repeats the order."""
        return starts is not None and any(starts[log] < self.starts[log] <= ends[log] for log in LOGS)

    def _reply(self, node: str, progress: Progress, parts: tuple[Part, Part], out: list[Effect]) -> None:
        site = self.site
        starts = self.starts[0], self.starts[1]
        reply = Reply(node, progress.incarnation, self.epoch, progress.request, parts, site.committed, starts=starts)
        out.append(reply)
