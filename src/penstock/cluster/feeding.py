"""What a node that leads sends to those that follow: answers to their fetches, as far as they take them.

A feed is one stream to one other node. Answers wait here until the stream has room, and only then are their frames read
from the log: however many partitions have something to send, what is in memory is what the network is just taking.
To replicas of partitions that are being moved, and have not caught up, they go at the rate of the throttle, if any.

A node is fed as the process that is registered in etcd under its name. A stream of any other waits: if the view here is
behind, it will show that process soon; if it never does, that was not the node.

Every packet carries the time at which it was sent, which the follower returns with its next one: see `words`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from penstock.cluster.core.events import Contact, Registered
from penstock.cluster.core.messages import Data, Fetch, Part, Reply, Withdraw
from penstock.cluster.hosted import SENT_BYTES_MAX, Hosted
from penstock.cluster.tally import Tally
from penstock.cluster.tasks import Broke, start
from penstock.cluster.throttle import Throttle
from penstock.cluster.words import Answer, Answers, CleanedQuery, CleanedSegment, Fetches, Replicate, Sent, decoded
from penstock.errors import Fatal, PenstockError, ProtocolError
from penstock.limits import MIB

log = logging.getLogger("penstock.cluster")

# A packet with this many bytes of frames takes no further answer. The last one may have a frame of the largest size
# for each log, and the follower's connection has to accept all that: 24 MiB by default, see `conversation`.
_PACKET_BYTES_MAX = 4 * MIB
# After that the throttle is looked at again: it may have been lifted.
_LOOK_S = 0.25
# A connection that was made again is trusted after this: one that comes and goes must not change records each time.
_BACK_S = 0.5


class Stream(Protocol):
    """A connection that another node has opened to this one."""

    @property
    def is_open(self) -> bool: ...

    writable: asyncio.Event

    def deliver(self, correlation: int, word: object, payload: Sequence[memoryview]) -> None: ...

    def abort(self) -> None: ...


class Feed:
    def __init__(self, stream: Stream, correlation: int, peer: Replicate, feeding: Feeding) -> None:
        self.peer = peer
        # What it has asked while it was not known yet, by partition.
        self.early: dict[str, Fetch] = {}
        # By this node's clock: when the stream was taken, when the last packet arrived, when the last one was sent, and
        # when the last one that the follower has answered was sent.
        self.since_us = 0
        self.heard_us = 0
        self.sent_us = 0
        self.confirmed_us = 0
        # A heartbeat is to be answered.
        self._has_heartbeat = False
        self._stream = stream
        self._correlation = correlation
        self._feeding = feeding
        # By partition: a later answer takes the place of an earlier one.
        self._waiting: dict[str, Reply] = {}
        # Those that the throttle is for.
        self._throttled: dict[str, Reply] = {}
        self._cleaned: deque[CleanedSegment] = deque()
        # By partition: the query that is being answered. A follower sends one at a time.
        self._answering: dict[str, asyncio.Task[None]] = {}
        self._looking: asyncio.TimerHandle | None = None
        self._has_some = asyncio.Event()

    def reply(self, identity: str, reply: Reply) -> None:
        self._waiting.pop(identity, None)
        self._throttled.pop(identity, None)
        (self._throttled if self._feeding.is_throttled(identity, reply) else self._waiting)[identity] = reply
        self._has_some.set()

    def queried(self, query: CleanedQuery, hosted: Hosted | None, broke: Broke) -> None:
        async def answer() -> None:
            found = CleanedSegment(query.partition, query.epoch)
            try:
                if hosted is not None:
                    found = await hosted.cleaned(query)
            except PenstockError as error:
                if isinstance(error, Fatal):
                    raise
                log.error("partition %s can't be read for %s: %s", query.partition, self.peer.node, error.message)
            finally:
                del self._answering[query.partition]
            self._cleaned.append(found)
            self._has_some.set()

        if query.partition not in self._answering:
            self._answering[query.partition] = start(answer(), broke)

    def heartbeat(self) -> None:
        """Have a packet sent, be there an answer or not: its time is what the follower returns."""
        self._has_heartbeat = True
        self._has_some.set()

    def fetched(self, header: bytes) -> None:
        self._feeding.fetched(self, header)

    def close(self) -> None:
        self._feeding.closed(self)

    def abort(self) -> None:
        """Whoever is behind it, and still wants something, finds out and comes again."""
        self._stream.abort()

    async def run(self) -> None:
        """Until it is cancelled, with the connection."""
        while True:
            await self._has_some.wait()
            # What else comes in this turn of the loop goes along.
            await asyncio.sleep(0)
            await self._stream.writable.wait()
            if not self._stream.is_open:
                return
            self._send()

    def _send(self) -> None:
        answers: list[Answer] = []
        payload: list[memoryview] = []
        size = 0
        while self._waiting and size < _PACKET_BYTES_MAX:
            identity = next(iter(self._waiting))
            answer, frames = self._feeding.filled(identity, self._waiting.pop(identity))
            if answer is not None:
                answers.append(answer)
                payload += frames
                size += sum(map(len, frames))
        if not self._waiting:
            self._has_some.clear()
        if answers or self._has_heartbeat:
            self._has_heartbeat = False
            self._deliver(answers, payload)
        if self._throttled:
            self._send_throttled()
        if self._cleaned:
            # One a packet: it may be large.
            self._deliver([], [], [self._cleaned.popleft()])
            if self._cleaned:
                self._has_some.set()

    def _deliver(
        self, answers: list[Answer], payload: list[memoryview], cleaned: Sequence[CleanedSegment] = ()
    ) -> None:
        self._feeding.tally.sent_bytes += sum(map(len, payload))
        self.sent_us = self._feeding.now_us()
        self._stream.deliver(self._correlation, Answers(answers, self.sent_us, list(cleaned)), payload)

    def _send_throttled(self) -> None:
        """In a packet of their own: together with the others they could be more than the follower accepts."""
        throttle = self._feeding.throttle
        answers: list[Answer] = []
        payload: list[memoryview] = []
        size = 0
        while self._throttled and not throttle.wait_us() and size < _PACKET_BYTES_MAX:
            identity = next(iter(self._throttled))
            most = min(throttle.at_once, SENT_BYTES_MAX)
            answer, frames = self._feeding.filled(identity, self._throttled.pop(identity), most)
            if answer is not None:
                answers.append(answer)
                payload += frames
                size += sum(map(len, frames))
                throttle.sent(sum(map(len, frames)))
        if answers:
            self._deliver(answers, payload)
        if self._throttled and self._looking is None:
            wait_s = min(throttle.wait_us() / 1e6, _LOOK_S)
            self._looking = asyncio.get_running_loop().call_later(wait_s, self._look)

    def _look(self) -> None:
        self._looking = None
        self._has_some.set()


class Feeding:
    """All feeds of a node."""

    def __init__(
        self,
        hosted: Mapping[str, Hosted],
        live: Callable[[], Mapping[str, Registered]],
        now_us: Callable[[], int],
        broke: Callable[[PenstockError], None],
        tally: Tally,
    ) -> None:
        self._hosted = hosted
        self._live = live
        self.now_us = now_us
        self._broke = broke
        self.tally = tally
        self.throttle = Throttle(now_us)
        # By node: the last one it has opened.
        self._feeds: dict[str, Feed] = {}
        # Of processes that are not registered as the node they say they are, or not yet.
        self._strangers: dict[Replicate, Feed] = {}
        # By node: incarnations that have fetched from here, and whose connection was lost since.
        self.lost: dict[str, str] = {}
        # Told when one is lost, or is back.
        self.changed: Callable[[], None] = lambda: None
        # Asked for when the view here may be behind.
        self.reread: Callable[[], None] = lambda: None
        self._is_ending = False

    def open(self, stream: Stream, correlation: int, header: bytes) -> Feed:
        """The last one that a process has opened is the one that counts."""
        feed = Feed(stream, correlation, decoded(header, Replicate), self)
        if self._is_registered(feed.peer):
            self._take(feed)
        else:
            log.info("%s has to wait with its fetches: it is not registered as that process yet", feed.peer.node)
            before = self._strangers.get(feed.peer)
            self._strangers[feed.peer] = feed
            if before is not None:
                before.abort()
        return feed

    def _is_registered(self, peer: Replicate) -> bool:
        return self._live().get(peer.node) == Registered(peer.disk, peer.incarnation)

    def _take(self, feed: Feed) -> None:
        before = self._feeds.get(feed.peer.node)
        self._feeds[feed.peer.node] = feed
        feed.since_us = feed.heard_us = self.now_us()
        if before is not None:
            before.abort()
        log.info("%s fetches from here", feed.peer.node)
        if feed.peer.node in self.lost:
            asyncio.get_running_loop().call_later(_BACK_S, self._is_back, feed)

    def members_changed(self) -> None:
        for peer, feed in list(self._strangers.items()):
            if self._is_registered(peer):
                del self._strangers[peer]
                self._take(feed)
                early, feed.early = feed.early, {}
                self._fetched(feed, Fetches(list(early.items())))

    def _is_back(self, feed: Feed) -> None:
        if self._feeds.get(feed.peer.node) is feed and self.lost.pop(feed.peer.node, None) is not None:
            self.changed()

    def closed(self, feed: Feed) -> None:
        if self._strangers.get(feed.peer) is feed:
            del self._strangers[feed.peer]
        if self._feeds.get(feed.peer.node) is feed:
            del self._feeds[feed.peer.node]
            log.info("%s does not fetch from here any more", feed.peer.node)
            if not self._is_ending:
                self.lost[feed.peer.node] = feed.peer.incarnation
                self.changed()

    def end(self) -> None:
        """The doors are being closed: from now on it is not others that are lost."""
        self._is_ending = True

    def fetched(self, feed: Feed, header: bytes) -> None:
        word = decoded(header, Fetches)
        spoken: list[Fetch | Withdraw] = [fetch for _, fetch in word.fetches]
        spoken += [withdraw for _, withdraw in word.withdrawn]
        for said in spoken:
            if Replicate(said.node, said.disk, said.incarnation) != feed.peer:
                raise ProtocolError(f"a fetch of {said.node} comes by the stream of another process")
        if word.echo_us > feed.sent_us:
            raise ProtocolError(f"{feed.peer.node} returns a time that was not sent to it: {word.echo_us}")
        if self._feeds.get(feed.peer.node) is feed:
            self._fetched(feed, word)
            for query in word.queries:
                feed.queried(query, self._hosted.get(query.partition), self._broke)
        elif self._strangers.get(feed.peer) is feed:
            for identity, _ in word.withdrawn:
                feed.early.pop(identity, None)
            feed.early.update(word.fetches)
            self.reread()
        else:
            # Nobody would answer.
            feed.abort()

    def _fetched(self, feed: Feed, word: Fetches) -> None:
        feed.heard_us = self.now_us()
        feed.confirmed_us = max(feed.confirmed_us, word.echo_us)
        for identity, withdraw in word.withdrawn:
            if identity in self._hosted:
                self._hosted[identity].step(withdraw)
        if not word.fetches:
            feed.heartbeat()
        for identity, fetch in word.fetches:
            hosted = self._hosted.get(identity)
            if hosted is not None:
                hosted.step(fetch)
            else:
                # Not here, or not yet: whoever asks looks at the record again.
                self._send(identity, Reply(fetch.node, fetch.incarnation, 0, fetch.request, is_fenced=True))

    def contacts(self) -> dict[str, Contact]:
        """By node: the stream by which it fetches from here."""
        return {node: Contact(feed.since_us, feed.heard_us, feed.confirmed_us) for node, feed in self._feeds.items()}

    def reply(self, hosted: Hosted, reply: Reply) -> None:
        self._send(hosted.identity, reply)

    def _send(self, identity: str, reply: Reply) -> None:
        feed = self._feeds.get(reply.to)
        if feed is not None and feed.peer.incarnation == reply.incarnation:
            feed.reply(identity, reply)

    def is_throttled(self, identity: str, reply: Reply) -> bool:
        """It has data for a replica that is not in sync yet, of a partition that is being moved."""
        hosted = self._hosted.get(identity)
        record = None if hosted is None else hosted.record
        if not self.throttle.rate or record is None or not record.target or reply.parts == (None, None):
            return False
        return record.disk_of(reply.to) is None

    def filled(
        self, identity: str, reply: Reply, bytes_max: int = SENT_BYTES_MAX
    ) -> tuple[Answer | None, list[memoryview]]:
        """The answer with its frames; none if this node does not lead any more, or what was meant is gone."""
        if reply.parts == (None, None):
            return Answer(identity, reply, (None, None)), []
        hosted = self._hosted.get(identity)
        # Whoever asked looks at the record again, and asks anew.
        fenced = Reply(reply.to, reply.incarnation, reply.epoch, reply.request, is_fenced=True)
        if hosted is None or hosted.epoch != reply.epoch or not hosted.is_leader:
            return Answer(identity, fenced, (None, None)), []
        parts: list[Part] = []
        sent: list[Sent | None] = []
        frames: list[memoryview] = []
        try:
            for number, part in enumerate(reply.parts):
                if not isinstance(part, Data):
                    parts.append(part)
                    sent.append(None)
                    continue
                data, run = hosted.data(part, number, bytes_max)
                parts.append(data)
                own = hosted.logs[number]
                sent.append(Sent(own.log_id, len(run.data), own.whole_from))
                if run:
                    frames.append(run.data)
        except PenstockError as error:
            log.error("%s can't be read for %s: %s", hosted.shown, reply.to, error.message)
            if isinstance(error, Fatal):
                self._broke(error)
            return Answer(identity, fenced, (None, None)), []
        filled = Reply(
            reply.to,
            reply.incarnation,
            reply.epoch,
            reply.request,
            (parts[0], parts[1]),
            reply.committed,
            reply.starts,
            reply.is_fenced,
        )
        return Answer(identity, filled, (sent[0], sent[1])), frames
