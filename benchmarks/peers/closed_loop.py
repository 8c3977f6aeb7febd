"""Clients that each publish a batch, wait until it is acknowledged, and do it again: threads, or tasks of one loop.

What is counted lies between the first beginning and the last end, when all are connected and have published once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from time import perf_counter
from typing import NamedTuple


class Published(NamedTuple):
    """Acknowledged messages, the seconds for all of them, and the seconds of each batch."""

    messages: int
    spent_s: float
    each_s: list[float]

    @property
    def rate(self) -> float:
        return self.messages / self.spent_s


Batch = Sequence[bytes]
Times = list[tuple[float, float]]


def in_threads(
    clients: int,
    batch: Batch,
    seconds: float,
    connected: Callable[[], AbstractContextManager[Callable[[Batch], object]]],
) -> Published:
    """`connected` gives a client's way to publish a batch."""
    gate = threading.Barrier(clients)

    def one() -> Times:
        times: Times = []
        try:
            with connected() as publish:
                publish(batch[:1])
                gate.wait()
                until = perf_counter() + seconds
                ended = 0.0
                while ended < until:
                    began = perf_counter()
                    publish(batch)
                    ended = perf_counter()
                    times.append((began, ended))
        except threading.BrokenBarrierError:
            return times
        except BaseException:
            # Or the others would wait for it for ever.
            gate.abort()
            raise
        return times

    with ThreadPoolExecutor(clients) as pool:
        return _summed([turn.result() for turn in [pool.submit(one) for _ in range(clients)]], len(batch))


async def in_tasks(batch: Batch, seconds: float, clients: Sequence[Callable[[Batch], Awaitable[object]]]) -> Published:
    """Each of `clients` publishes a batch."""

    async def one(publish: Callable[[Batch], Awaitable[object]], until: float) -> Times:
        times, ended = [], 0.0
        while ended < until:
            began = perf_counter()
            await publish(batch)
            ended = perf_counter()
            times.append((began, ended))
        return times

    await asyncio.gather(*[publish(batch[:1]) for publish in clients])
    until = perf_counter() + seconds
    return _summed(await asyncio.gather(*[one(publish, until) for publish in clients]), len(batch))


def _summed(turns: Sequence[Times], size: int) -> Published:
    times = [one for turn in turns for one in turn]
    spent = max(ended for _, ended in times) - min(began for began, _ in times)
    return Published(size * len(times), spent, [ended - began for began, ended in times])
