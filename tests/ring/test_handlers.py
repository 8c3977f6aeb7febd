"""What can be a handler, what it must not return, and how one that fails is heard of."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest

from penstock.errors import InvalidInput
from penstock.ring import JobBatch, Ring
from ring_support import Time, ring_at


def fail(batch: JobBatch) -> None:
    raise ValueError("no use")


def yielding(batch: JobBatch) -> Iterator[Any]:
    yield from batch


async def yielding_async(batch: JobBatch) -> AsyncIterator[Any]:
    for job in batch:
        yield job


class Yielding:
    def __call__(self, batch: JobBatch) -> Iterator[Any]:
        yield from batch


async def later(batch: JobBatch) -> None:
    pass


async def later_still(batch: JobBatch) -> Any:
    return later(batch)


# --- what can't be one -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("handler", [yielding, yielding_async, Yielding(), partial(yielding), Yielding().__call__])
def test_a_handler_with_a_yield_is_refused(handler: Any) -> None:
    ring = Ring()
    ring.put("a")
    for kind in ("threads", "processes"):
        with pytest.raises(InvalidInput, match="yield"):
            ring.start(handler, kind=kind)
    with pytest.raises(InvalidInput, match="yield"):
        asyncio.run(ring.aio.run(handler))
    assert ring.stats().taken == 0


@pytest.mark.parametrize("handler", [print, fail, lambda batch: later(batch), 5])
def test_a_loop_of_one_s_own_runs_coroutine_functions_only(handler: Any) -> None:
    ring = Ring()
    ring.put("a")
    with pytest.raises(InvalidInput):
        asyncio.run(ring.aio.run(handler))
    stats = ring.stats()
    assert (stats.taken, stats.waiting, stats.workers) == (0, 1, 0)


def test_what_is_made_of_a_coroutine_function_is_one() -> None:
    async def handle(greeting: str, batch: JobBatch) -> None:
        batch.fail(reason=greeting)

    ring = Ring()
    ring.put("a")
    asyncio.run(ring.aio.run(partial(handle, "hello"), until_idle="1ms"))
    assert ring.failed()[0].reason == "hello"


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        (lambda batch: later(batch), "coroutine"),
        (lambda batch: (job for job in batch), "generator"),
        (lambda batch: yielding_async(batch), "async_generator"),
        (lambda batch: map(str, batch), "map"),
        (later_still, "coroutine"),
    ],
)
def test_work_that_nobody_would_do_is_not_taken_for_done(handler: Any, kind: str) -> None:
    ring = Ring(max_attempts=1)
    ring.put("a")
    ring.run(handler, until_idle="1ms")
    assert ring.failed()[0].reason.startswith(f"InvalidInput: the handler returned a value of type {kind}, ")
    assert ring.stats().acked == 0


def test_nor_is_it_in_a_loop_of_one_s_own() -> None:
    ring = Ring(max_attempts=1)
    ring.put("a")
    asyncio.run(ring.aio.run(later_still, until_idle="1ms"))
    assert "the handler returned" in ring.failed()[0].reason


def test_what_was_answered_for_before_it_stays_so() -> None:
    def handle(batch: JobBatch) -> Any:
        batch.ack()
        return later(batch)

    ring = Ring(max_attempts=1)
    ring.put("a")
    ring.run(handle, until_idle="1ms")
    assert (ring.stats().acked, ring.failed()) == (1, [])


@pytest.mark.parametrize("returned", [None, 5, [], {"a": 1}, "text"])
def test_other_values_are_of_no_interest(returned: Any) -> None:
    ring = Ring()
    ring.put("a")
    ring.run(lambda batch: returned, until_idle="1ms")
    assert ring.stats().acked == 1


# --- one that fails --------------------------------------------------------------------------------------------------


def told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """By this project: what others have left behind may be told of at any time."""
    return [record for record in caplog.records if record.name.startswith("penstock")]


async def fail_async(batch: JobBatch) -> None:
    fail(batch)


@pytest.mark.parametrize("handler", [fail, fail_async])
def test_a_failed_batch_is_in_the_log_with_its_traceback(handler: Any, caplog: pytest.LogCaptureFixture) -> None:
    ring = Ring(max_attempts=1)
    ring.put_many(["a", "b"])
    ring.run(handler, until_idle="1ms")
    (record,) = told(caplog)
    assert (record.name, record.levelno) == ("penstock.ring", logging.WARNING)
    assert record.getMessage() == "a handler failed with a batch of 2 jobs: ValueError: no use"
    assert "in fail" in caplog.text
    assert record.exc_info is not None


def test_an_error_after_the_last_answer_is_in_the_log_too(caplog: pytest.LogCaptureFixture) -> None:
    def handle(batch: JobBatch) -> None:
        batch.ack()
        fail(batch)

    ring = Ring()
    ring.put("a")
    ring.run(handle, until_idle="1ms")
    assert ring.stats().acked == 1
    assert [record.getMessage() for record in told(caplog)] == [
        "a handler failed with a batch of 1 job: ValueError: no use"
    ]


def test_the_log_is_not_filled_with_them(caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    ring = ring_at(time, max_attempts=1)
    ring.put_many(range(10))
    ring.start(fail, batch=1)
    ring.join()
    assert len(told(caplog)) == 1
    time.advance("1s")
    ring.put_many(range(2))
    ring.join()
    assert len(told(caplog)) == 2
    assert told(caplog)[1].getMessage().endswith("ValueError: no use (and 9 batches before, not shown)")
    ring.close()
    assert told(caplog)[2].getMessage() == "handlers failed with 1 batch more, not shown"
    assert len(told(caplog)) == 3


def test_a_handler_that_does_not_fail_leaves_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    with Ring() as ring:
        ring.put_many(range(10))
        ring.run(lambda batch: batch.fail(reason="no"), until_idle="1ms")
    assert told(caplog) == []


def test_why_slow_has_the_last_error_as_long_as_it_matters() -> None:
    time = Time()
    ring = ring_at(time, max_attempts=2)
    ring.put("a")
    ring.take().retry(delay="1m", reason="ValueError: no use")
    assert ring.stats().why_slow == (
        "1 job waits for the next attempt, and no others are there; the last error: ValueError: no use"
    )
    time.advance("1m")
    ring.take().fail(reason="x" * 1_000)
    assert ring.stats().why_slow == f"it is not: nothing is waiting; the last error: {'x' * 200}…"
    ring.clear_failed()
    assert ring.stats().why_slow == "it is not: nothing is waiting"
