"""The nodes of a cluster, and a transport to each: made when it is first needed, kept until the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar, cast

from penstock.client.placement import DescribeCluster, NodeInfo
from penstock.client.requests import Request
from penstock.client.transport import Stored, Transport
from penstock.errors import ConnectionLost, EtcdUnavailable, PenstockError, StaleMetadata
from penstock.frame import Frame
from penstock.net.routing.failures import is_misplaced, is_unknown
from penstock.net.routing.pace import Attempts, Pace

R = TypeVar("R")

# Must not wait: it is made when it is needed, and connects when it is used. It is closed with the others.
Make = Callable[[NodeInfo], Transport]
AtOnce = Callable[[str, int, Frame, str], Stored | None]


class _Short(Protocol):
    """Of a transport that has a short way for threads."""

    publish_frame_at_once: AtOnce


class Nodes:
    """Belongs to one event loop, except for `at_once` and `is_reachable`. `seeds` are those that were known before
    anybody was asked."""

    def __init__(self, seeds: Sequence[NodeInfo], make: Make, pace: Pace) -> None:
        self._seeds = tuple(seeds)
        self._make = make
        self._pace = pace
        # By address: a seed is mostly one of the others, which is not known before it is asked.
        self._made: dict[str, Transport] = {}
        self._short: dict[str, AtOnce] = {}
        self._known: dict[str, NodeInfo] = {}
        # By address: whether they can be connected to again.
        self._trying: dict[str, asyncio.Task[None]] = {}
        self._revision = -1
        # How often others have been alive than before.
        self.changes = 0
        # The one that answered last.
        self._home = self._seeds[0]

    @property
    def home(self) -> Transport:
        return self.at(self._home)

    @property
    def ids(self) -> list[str]:
        return list(self._known)

    def is_reachable(self, identity: str) -> bool:
        """Whether it is alive, and its connection was not lost. From any thread."""
        node = self._known.get(identity)
        if node is None:
            return False
        made = self._made.get(node.native)
        return made is None or not made.is_lost

    def reconnect_soon(self) -> None:
        """Try those that are alive and were lost, without waiting."""
        for identity, node in self._known.items():
            if not self.is_reachable(identity) and node.native not in self._trying:
                trying = asyncio.get_running_loop().create_task(self._try(node))
                self._trying[node.native] = trying

    async def _try(self, node: NodeInfo) -> None:
        try:
            await self.at(node).call(DescribeCluster())
        except PenstockError:
            # It stays lost.
            pass
        finally:
            del self._trying[node.native]

    def learn(self, revision: int, nodes: Sequence[NodeInfo]) -> None:
        """Those that were alive as of then."""
        if nodes and revision >= self._revision:
            self._revision = revision
            known = {node.id: node for node in nodes if node.native}
            self.changes += known.keys() != self._known.keys()
            self._known = known

    def at(self, node: NodeInfo) -> Transport:
        transport = self._made.get(node.native)
        if transport is None:
            transport = self._made[node.native] = self._make(node)
            if hasattr(transport, "publish_frame_at_once"):
                self._short[node.native] = cast(_Short, transport).publish_frame_at_once
        return transport

    def of(self, identity: str) -> Transport:
        """StaleMetadata if it is not known: it may have come since, or be gone."""
        node = self._known.get(identity)
        if node is None:
            raise StaleMetadata(f"node {identity} is not among those that are known to be alive", node=identity)
        return self.at(node)

    def at_once(self, identity: str) -> AtOnce | None:
        """From any thread. None if it is not connected to by a way for threads."""
        node = self._known.get(identity)
        return None if node is None else self._short.get(node.native)

    def wander(self) -> None:
        """Another one is asked next: what the last one says has not helped."""
        others = [node for node in self._known.values() if node.native != self._home.native]
        if others:
            later = [node for node in others if node.id > self._home.id]
            self._home = (later or others)[0]
            # Here, on the event loop: any thread may ask it for the time.
            self.at(self._home)

    def _candidates(self) -> Iterator[NodeInfo]:
        """Home, then all others, each once."""
        seen = set()
        for node in (self._home, *self._known.values(), *self._seeds):
            if node.native not in seen:
                seen.add(node.native)
                yield node

    async def ask(self, request: Request[R], *, is_repeatable: bool) -> R:
        """Any of them, until one answers."""
        attempts = Attempts(self._pace)
        while True:
            last: PenstockError | None = None
            for node in list(self._candidates()):
                try:
                    reply = await self.at(node).call(request)
                except PenstockError as error:
                    if not is_misplaced(error) and not (is_repeatable and is_unknown(error)):
                        raise
                    # What all who answer say counts, whoever else can't be reached.
                    last = last if isinstance(last, EtcdUnavailable) else error
                else:
                    self._home = node
                    return reply
            assert last is not None
            await attempts.pause(last)

    async def look(self, request: Request[R], is_good: Callable[[R], bool]) -> R:
        """The same for where things are: each is asked once, the next as soon as those before it fail or are late, and
        the first good answer counts. If there is none, the last one."""
        left = list(self._candidates())
        asked: dict[asyncio.Task[R], NodeInfo] = {}
        last: PenstockError = ConnectionLost("no node has said where things are", was_sent=False)
        heard: list[R] = []
        try:
            while left or asked:
                if left:
                    node = left.pop(0)
                    asked[asyncio.ensure_future(self.at(node).call(request))] = node
                timeout_s = self._pace.other_s if left else self._pace.ask_s
                done, _ = await asyncio.wait(asked, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if not done and not left:
                    break
                for task in done:
                    node = asked.pop(task)
                    try:
                        reply = task.result()
                    except PenstockError as error:
                        if not is_misplaced(error) and not is_unknown(error):
                            raise
                        last = error
                    else:
                        heard.append(reply)
                        if is_good(reply):
                            self._home = node
                            return reply
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        if heard:
            return heard[-1]
        raise last

    async def close(self, timeout_s: float) -> None:
        trying = list(self._trying.values())
        for task in trying:
            task.cancel()
        await asyncio.gather(*trying, return_exceptions=True)
        outcomes = await asyncio.gather(
            *[transport.close(timeout_s) for transport in self._made.values()], return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
