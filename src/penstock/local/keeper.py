"""What time alone does in a broker, now and then: delays that are due, leases that run out, retention.

If that fails for a reason that passes, it is tried again. If not, the broker must not go on as if nothing had happened:
everybody who asks it for something hears of the failure.

Nothing waits for what was begun before it: that may wait for a partition that can't commit, and time goes on for the
others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock.broker.broker import Broker
from penstock.errors import Fatal, LogClosed, NotFound, PenstockError

TICK_S = 0.5
# Kafka looks for segments to delete every 5 minutes; ours are smaller, and may be wanted sooner.
TICKS_TO_MAINTENANCE = 120


class Keeper:
    """Belongs to the broker's event loop. Time is real here: this is what moves a broker whose clock is."""

    def __init__(self, broker: Broker, *, tick_s: float = TICK_S) -> None:
        self._broker = broker
        self._tick_s = tick_s
        # Why the broker must not go on, if it must not.
        self.failure: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._under_way: set[asyncio.Task[None]] = set()
        self._task = self._loop.create_task(self._keep())

    def check(self) -> None:
        if self.failure is not None:
            raise Fatal(f"the broker has failed and must be opened anew: {self.failure}") from self.failure

    async def _keep(self) -> None:
        ticks = 0
        while self.failure is None:
            await asyncio.sleep(self._tick_s)
            ticks += 1
            self._begin(self._broker.tick)
            # Also soon after the start: a process may live shorter than that, and another one after it.
            if ticks % TICKS_TO_MAINTENANCE == 1:
                self._begin(self._broker.maintain)

    def _begin(self, work: Callable[[], Awaitable[None]]) -> None:
        task = self._loop.create_task(self._do(work))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _do(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (LogClosed, NotFound):
            # A topic was deleted under our hands.
            pass
        except PenstockError as error:
            if not error.retriable:
                self.failure = self.failure or error
        except Exception as error:
            # A bug of ours, which must not go unheard.
            self.failure = self.failure or error

    async def stop(self) -> None:
        tasks = [self._task, *self._under_way]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
