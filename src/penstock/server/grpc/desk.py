"""What all calls share: who is waiting here, what is done behind their backs, and whether it is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from penstock.broker.topic import Topic
from penstock.errors import LogClosed, PenstockError
from penstock.server.grpc.intake import Intake
from penstock.server.members import Members
from penstock.server.receipts import key_of
from penstock.server.site import Site

log = logging.getLogger("penstock.grpc")


class Desk:
    """Belongs to the broker's event loop. Its `site` asks nobody for rights: it is for what the door does itself."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.intake = Intake(site.limits)
        self._is_over = asyncio.Event()
        self.members = Members(site)
        self._polls: set[asyncio.Task[Any]] = set()
        self._behind: set[asyncio.Task[None]] = set()
        # The partition of the last batch with messages without a key.
        self._turns: WeakKeyDictionary[Topic, int] = WeakKeyDictionary()

    # --- who is here -------------------------------------------------------------------------------------

    @contextmanager
    def polling(self) -> Iterator[None]:
        """The task is cancelled when it is over: a poll that is cancelled has leased nothing."""
        self.check()
        task = asyncio.current_task()
        assert task is not None
        self._polls.add(task)
        try:
            yield
        finally:
            self._polls.discard(task)

    # --- what is known -----------------------------------------------------------------------------------

    def partitions(self, topic: str) -> int | None:
        """None if it is not known here, though it may have been made at another node a moment ago."""
        try:
            return self.site.broker.topic(topic).count
        except PenstockError:
            return None

    async def found_partitions(self, topic: str) -> int:
        """1 of a topic that is not there: whoever publishes to it hears so, if it may know."""
        await self.site.catch_up()
        return self.partitions(topic) or 1

    def next_turn(self, topic: str, partitions: int) -> int:
        """Where messages without a key go: to the topic's next partition that is led; if none is, to any."""
        if partitions == 1:
            return 0
        on_topic = self.site.broker.topic(topic)
        turn = self._turns.get(on_topic, 0)
        for _ in range(partitions):
            turn = (turn + 1) % partitions
            if self.site.is_led(topic, turn):
                break
        self._turns[on_topic] = turn
        return turn

    def receipt_key(self, group: str) -> bytes:
        return key_of(self.site.broker.secret, group)

    # --- behind their backs, and the end -----------------------------------------------------------------

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        """Also if the call that wants it is over."""
        task = asyncio.get_running_loop().create_task(self._done(work))
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)

    async def _done(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except PenstockError as error:
            # What was leased comes back when its time is up, and a member leaves when its session is over.
            log.info("after a call was over: %s", error.message)

    @property
    def is_over(self) -> bool:
        return self._is_over.is_set()

    def check(self) -> None:
        if self.is_over:
            raise LogClosed("the broker is stopping")

    async def over(self) -> None:
        """Until it is."""
        await self._is_over.wait()

    def end(self) -> None:
        """Nobody waits any longer."""
        self._is_over.set()
        for task in self._polls:
            task.cancel()

    async def settled(self) -> None:
        while self._behind:
            await asyncio.wait(self._behind)
