"""What a failure in the background does to a broker."""

from __future__ import annotations

import asyncio
import gc
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.broker.work import Work, to_its_end
from penstock.errors import BatchTooLarge, EtcdReplaced, EtcdUnavailable, Fatal, LogCorrupt, Overloaded, SyncFailed


async def failed(*errors: BaseException) -> Work:
    async def fail(error: BaseException) -> None:
        raise error

    with ThreadPoolExecutor(1) as executor:
        work = Work(executor)
        for error in errors:
            await asyncio.wait([work.in_background(fail(error))])
    return work


@pytest.mark.parametrize("error", [BatchTooLarge("large"), LogCorrupt("damaged", file="f", position=0)])
def test_what_is_stored_does_not_end_the_broker_and_is_reported_once(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.run(failed(error, error)).check()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


@pytest.mark.parametrize("error", [Overloaded("full"), EtcdUnavailable("away")])
def test_what_passes_is_not_reported(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(failed(error)).check()
    assert caplog.records == []


@pytest.mark.parametrize("error", [SyncFailed("lost"), EtcdReplaced("another"), ValueError("a bug")])
def test_a_broker_that_can_not_trust_itself_ends(error: BaseException) -> None:
    with pytest.raises(Fatal):
        asyncio.run(failed(error)).check()


def test_a_failure_after_the_caller_was_cancelled_is_not_reported_by_the_event_loop() -> None:
    reported: list[dict[str, Any]] = []

    async def cancelled_and_failed(is_alone: bool) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
        begun, failing = asyncio.Event(), asyncio.Event()

        async def fail() -> None:
            begun.set()
            await failing.wait()
            raise EtcdUnavailable("away")

        with ThreadPoolExecutor(1) as executor:
            work = Work(executor)
            caller = asyncio.create_task(work.alone(fail()) if is_alone else to_its_end(fail()))
            await begun.wait()
            caller.cancel()
            await asyncio.wait([caller])
            failing.set()
            await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})  # type: ignore[operator]
            gc.collect()

    for is_alone in (True, False):
        asyncio.run(cancelled_and_failed(is_alone))
    assert reported == []
