"""A consumer in a cluster: one poll that waits at every node which leads something of its topics.

    poll ─► ask every leader that is not being asked ─► the first that has something answers
                                                        the others go on waiting: what they bring is held for the next

An answer that nobody asks for is held for a part of its lease, and given back then. Nodes are served in the order in
which they answer, and none is asked again before what it brought was taken: a busy one does not keep others from being
heard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from penstock.client.answers import Release
from penstock.client.transport import Delivery, Receipt
from penstock.errors import (
    ConnectionLost,
    GroupNotFound,
    LeadershipLost,
    MemberNotFound,
    PenstockError,
    QuotaExceeded,
)
from penstock.net.routing.atlas import Atlas
from penstock.net.routing.failures import is_behind, is_misplaced, is_unknown
from penstock.net.routing.held import Held
from penstock.net.routing.nodes import Nodes
from penstock.net.routing.pace import Attempts, Pace
from penstock.net.routing.place import Place
from penstock.net.routing.poller import Poller

# Of the time of a lease: what is held for longer is given back.
_HELD_SHARE, _HELD_S_MAX = 0.2, 10.0
# A node has said that it does not lead what it led. Within so long somebody will say who does.
_DOUBT_S = 5.0

Tell = Callable[[str, Receipt, Release], Awaitable[None]]


class Member:
    """Belongs to one event loop."""

    def __init__(self, place: Place, nodes: Nodes, atlas: Atlas, pace: Pace, tell: Tell) -> None:
        """`tell` answers for what is given back."""
        self._place = place
        self._nodes = nodes
        self._atlas = atlas
        self._pace = pace
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._held = Held()
        self._pollers: dict[str, Poller] = {}
        # Polls at nodes that lead nothing of it any more, and have not said so yet.
        self._ending: set[asyncio.Task[Sequence[Delivery]]] = set()
        self._calls = 0
        # How long what is being asked for is leased; None for what the group has.
        self._visibility_us: int | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        # What can't be mended by asking somebody else, for whoever asks next.
        self._failure: PenstockError | None = None
        # When to ask again where things are, after which pause, and until when that is in doubt.
        self._look_at = 0.0
        self._look_pause_s = pace.pause_s
        self._doubt_until = 0.0
        # Of the nodes: those before have been taken into account when it was found out who looks after the group.
        self._changes = 0
        self._rejoining: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        # Answers that brought something, counted, and which of them is held for each node.
        self._answers = 0
        self._since: dict[str, int] = {}
        self._giving_back: set[asyncio.Task[None]] = set()
        self._is_over = False
        self.has_joined = False

    async def join(self, topics: Sequence[str], settings: Mapping[str, Any]) -> None:
        self._changes = self._nodes.changes
        await self._place.join(topics, settings)
        self.has_joined = True
        if self._keeping is None and not self._is_over:
            self._keeping = self._loop.create_task(self._keep())

    # --- polling -----------------------------------------------------------------------------------------

    async def poll(
        self, topics: Sequence[str], *, count: int, bytes_max: int, wait_us: int, visibility_us: int | None = None
    ) -> Sequence[Delivery]:
        self._calls += 1
        call, until = self._calls, self._loop.time() + wait_us / 1_000_000
        wanted = {"count": count, "bytes_max": bytes_max}
        if visibility_us is not None:
            wanted["visibility_us"] = visibility_us
        self._lease_for(visibility_us)
        while not self._is_over:
            await self._locate(topics)
            if taken := self._held.take(count, bytes_max):
                return taken
            now = self._loop.time()
            self._check(now)
            if self._changes != self._nodes.changes:
                # Another one may look after the group by now.
                self._rejoin()
            self._ask_all(topics, call, until, wanted | {"wait_us": int(max(until - now, 0.0) * 1e6)})
            timeout_s = self._next_s(topics, call, until)
            if timeout_s is None:
                return []
            await self._news(timeout_s)
        return []

    def _lease_for(self, visibility_us: int | None) -> None:
        """What waits for another time is asked for anew."""
        if visibility_us != self._visibility_us:
            self._visibility_us = visibility_us
            for task in [*self._ending, *(poller.task for poller in self._pollers.values() if poller.task is not None)]:
                task.cancel()
            self._pollers.clear()

    async def _locate(self, topics: Sequence[str]) -> None:
        """TopicNotFound if one is not there."""
        if not self._atlas.knows(topics):
            attempts = Attempts(self._pace)
            await self._atlas.refresh_patiently(attempts, *topics)
            for topic in topics:
                self._atlas.numbers(topic)

    def _ask_all(self, topics: Sequence[str], call: int, until: float, wanted: dict[str, int]) -> None:
        leaders, now = self._atlas.leaders(topics), self._loop.time()
        for node in [node for node in self._pollers if node not in leaders]:
            # Its poll ends by itself. What was leased there in the last moment is ours, whoever leads by now.
            ending = self._pollers.pop(node).task
            if ending is not None:
                self._ending.add(ending)
                ending.add_done_callback(self._ending.discard)
        for node in sorted(leaders):
            poller = self._pollers.setdefault(node, Poller(self._pace))
            is_idle = poller.task is None and not self._held.has(node)
            if is_idle and poller.retry_at <= now and not poller.is_done_for(call, until):
                task = self._run(self._asked(node, topics, wanted))
                poller.began(task, call, until)
                task.add_done_callback(partial(self._came, node, poller))

    async def _asked(self, node: str, topics: Sequence[str], wanted: dict[str, int]) -> Sequence[Delivery]:
        return await self._nodes.of(node).poll(self._place.group, self._place.name, topics, **wanted)

    def _came(self, node: str, poller: Poller, task: asyncio.Task[Sequence[Delivery]]) -> None:
        if task.cancelled():
            poller.task = None
            return
        error = task.exception()
        if error is None:
            poller.answered()
            if task.result():
                self._hold(node, task.result())
        elif isinstance(error, PenstockError):
            if self._pollers.get(node) is poller:
                self._failed(poller, error)
        else:
            poller.task = None
            self._loop.call_exception_handler({"message": "a poll failed", "exception": error, "task": task})
        self._wake()

    def _failed(self, poller: Poller, error: PenstockError) -> None:
        poller.failed(error, self._loop.time())
        if isinstance(error, QuotaExceeded):
            # Where things are is known. To ask for that would use up more of the quota.
            return
        if isinstance(error, MemberNotFound | GroupNotFound):
            self._rejoin()
        elif is_misplaced(error) or is_behind(error) or error.retriable:
            self._doubt_until = self._loop.time() + _DOUBT_S
            self._look()
            if isinstance(error, ConnectionLost | LeadershipLost):
                # It may have been the coordinator, too.
                self._rejoin()
        else:
            self._failure = error

    def _check(self, now: float) -> None:
        """Raises what is not to be mended, or has not been for too long."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        errors = [poller.error for poller in self._pollers.values() if poller.error is not None]
        if not errors or len(errors) < len(self._pollers):
            return
        if now - min(poller.failing_since for poller in self._pollers.values()) > self._pace.patience_s:
            for poller in self._pollers.values():
                poller.failing_since = now
            raise errors[-1].again()

    def _next_s(self, topics: Sequence[str], call: int, until: float) -> float | None:
        """How long to wait for something to happen. None: nothing will, in the time that there is."""
        now = self._loop.time()
        pollers = self._pollers.values()
        if now >= until:
            is_asking = any(poller.task is not None and poller.call >= call for poller in pollers)
            return until + self._pace.grace_s - now if is_asking and now < until + self._pace.grace_s else None
        times = [poller.retry_at for poller in pollers if poller.error is not None and poller.task is None]
        if self._atlas.lacks(topics) or now < self._doubt_until:
            self._look()
            times.append(self._look_at)
        if not times and not any(poller.task is not None for poller in pollers):
            return None
        return max(min([until, *times]) - now, 0.001)

    async def _news(self, timeout_s: float) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.add(waiter)
        timer = self._loop.call_later(timeout_s, _set, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiting.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiting:
            _set(waiter)

    # --- where things are --------------------------------------------------------------------------------

    def _look(self) -> None:
        """Soon, and less and less often."""
        now = self._loop.time()
        if now >= self._look_at and not self._is_over:
            if now > self._look_at + 2 * self._pace.pause_s_max:
                self._look_pause_s = self._pace.pause_s
            self._look_at = now + self._look_pause_s * (0.5 + self._pace.dice() / 2)
            self._look_pause_s = min(2 * self._look_pause_s, self._pace.pause_s_max)
            self._run(self._looked())

    async def _looked(self) -> None:
        with suppress(PenstockError):
            await self._atlas.refresh(*self._place.topics)
        if any(poller.error is not None for poller in self._pollers.values()):
            self._nodes.wander()
        self._wake()

    def _rejoin(self) -> None:
        if self._rejoining is None and not self._is_over:
            self._rejoining = self._run(self._rejoined())

    async def _rejoined(self) -> None:
        self._changes = self._nodes.changes
        try:
            if any(isinstance(one.error, MemberNotFound | GroupNotFound) for one in self._pollers.values()):
                await self._place.join_again()
            else:
                await self._place.confirm()
        except PenstockError as error:
            if not (is_misplaced(error) or is_unknown(error) or error.retriable):
                self._failure = error
        finally:
            self._rejoining = None
            self._wake()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._place.period_s)
            await self._looked()
            # What is wrong will be heard by whoever asks for messages.
            with suppress(PenstockError):
                await self._place.confirm()

    # --- what nobody has asked for -----------------------------------------------------------------------

    def _hold(self, node: str, deliveries: Sequence[Delivery]) -> None:
        self._held.add(node, deliveries)
        left_s = (min(one.deadline_us for one in deliveries) - self._nodes.home.monotonic_us()) / 1_000_000
        self._answers += 1
        self._since[node] = self._answers
        hold_s = min(_HELD_SHARE * left_s, _HELD_S_MAX)
        self._loop.call_later(hold_s, self._give_back, node, self._answers)

    def _give_back(self, node: str, answer: int) -> None:
        """What is left of that answer."""
        if self._held.has(node) and self._since[node] == answer and not self._is_over:
            task = self._loop.create_task(self._release(self._held.drop(node)))
            self._giving_back.add(task)
            task.add_done_callback(self._giving_back.discard)

    async def _release(self, deliveries: Sequence[Delivery]) -> None:
        await asyncio.gather(*[self._release_one(delivery.receipt) for delivery in deliveries])

    async def _release_one(self, receipt: Receipt) -> None:
        # Otherwise its lease will run out by itself.
        with suppress(PenstockError, TimeoutError):
            async with asyncio.timeout(self._pace.ask_s):
                await self._tell(self._place.group, receipt, Release())

    # --- the end -----------------------------------------------------------------------------------------

    def _run(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def leave(self) -> None:
        try:
            await self.stop()
        finally:
            # Also if the caller is cancelled: otherwise the connection would keep the member alive.
            await self._place.leave()

    async def stop(self) -> None:
        """Asks for nothing any more, and gives back what is held."""
        self._is_over = True
        tasks = [*self._tasks, *([self._keeping] if self._keeping is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._giving_back, return_exceptions=True)
        self._wake()
        for node in self._held.nodes():
            await self._release(self._held.drop(node))


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
