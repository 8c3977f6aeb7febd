"""Fetching from the nodes that lead: one connection to each of them, for all partitions at once.

Fetches are gathered for a turn of the loop and go in one packet. When the connection is lost, it is made again, and
every partition asks anew: the leader may never have got what was asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from penstock.clock import Clock
from penstock.cluster.core.events import Unanswered
from penstock.cluster.core.messages import Fetch
from penstock.cluster.hosted import Frames, Hosted
from penstock.cluster.tally import Tally
from penstock.cluster.tasks import Broke, start
from penstock.cluster.words import Answers, Fetches, Replicate, decoded
from penstock.errors import PenstockError, ProtocolError
from penstock.net.connection import Connection, Place
from penstock.wire.packets import Kind, Packet

log = logging.getLogger("penstock.cluster")

# A leader takes who is silent for `Timing.lag_us` for dead.
SIGN_OF_LIFE_S = 1.0
_PAUSE_S, _PAUSE_S_MAX = 0.05, 1.0


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
        self._connection: Connection | None = None
        self._correlation = 0
        self._flushing: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()
        self._running = start(self._run(), broke)

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and self._connection.is_open

    def ask(self, identity: str, fetch: Fetch) -> None:
        self._asked[identity] = self._unsent[identity] = fetch
        if self._flushing is None and self._connection is not None:
            self._flushing = self._loop.call_soon(self._flush)

    def forget(self, identity: str) -> None:
        """It asks somebody else now, or nobody."""
        self._asked.pop(identity, None)
        self._unsent.pop(identity, None)

    def _flush(self) -> None:
        self._flushing = None
        if self._connection is not None and self._connection.is_open and self._unsent:
            unsent, self._unsent = self._unsent, {}
            self._connection.tell(Kind.FETCH, self._correlation, Fetches(list(unsent.items())))

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
            await connection.close()

    async def _fetch_by(self, connection: Connection) -> None:
        self._correlation = connection.open_stream(Kind.REPLICATE, self._me, partial(self._delivered, connection))
        self._connection = connection
        self._unsent.clear()
        for identity in list(self._asked):
            hosted = self._hosted.get(identity)
            if hosted is None:
                self.forget(identity)
            else:
                # It asks again, under another number.
                hosted.step(Unanswered())
        while connection.is_open:
            connection.tell(Kind.FETCH, self._correlation, Fetches([]))
            try:
                async with asyncio.timeout(SIGN_OF_LIFE_S):
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
        at = 0
        for answer in decoded(packet.header, Answers).answers:
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
                self.forget(answer.partition)
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
        self._asks: dict[str, str] = {}

    def ask(self, leader: str, hosted: Hosted, fetch: Fetch) -> None:
        before = self._asks.get(hosted.identity)
        if before not in (None, leader):
            self._leaders[before].forget(hosted.identity)
        self._asks[hosted.identity] = leader
        if leader not in self._leaders:
            self._leaders[leader] = Follows(
                leader, self._place, self._hosted, self._me, self._clock, self._tally, self._broke
            )
        self._leaders[leader].ask(hosted.identity, fetch)

    @property
    def is_connected(self) -> bool:
        """To any of them."""
        return any(each.is_connected for each in self._leaders.values())

    def forget(self, identity: str) -> None:
        leader = self._asks.pop(identity, None)
        if leader is not None:
            self._leaders[leader].forget(identity)

    async def close(self) -> None:
        await asyncio.gather(*[each.close() for each in self._leaders.values()])
