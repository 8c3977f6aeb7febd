"""Fetching from the nodes that lead: one connection to each of them, for all partitions at once.

Fetches are gathered for a turn of the loop and go in one packet. When the connection is lost, it is made again, and
every partition asks anew: the leader may never have got what was asked.

A heartbeat goes to every leader on its connection, whether partitions here follow it or not. So a replica that stops
following a leader says so (`Withdraw`): otherwise the heartbeats would keep the old leader serving.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from penstock.clock import Clock
from penstock.cluster.core.events import Unanswered
from penstock.cluster.core.messages import Fetch, Withdraw
from penstock.cluster.hosted import Frames, Hosted
from penstock.cluster.tally import Tally
from penstock.cluster.tasks import Broke, start
from penstock.cluster.words import Answers, CleanedQuery, CleanedSegment, Fetches, Replicate, decoded
from penstock.errors import PenstockError, ProtocolError
from penstock.net.connection import Connection, Place
from penstock.wire.packets import Kind, Packet

log = logging.getLogger("penstock.cluster")

# A leader takes who is silent for `Timing.lag_us` for dead. A leader without etcd serves for `Timing.trust_us` after it
# has sent what a heartbeat returns; the heartbeat after that has to arrive in time.
HEARTBEAT_S = 0.5
_PAUSE_S, _PAUSE_S_MAX = 0.05, 1.0
# Until a leader has looked through a segment. One of an earlier build never answers: then no query is sent for a while.
_CLEANED_S, _SILENT_S = 60.0, 600.0


class Follows:
    """One leader, and what this node fetches from it."""

    def __init__(
        self,
        leader: str,
        place: Callable[[str], Place | None],
        hosted: Mapping[str, Hosted],
        me: Replicate,
        clock: Clock,
        tally: Tally,
        broke: Broke,
    ) -> None:
        self._leader = leader
        self._place = place
        self._hosted = hosted
        self._me = me
        self._clock = clock
        self._tally = tally
        # What is asked and not answered, and what of it is to be sent.
        self._asked: dict[str, Fetch] = {}
        self._unsent: dict[str, Fetch] = {}
        self._withdrawn: dict[str, Withdraw] = {}
        # When the leader sent the last packet that arrived on this connection, by the leader's clock.
        self._echo_us = 0
        self._connection: Connection | None = None
        # By partition: what `cleaned` waits for.
        self._queries: dict[str, asyncio.Future[CleanedSegment | None]] = {}
        # A query was not answered by this connection: no other is sent before this time.
        self._silent_until = 0.0
        self._correlation = 0
        self._flushing: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()
        self._running = start(self._run(), broke)

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and self._connection.is_open

    def ask(self, identity: str, fetch: Fetch) -> None:
        self._asked[identity] = self._unsent[identity] = fetch
        self._flush_soon()

    def withdraw(self, identity: str, last: Fetch) -> None:
        """The replica does not follow this leader any more; `last` was its last fetch."""
        self._forget(identity)
        self._withdrawn[identity] = Withdraw(last.node, last.disk, last.incarnation, last.epoch, last.request)
        self._flush_soon()

    def _forget(self, identity: str) -> None:
        self._asked.pop(identity, None)
        self._unsent.pop(identity, None)

    def _flush_soon(self) -> None:
        if self._flushing is None and self._connection is not None:
            self._flushing = self._loop.call_soon(self._flush)

    async def cleaned(self, query: CleanedQuery) -> CleanedSegment | None:
        """None if the leader does not answer."""
        if self._connection is None or not self._connection.is_open:
            return None
        if self._loop.time() < self._silent_until:
            return None
        answered: asyncio.Future[CleanedSegment | None] = self._loop.create_future()
        self._queries[query.partition] = answered
        self._connection.tell(Kind.FETCH, self._correlation, Fetches([], queries=[query]))
        try:
            async with asyncio.timeout(_CLEANED_S):
                return await answered
        except TimeoutError:
            self._silent_until = self._loop.time() + _SILENT_S
            return None
        finally:
            self._queries.pop(query.partition, None)

    def _flush(self) -> None:
        self._flushing = None
        if self._connection is not None and self._connection.is_open and (self._unsent or self._withdrawn):
            self._tell(self._connection)

    def _tell(self, connection: Connection) -> None:
        """Send the waiting fetches and withdrawals. Without any, the packet is a heartbeat."""
        unsent, self._unsent = self._unsent, {}
        withdrawn, self._withdrawn = self._withdrawn, {}
        word = Fetches(list(unsent.items()), list(withdrawn.items()), self._echo_us)
        connection.tell(Kind.FETCH, self._correlation, word)

    async def _run(self) -> None:
        pause = _PAUSE_S
        while True:
            try:
                place = self._place(self._leader)
                # Without one it is not alive, as far as is known here.
                if place is not None:
                    await self._fetch_at(place)
                    pause = _PAUSE_S
            except PenstockError as error:
                log.debug("%s can't be fetched from: %s", self._leader, error.message)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_S_MAX)

    async def _fetch_at(self, place: Place) -> None:
        connection = await Connection.to(place, self._clock)
        try:
            await self._fetch_by(connection)
        finally:
            self._connection = None
            self._silent_until = 0.0
            for answered in self._queries.values():
                if not answered.done():
                    answered.set_result(None)
            await connection.close()

    async def _fetch_by(self, connection: Connection) -> None:
        self._correlation = connection.open_stream(Kind.REPLICATE, self._me, partial(self._delivered, connection))
        self._connection = connection
        self._echo_us = 0
        # These belong to the previous stream. Replicas repeat the fetches that they still wait for.
        self._unsent.clear()
        self._withdrawn.clear()
        for identity in list(self._asked):
            hosted = self._hosted.get(identity)
            if hosted is None:
                self._forget(identity)
            else:
                # It asks again, under another number.
                hosted.step(Unanswered())
        while connection.is_open:
            self._tell(connection)
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await connection.ended.wait()
            except TimeoutError:
                pass

    def _delivered(self, connection: Connection, packet: Packet | None) -> None:
        if packet is None or packet.kind is not Kind.DELIVER:
            # The end of the stream, or a refusal.
            if packet is not None:
                log.warning("%s does not let this node fetch", self._leader)
            connection.abort(ProtocolError("the stream has ended"))
            return
        self._tally.fetched_bytes += len(packet.payload)
        answers = decoded(packet.header, Answers)
        self._echo_us = answers.sent_us
        at = 0
        for cleaned in answers.cleaned:
            self._silent_until = 0.0
            answered = self._queries.get(cleaned.partition)
            if answered is not None and not answered.done():
                answered.set_result(cleaned)
        for answer in answers.answers:
            arrived: list[Frames | None] = []
            for sent in answer.sent:
                if sent is None:
                    arrived.append(None)
                else:
                    arrived.append(Frames(sent.log, packet.payload[at : at + sent.size], sent.whole_from))
                    at += sent.size
            hosted = self._hosted.get(answer.partition)
            fetch = self._asked.get(answer.partition)
            if hosted is not None and fetch is not None and fetch.request == answer.reply.request:
                self._forget(answer.partition)
                hosted.replied(answer.reply, (arrived[0], arrived[1]))

    async def close(self) -> None:
        self._running.cancel()
        await asyncio.wait([self._running])


class Following:
    """All leaders that this node fetches from."""

    def __init__(
        self,
        place: Callable[[str], Place | None],
        hosted: Mapping[str, Hosted],
        me: Replicate,
        clock: Clock,
        tally: Tally,
        broke: Broke,
    ) -> None:
        self._place = place
        self._hosted = hosted
        self._me = me
        self._clock = clock
        self._tally = tally
        self._broke = broke
        self._leaders: dict[str, Follows] = {}
        # By partition: the leader that is followed, and the last fetch.
        self._followed: dict[str, tuple[str, Fetch]] = {}

    def ask(self, leader: str, hosted: Hosted, fetch: Fetch) -> None:
        assert self._followed.get(hosted.identity, (leader,))[0] == leader, "it has not withdrawn from another one"
        self._followed[hosted.identity] = leader, fetch
        if leader not in self._leaders:
            self._leaders[leader] = Follows(
                leader, self._place, self._hosted, self._me, self._clock, self._tally, self._broke
            )
        self._leaders[leader].ask(hosted.identity, fetch)

    async def cleaned(self, query: CleanedQuery) -> CleanedSegment | None:
        """What the partition's leader has removed; None if it can't be asked."""
        followed = self._followed.get(query.partition)
        return None if followed is None else await self._leaders[followed[0]].cleaned(query)

    @property
    def is_connected(self) -> bool:
        """To any of them."""
        return any(each.is_connected for each in self._leaders.values())

    def withdraw(self, identity: str) -> None:
        """The replica follows another leader from now on, or none."""
        followed = self._followed.pop(identity, None)
        if followed is not None:
            leader, last = followed
            self._leaders[leader].withdraw(identity, last)

    async def close(self) -> None:
        await asyncio.gather(*[each.close() for each in self._leaders.values()])
