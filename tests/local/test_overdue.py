"""Whoever waits for other nodes is told in time that they are late, and nothing is lost by that."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

import pytest

from penstock.errors import LeadershipLost, NotCommitted
from penstock.local.overdue import Overdue
from penstock.storage.commit import Committed

LONG_US = 3_600_000_000
STORED = Committed(5, 1)


def run(work: Coroutine[Any, Any, None]) -> None:
    """Whatever asyncio would only complain of fails the test."""
    complaints: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, complaint: complaints.append(complaint))
        await work
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(watched())
    assert complaints == []


def test_what_is_stored_in_time_is_told_as_it_is() -> None:
    async def work() -> None:
        loop, overdue = asyncio.get_running_loop(), Overdue(LONG_US)
        stored, failed, known = loop.create_future(), loop.create_future(), loop.create_future()
        known.set_result(STORED)
        waiting = [overdue.bounded(each) for each in (stored, failed, known)]
        assert waiting[2] is known
        stored.set_result(STORED)
        failed.set_exception(LeadershipLost("gone"))
        assert await waiting[0] == STORED
        with pytest.raises(LeadershipLost, match="gone"):
            await waiting[1]

    run(work())


def test_what_is_late_is_told_to_be_unknown_and_goes_on() -> None:
    async def work() -> None:
        loop, overdue = asyncio.get_running_loop(), Overdue(1_000)
        committing = [loop.create_future() for _ in range(3)]
        waiting = [overdue.bounded(each) for each in committing]
        for each in waiting:
            with pytest.raises(NotCommitted, match="taken 1ms ago"):
                await each
        assert not any(each.done() for each in committing)
        # Whatever becomes of them, nobody is told twice.
        committing[0].set_result(STORED)
        committing[1].set_exception(LeadershipLost("gone"))
        await asyncio.sleep(0)

    run(work())


def test_those_that_came_later_wait_on() -> None:
    async def work() -> None:
        loop, overdue = asyncio.get_running_loop(), Overdue(50_000)
        first = overdue.bounded(loop.create_future())
        await asyncio.wait([first])
        second = overdue.bounded(loop.create_future())
        assert not second.done()
        with pytest.raises(NotCommitted):
            await second

    run(work())


def test_whoever_gives_up_waiting_disturbs_nobody() -> None:
    async def work() -> None:
        loop, overdue = asyncio.get_running_loop(), Overdue(LONG_US)
        committing = loop.create_future()
        gone, there = overdue.bounded(committing), overdue.bounded(committing)
        gone.cancel()
        committing.set_result(STORED)
        assert await there == STORED

    run(work())


def test_work_that_takes_too_long_is_left_alone() -> None:
    async def work() -> None:
        loop, overdue = asyncio.get_running_loop(), Overdue(1_000)
        committing = loop.create_future()
        with pytest.raises(NotCommitted):
            await overdue.within(asyncio.shield(committing))
        assert not committing.done()
        committing.set_result(STORED)
        assert await overdue.within(asyncio.shield(committing)) == STORED

    run(work())
