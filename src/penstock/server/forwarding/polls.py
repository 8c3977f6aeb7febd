"""Messages from whoever leads the partitions of some topics.

    poll ─► each leader in turn: what is there now ─► all of them at once: the first that gets something

What is there is taken from one after the other, so that nothing is leased which does not fit into the answer. Nothing
is kept for a next poll either: that may come to another node. Those who still wait when somebody has something are told
that nobody waits for them; what comes from them all the same is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from penstock.broker.polling import ReplyMemory
from penstock.client.answers import Release
from penstock.client.transport import Delivery, Receipt
from penstock.errors import ConnectionLost, NotLeader, PenstockError
from penstock.net.routing.failures import is_behind, is_misplaced, is_unknown
from penstock.server.forwarding.way import Way

# Until a node that has failed is asked again, longer each time. Most are soon known to be gone, or not to lead.
_PAUSE_S, _PAUSE_S_MAX = 0.05, 1.0
# Beyond what a poll waits: for an answer that is on its way.
_GRACE_S = 1.0
# One that has not said by then what is there may hang: the others are asked.
_ANSWER_S = 2.0


class Wanted(NamedTuple):
    group: str
    consumer: str
    topics: Sequence[str]
    messages_max: int
    bytes_max: int
    visibility_us: int | None


class Leaders(Protocol):
    """Who leads what, as this node knows it."""

    def leaders(self, topics: Sequence[str]) -> list[str]:
        """Of any of their partitions, by name. TopicNotFound if one of them is not known."""

    def changed(self) -> asyncio.Future[None]:
        """Done when that may be different."""

    def way(self, node: str) -> Way: ...


class Polls:
    """Belongs to one event loop."""

    def __init__(
        self,
        leaders: Leaders,
        tell: Callable[[str, Receipt, Release], Coroutine[Any, Any, None]],
        patience_s: float,
    ) -> None:
        """`tell` answers for what is given back. A poll that no leader has answered waits for one, for `patience_s`
        or as long as it waits for messages, whichever is longer."""
        self._leaders = leaders
        self._tell = tell
        self._patience_s = patience_s
        self._loop = asyncio.get_running_loop()
        self._turn = 0
        self._behind: set[asyncio.Task[None]] = set()

    async def poll(self, wanted: Wanted, wait_us: int, memory: ReplyMemory | None = None) -> list[Delivery]:
        """If no leader has answered at all, the error of one. What other nodes lease while this one waits is counted in
        `memory` when it arrives."""
        now = self._loop.time()
        until, give_up = now + wait_us / 1e6, now + max(wait_us / 1e6, self._patience_s)
        if memory is not None:
            await memory.reserve(wanted.bytes_max)
        taken, failure = await self._taken(wanted)
        if not taken and memory is not None:
            memory.release()
        if not taken and (wait_us or failure is not None):
            taken, failure = await self._awaited(wanted, until, give_up, failure)
            if memory is not None:
                memory.charge(sum(len(frame.data) for one in taken for frame in one.frames))
        if not taken and failure is not None:
            raise failure
        return taken

    # --- what is there -----------------------------------------------------------------------------------

    async def _taken(self, wanted: Wanted) -> tuple[list[Delivery], PenstockError | None]:
        nodes = self._leaders.leaders(wanted.topics)
        failure: PenstockError | None = None if nodes else _nobody(wanted.topics)
        # Another one first each time: a busy one does not keep the others waiting for ever.
        self._turn += 1
        turn = self._turn % max(len(nodes), 1)
        taken: list[Delivery] = []
        count, bytes_max, has_answered = wanted.messages_max, wanted.bytes_max, False
        try:
            for node in nodes[turn:] + nodes[:turn]:
                some: Sequence[Delivery] = ()
                try:
                    async with asyncio.timeout(_ANSWER_S):
                        some = await self._asked(node, wanted._replace(messages_max=count, bytes_max=bytes_max), 0)
                    has_answered = True
                except TimeoutError:
                    failure = ConnectionLost(f"node {node} has not answered for {_ANSWER_S:g} s", node=node)
                except PenstockError as error:
                    if not (taken or _passes(error)):
                        raise
                    failure = error
                taken += some
                count -= sum(len(one.receipt.offsets) for one in some)
                bytes_max -= sum(len(frame.data) for one in some for frame in one.frames)
                if count <= 0 or bytes_max <= 0:
                    break
        except BaseException:
            self.give_back(wanted.group, taken)
            raise
        return taken, None if has_answered else failure

    async def _asked(self, node: str, wanted: Wanted, wait_us: int) -> list[Delivery]:
        way = self._leaders.way(node)
        group, consumer, topics, count, bytes_max, visibility_us = wanted
        return list(
            await way.poll(
                group,
                consumer,
                topics,
                count=count,
                bytes_max=bytes_max,
                wait_us=wait_us,
                visibility_us=visibility_us,
            )
        )

    # --- what comes --------------------------------------------------------------------------------------

    async def _awaited(
        self, wanted: Wanted, until: float, give_up: float, failure: PenstockError | None
    ) -> tuple[list[Delivery], PenstockError | None]:
        """Wait for messages until `until`. `failure`: why no leader has answered so far; then wait for one until
        `give_up`, which is not earlier."""
        asking = _Asking(self._loop, partial(self.give_back, wanted.group))
        has_answered = failure is None
        try:
            while (now := self._loop.time()) < (asks_until := until if has_answered else give_up) + _GRACE_S:
                changed, nodes = self._leaders.changed(), self._leaders.leaders(wanted.topics)
                asking.keep(nodes)
                if now < asks_until:
                    for node in nodes:
                        if asking.may_ask(node):
                            asking.ask(node, self._asked(node, wanted, max(0, round((until - now) * 1e6))))
                    failure = failure if nodes else _nobody(wanted.topics)
                elif not asking:
                    break
                wake_at = min(asks_until, asking.retry_at) if now < asks_until else asks_until + _GRACE_S
                events: list[asyncio.Future[Any]] = [changed, *asking.tasks]
                await asyncio.wait(events, timeout=wake_at - now, return_when=asyncio.FIRST_COMPLETED)
                found, failed, answered = asking.done()
                has_answered = has_answered or answered
                if found:
                    return self._fitting(wanted, found), None
                for error in failed:
                    if not _passes(error):
                        raise error
                    failure = error
        finally:
            asking.keep(())
        return [], None if has_answered else failure

    def _fitting(self, wanted: Wanted, found: list[Delivery]) -> list[Delivery]:
        """Several may have answered at the same time."""
        taken: list[Delivery] = []
        count = wanted.messages_max
        for one in found:
            offsets = one.receipt.offsets
            if len(offsets) > count:
                self.give_back(wanted.group, [_with(one, slice(count, None))])
                one = _with(one, slice(count))
            if one.receipt.offsets:
                taken.append(one)
                count -= len(one.receipt.offsets)
        return taken

    # --- behind everybody's back ------------------------------------------------------------------------

    def give_back(self, group: str, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            task = self._loop.create_task(self._released(group, delivery.receipt))
            self._behind.add(task)
            task.add_done_callback(self._behind.discard)

    async def _released(self, group: str, receipt: Receipt) -> None:
        try:
            await self._tell(group, receipt, Release())
        except PenstockError:
            # Its lease will run out by itself.
            pass

    async def settled(self) -> None:
        while self._behind:
            await asyncio.wait(self._behind)


class _Asking:
    """Of one poll: the nodes it waits at, and when to ask those again that have failed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, late: Callable[[list[Delivery]], None]) -> None:
        """`late` gets what has come for nobody."""
        self._loop = loop
        self._late = late
        self._tasks: dict[str, asyncio.Task[list[Delivery]]] = {}
        self._pauses: dict[str, float] = {}
        self._retry_at: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._tasks)

    @property
    def tasks(self) -> list[asyncio.Task[list[Delivery]]]:
        return list(self._tasks.values())

    @property
    def retry_at(self) -> float:
        return min((at for node, at in self._retry_at.items() if node not in self._tasks), default=float("inf"))

    def keep(self, nodes: Sequence[str]) -> None:
        """The others have nothing to give any more."""
        for node in [node for node in self._tasks if node not in nodes]:
            task = self._tasks.pop(node)
            task.cancel()
            task.add_done_callback(self._ended)
        for node in [node for node in self._retry_at if node not in nodes]:
            del self._retry_at[node]

    def may_ask(self, node: str) -> bool:
        return node not in self._tasks and self._retry_at.get(node, 0.0) <= self._loop.time()

    def ask(self, node: str, asked: Coroutine[Any, Any, list[Delivery]]) -> None:
        self._retry_at.pop(node, None)
        self._tasks[node] = self._loop.create_task(asked)

    def done(self) -> tuple[list[Delivery], list[PenstockError], bool]:
        """What has come, what has failed, and whether anybody has answered."""
        found, failed, has_answered = list[Delivery](), list[PenstockError](), False
        for node in [node for node, task in self._tasks.items() if task.done()]:
            try:
                found += self._tasks.pop(node).result()
                has_answered = True
                # It had nothing for as long as it was to wait, or leads nothing any more.
                pause = self._pauses[node] = _PAUSE_S
            except PenstockError as error:
                failed.append(error)
                pause = self._pauses.get(node, _PAUSE_S)
                self._pauses[node] = min(2 * pause, _PAUSE_S_MAX)
            self._retry_at[node] = self._loop.time() + pause
        return found, failed, has_answered

    def _ended(self, task: asyncio.Task[list[Delivery]]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._late(task.result())


def _passes(error: PenstockError) -> bool:
    """Another node is to be asked, or the same one later."""
    return is_misplaced(error) or is_unknown(error) or is_behind(error) or error.retriable


def _nobody(topics: Sequence[str]) -> NotLeader:
    return NotLeader(f"nobody leads a partition of {', '.join(topics)} yet")


def _with(delivery: Delivery, some: slice) -> Delivery:
    receipt = delivery.receipt._replace(offsets=delivery.receipt.offsets[some])
    return delivery._replace(receipt=receipt)
