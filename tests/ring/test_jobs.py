"""What becomes of a job: put, taken, answered for, tried again, failed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any

import pytest

from penstock.errors import InvalidInput, InvalidSetting, NotLeased, RingClosed
from penstock.ring import Ring
from penstock.testing import MemoryFiles
from ring_support import Started, Time, drained, quiet_ring, ring_at, until_waiting


@pytest.fixture
def time() -> Time:
    return Time()


def test_jobs_come_in_the_order_they_were_put() -> None:
    ring = Ring()
    ring.put(1)
    ring.put_many([2, 3, 4])
    ring.put_many(iter((5, 6)))
    assert ring.take().jobs == [1]
    assert ring.take(3).jobs == [2, 3, 4]
    assert drained(ring) == [5, 6]


def test_any_object_is_a_job_also_none() -> None:
    ring = Ring()
    thing = object()
    ring.put_many([None, thing, [], 0])
    batch = ring.take(10)
    assert list(batch) == [None, thing, [], 0]
    assert batch[1] is thing
    assert len(batch) == 4
    batch.ack([None, []])
    assert ring.stats().in_flight == 2


def test_an_empty_take_is_false_and_can_be_answered_for() -> None:
    ring = Ring()
    batch = ring.take(5, wait=0)
    assert not batch
    assert batch.is_settled
    assert batch.attempts == []
    batch.ack()
    batch.ack([])
    batch.retry([])
    with ring.take(wait="0s") as batch:
        assert not batch
    assert ring.join(wait=0)


def test_an_empty_put_does_nothing_also_if_the_ring_is_more_than_full(time: Time) -> None:
    for when_full in ("block", "reject", "drop_oldest"):
        ring = ring_at(time, 1, when_full=when_full)
        ring.put("a")
        held = ring.take()
        ring.put("b")
        held.retry(delay="1h")
        ring.put_many([])
        assert len(ring) == 2
        assert ring.stats().dropped == 0


def test_acknowledged_jobs_are_gone() -> None:
    ring = Ring()
    ring.put_many(range(10))
    batch = ring.take(10)
    assert not batch.is_settled
    batch.ack()
    assert batch.is_settled
    stats = ring.stats()
    assert (stats.put, stats.taken, stats.acked, stats.in_flight, stats.waiting) == (10, 10, 10, 0, 0)


@pytest.mark.parametrize("answer", ["ack", "retry", "fail"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_batch_is_answered_for_once(answer: str, count: int) -> None:
    ring = Ring()
    ring.put_many(range(count))
    batch = ring.take(count)
    batch.ack()
    with pytest.raises(NotLeased):
        getattr(batch, answer)()
    with pytest.raises(NotLeased):
        getattr(batch, answer)([0])
    assert ring.stats().acked == count
    assert len(ring) == 0
    assert ring.failed() == []


def test_jobs_of_a_batch_are_answered_for_one_by_one(time: Time) -> None:
    ring = ring_at(time)
    ring.put_many(["a", "b", "c", "d"])
    batch = ring.take(4)
    batch.ack(["b"])
    batch.retry(["d"], delay=0)
    batch.fail(["a"], "bad")
    with pytest.raises(NotLeased):
        batch.ack(["b"])
    assert not batch.is_settled
    assert ring.stats().in_flight == 1
    batch.ack()
    assert batch.is_settled
    assert [failed.job for failed in ring.failed()] == ["a"]
    assert drained(ring) == ["d"]
    assert ring.stats().acked == 2


def instructions(work: Callable[[], None]) -> int:
    """How many of the ring's a call takes: a measure that no other process disturbs."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if not frame.f_globals.get("__name__", "").startswith("penstock.ring"):
            return None
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("make", [lambda number: {"n": number}, lambda number: 1], ids=["different", "same"])
@pytest.mark.parametrize("is_journaled", [False, True])
@pytest.mark.parametrize("answer", ["ack", "fail", "retry"])
def test_to_answer_one_by_one_takes_as_long_for_each(
    make: Callable[[int], Any], is_journaled: bool, answer: str
) -> None:
    def one_by_one(count: int) -> int:
        ring = quiet_ring(MemoryFiles()) if is_journaled else Ring()
        ring.put_many([make(number) for number in range(count)])
        batch = ring.take(count)
        taken = instructions(lambda: [getattr(batch, answer)([job]) for job in batch.jobs] and None)
        assert batch.is_settled
        return taken

    assert one_by_one(400) < 6 * one_by_one(100)


@pytest.mark.parametrize("make", [lambda number: {"n": number, "of": "all"}, str], ids=["dicts", "texts"])
def test_equal_copies_of_jobs_are_answered_for_one_by_one_in_any_order(make: Callable[[int], Any]) -> None:
    def one_by_one(count: int) -> int:
        ring = Ring()
        ring.put_many([make(number) for number in range(1_000, 1_000 + count)])
        batch = ring.take(count)
        copies = [make(number) for number in reversed(range(1_000, 1_000 + count))]
        taken = instructions(lambda: [batch.ack([job]) for job in copies] and None)
        assert batch.is_settled
        return taken

    assert one_by_one(400) < 6 * one_by_one(100)


def test_equal_jobs_without_a_common_key_are_found() -> None:
    @dataclass
    class Opaque:
        content: object

    ring = Ring()
    jobs: list[Any] = [{"a": 1, "b": 2}, {"n": 1}, {1, 2}, Opaque({"x": object}), Opaque({"y": object}), -1, -2]
    ring.put_many(jobs)
    batch = ring.take(len(jobs))
    copies: list[Any] = [{"b": 2, "a": 1}, {"n": 1.0}, frozenset({1, 2}), Opaque({"y": object}), Opaque({"x": object})]
    batch.ack([*copies, -2, -1])
    assert batch.is_settled


def test_an_answer_with_one_wrong_job_changes_nothing() -> None:
    ring = Ring()
    ring.put_many(["a", "b"])
    batch = ring.take(2)
    for answer in (batch.ack, batch.retry, batch.fail):
        with pytest.raises(NotLeased):
            answer(["a", "z"])
        with pytest.raises(NotLeased):
            answer(["a", "a"])
    assert ring.stats().in_flight == 2
    batch.ack(["a", "b"])
    assert ring.join(wait=0)


def test_equal_jobs_are_told_apart_by_identity_and_else_taken_in_turn(time: Time) -> None:
    ring = ring_at(time)
    first, second = [1], [1]
    ring.put_many([first, second])
    batch = ring.take(2)
    batch.retry([second], delay=0)
    assert ring.take().jobs[0] is second
    batch.ack([[1]])
    assert batch.is_settled
    ring.put_many(["same", "same", "same"])
    batch = ring.take(3)
    batch.ack(["same", "same"])
    assert not batch.is_settled
    batch.fail(["same"])
    assert batch.is_settled


def test_a_batch_in_a_with_statement_is_acknowledged_or_tried_again(time: Time) -> None:
    ring = ring_at(time)
    ring.put_many(["a", "b", "c"])
    with ring.take(2) as batch:
        batch.retry(["a"], delay=0)
    assert ring.stats().acked == 1
    with pytest.raises(ValueError, match="broken"), ring.take(2) as batch:
        assert batch.jobs == ["a", "c"]
        batch.ack(["c"])
        raise ValueError("broken")
    assert ring.stats().last_error == "ValueError: broken"
    assert ring.stats().delayed == 1
    with ring.take(wait=0) as batch:
        assert not batch


@pytest.mark.parametrize("answer", ["ack", "retry", "fail"])
@pytest.mark.parametrize("jobs", ["a", b"a", 5, {"a"}, (job for job in "a")])
def test_some_of_a_batch_are_given_as_a_list(answer: str, jobs: Any) -> None:
    ring = Ring()
    ring.put("a")
    batch = ring.take()
    with pytest.raises(InvalidInput):
        getattr(batch, answer)(jobs)
    assert not batch.is_settled


def test_a_reason_is_a_text_and_a_delay_has_a_unit() -> None:
    ring = Ring()
    ring.put("a")
    batch = ring.take()
    with pytest.raises(InvalidInput):
        batch.retry(reason=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        batch.fail(reason=None)  # type: ignore[arg-type]
    for delay in (5, "soon", -1, [], timedelta(-1), False):
        with pytest.raises(InvalidInput):
            batch.retry(delay=delay)  # type: ignore[arg-type]
    assert not batch.is_settled
    assert ring.stats().retried == 0


# --- attempts ------------------------------------------------------------------------------------------------


def test_a_retry_comes_when_its_delay_is_over_and_before_fresh_jobs(time: Time) -> None:
    ring = ring_at(time)
    ring.put_many(["late", "soon"])
    batch = ring.take(2)
    batch.retry(["late"], "10s")
    batch.retry(["soon"], timedelta(seconds=5))
    ring.put("fresh")
    time.advance("4.999999s")
    assert ring.take(10).jobs == ["fresh"]
    time.advance("1us")
    ring.put("fresh too")
    again = ring.take(10)
    assert (again.jobs, again.attempts) == (["soon", "fresh too"], [2, 1])
    time.advance("5s")
    assert ring.take().jobs == ["late"]


def test_retries_that_are_due_come_in_the_order_of_their_time(time: Time) -> None:
    ring = ring_at(time)
    ring.put_many(range(5))
    batch = ring.take(5)
    for job, delay in ((0, "3s"), (1, "1s"), (2, "2s"), (3, "1s"), (4, "4s")):
        batch.retry([job], delay)
    time.advance("3s")
    assert ring.take(2).jobs == [1, 3]
    assert ring.take(2).jobs == [2, 0]
    assert not ring.take(2, wait=0)


def test_the_backoff_grows_to_its_most(time: Time) -> None:
    ring = ring_at(time, max_attempts=10, backoff={"initial": "1s", "factor": 3, "max": "5s"})
    ring.put("a")
    for attempt, delay in enumerate(("1s", "3s", "5s", "5s"), 1):
        batch = ring.take()
        assert batch.attempts == [attempt]
        batch.retry()
        time.advance(timedelta(microseconds=-1) + timedelta(seconds=int(delay[0])))
        assert not ring.take(wait=0)
        time.advance("1us")


def test_a_job_that_was_tried_often_enough_has_failed(time: Time) -> None:
    ring = ring_at(time, max_attempts=3)
    ring.put_many(["bad", "good"])
    for attempt in (1, 2):
        batch = ring.take(2)
        assert batch.attempts == [attempt] * 2
        batch.retry(delay=0, reason=f"no {attempt}")
    batch = ring.take(2)
    batch.ack(["good"])
    batch.retry(delay=0, reason="no 3")
    (failed,) = ring.failed()
    assert (failed.job, failed.attempts, failed.reason) == ("bad", 3, "no 3")
    assert failed.failed_at == time.now_us()
    assert ring.join(wait=0)
    stats = ring.stats()
    assert (stats.retried, stats.failed, stats.last_error) == (4, 1, "no 3")


def test_a_failed_job_says_how_often_it_was_tried_if_nobody_says_why() -> None:
    ring = Ring(max_attempts=1)
    ring.put("a")
    ring.take().retry()
    assert ring.failed()[0].reason == "tried 1 times"


def test_the_oldest_failed_jobs_are_dropped_and_counted() -> None:
    ring = Ring(failed_max=2)
    ring.put_many(range(5))
    ring.take(5).fail()
    assert [failed.job for failed in ring.failed()] == [3, 4]
    assert ring.stats().failed_dropped == 3
    none_kept = Ring(failed_max=0)
    none_kept.put(1)
    none_kept.take().fail()
    assert none_kept.failed() == []
    assert none_kept.stats().failed_dropped == 1


def test_failed_jobs_are_redriven_as_if_they_were_new(time: Time) -> None:
    ring = ring_at(time, max_attempts=2)
    ring.put_many(["a", "b", "c"])
    ring.take(3).fail(reason="no")
    assert ring.redrive(0) == 0
    assert ring.redrive(2) == 2
    batch = ring.take(5)
    assert (batch.jobs, batch.attempts) == (["a", "b"], [1, 1])
    batch.retry(delay=0)
    assert ring.take(5).attempts == [2, 2]
    assert ring.redrive() == 1
    assert ring.redrive() == 0


@pytest.mark.parametrize("count", [-1, 1.0, "1", True])
def test_a_redrive_of_no_number_is_refused(count: Any) -> None:
    ring = Ring()
    ring.put(1)
    ring.take().fail()
    with pytest.raises(InvalidInput):
        ring.redrive(count)
    assert len(ring.failed()) == 1


def test_failed_jobs_can_be_forgotten() -> None:
    ring = Ring()
    ring.put_many(range(3))
    ring.take(3).fail()
    assert ring.clear_failed() == 3
    assert ring.clear_failed() == 0
    assert ring.failed() == []
    assert ring.stats().failed_dropped == 0


# --- bad input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [None, 5, "abc", b"abc", bytearray(b"a"), {"a": 1}])
def test_put_many_wants_a_list(jobs: Any) -> None:
    ring = Ring()
    with pytest.raises(InvalidInput, match="put_many takes a list"):
        ring.put_many(jobs)
    assert len(ring) == 0


def test_an_iterable_that_fails_puts_nothing() -> None:
    def jobs() -> Any:
        yield 1
        raise OSError("no more")

    ring = Ring()
    with pytest.raises(OSError, match="no more"):
        ring.put_many(jobs())
    assert len(ring) == 0


@pytest.mark.parametrize("count", [0, -1, True, 1.0, "1", None, 1 << 40])
def test_take_wants_a_whole_number(count: Any) -> None:
    ring = Ring()
    ring.put("a")
    with pytest.raises(InvalidSetting, match="max is a whole number"):
        ring.take(count)
    assert len(ring) == 1
    assert ring.join(wait=0) is False


@pytest.mark.parametrize("wait", [5, 0.0, False, "soon", "-1s", [], {}])
def test_a_wait_has_a_unit_also_where_nobody_has_to_wait(wait: Any) -> None:
    ring = Ring()
    ring.put("a")
    for call in (
        lambda: ring.put("b", wait),
        lambda: ring.put_many(["b"], wait),
        lambda: ring.take(1, wait),
        lambda: ring.take(2, wait),
        lambda: ring.join(wait),
    ):
        with pytest.raises(InvalidInput):
            call()
    assert drained(ring) == ["a"]


@pytest.mark.parametrize(
    "settings",
    [
        {"capacity": 0},
        {"capacity": 1.5},
        {"capacity": True},
        {"capacity": 1 << 40},
        {"when_full": "wait"},
        {"when_full": None},
        {"max_attempts": 0},
        {"max_attempts": "5"},
        {"failed_max": -1},
        {"backoff": {"initial": 5}},
        {"backoff": {"initial": "1s", "jitter": 1}},
        {"backoff": {1: 2, "jitter": 1}},
        {"backoff": {"factor": 0.5}},
        {"backoff": {"factor": float("nan")}},
        {"backoff": {"factor": True}},
        {"backoff": {"max": "soon"}},
        {"backoff": "1s"},
        {"backoff": 5},
    ],
)
def test_settings_out_of_their_range_are_refused(settings: Any) -> None:
    with pytest.raises(InvalidInput):
        Ring(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backoff": {"initial": 5}}, "backoff's initial: a duration needs its unit"),
        ({"backoff": {"max": "soon"}}, "backoff's max: a duration is written as"),
        ({"flush_interval": "50ms"}, "flush_interval is that of the journal"),
    ],
)
def test_the_setting_that_is_wrong_is_named(settings: Any, message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        Ring(**settings)


def test_who_gives_a_reason_or_a_delay_in_the_place_of_jobs_is_told_how() -> None:
    ring = Ring()
    ring.put("a")
    batch = ring.take()
    with pytest.raises(InvalidInput, match="a reason is given as reason="):
        batch.fail("why")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="a delay is given as delay="):
        batch.retry("5s")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"not as str$"):
        batch.ack("a")
    assert not batch.is_settled


# --- the end -------------------------------------------------------------------------------------------------


def test_a_closed_ring_takes_and_gives_nothing_and_still_hears_answers() -> None:
    ring = Ring()
    ring.put_many(range(3))
    one, batch = ring.take(), ring.take(2)
    with ring:
        pass
    for call in (
        lambda: ring.put(1),
        lambda: ring.put_many([1]),
        lambda: ring.take(),
        lambda: ring.take(2, wait=0),
        lambda: ring.redrive(),
        lambda: ring.run(print),
        lambda: ring.start(print),
        lambda: ring.join(),
    ):
        with pytest.raises(RingClosed):
            call()
    one.ack()
    batch.fail([1])
    batch.ack()
    assert ring.join(wait=0)
    ring.flush()
    ring.close()
    assert ring.stats().acked == 2


def test_close_wakes_all_who_wait() -> None:
    ring = Ring(1)
    ring.put(1)
    held = ring.take()

    def waits(call: Any) -> Any:
        def work() -> None:
            with pytest.raises(RingClosed):
                call()

        return work

    takers = Started(*[waits(ring.take)] * 3)
    until_waiting(ring._takers, 3)
    joiners = Started(*[waits(ring.join)] * 2)
    until_waiting(ring._joiners, 2)
    ring.close()
    takers.join()
    joiners.join()
    held.ack()


def test_close_wakes_who_wait_for_room_and_says_how_many_went_in() -> None:
    ring = Ring(2)

    def work() -> None:
        with pytest.raises(RingClosed) as caught:
            ring.put_many(range(5))
        assert caught.value.details["put"] == 2

    putter = Started(work)
    until_waiting(ring._putters)
    ring.close()
    putter.join()


def test_join_waits_for_retries_and_for_jobs_in_hand(time: Time) -> None:
    ring = ring_at(time)
    assert ring.join()
    ring.put("a")
    assert ring.join(wait=0) is False
    batch = ring.take()
    assert ring.join(wait=0) is False
    batch.retry(delay="1s")
    assert ring.join(wait=0) is False
    time.advance("1s")
    batch = ring.take()
    joiner = Started(ring.join)
    until_waiting(ring._joiners)
    batch.ack()
    joiner.join()


# --- what can be seen ----------------------------------------------------------------------------------------


def test_stats_say_where_the_jobs_are(time: Time) -> None:
    ring = ring_at(time, 100)
    ring.put_many(range(10))
    batch = ring.take(6)
    batch.ack([0])
    batch.retry([1], "1s")
    batch.fail([2], "no")
    time.advance("2s")
    stats = ring.stats()
    assert (stats.waiting, stats.in_flight, stats.delayed, stats.failed, stats.capacity) == (4, 3, 1, 1, 100)
    assert (stats.put, stats.taken, stats.acked, stats.retried) == (10, 6, 1, 1)
    assert (stats.put_per_s, stats.acked_per_s) == (5.0, 0.5)
    assert stats.journal is None


def test_rates_are_those_of_the_last_while(time: Time) -> None:
    ring = ring_at(time)
    for _ in range(30):
        ring.put_many(range(10))
        ring.take(10).ack()
        time.advance("1s")
        ring.stats()
    assert ring.stats().put_per_s == pytest.approx(10, rel=0.2)
    time.advance("1m")
    ring.stats()
    time.advance("5s")
    assert ring.stats().put_per_s == 0


def test_in_the_first_second_a_rate_is_what_has_happened_so_far(time: Time) -> None:
    ring = ring_at(time)
    ring.put_many(range(10))
    assert ring.stats().put_per_s == 10
    time.advance("10ms")
    ring.take(4).ack()
    assert (ring.stats().put_per_s, ring.stats().acked_per_s) == (10, 4)


def test_a_ring_and_a_batch_say_what_they_are() -> None:
    ring = Ring(1_000)
    assert repr(ring) == "<Ring of 1,000: 0 waiting, 0 in flight>"
    ring.put_many(range(7))
    batch = ring.take(4)
    batch.ack([0])
    assert repr(batch) == "<JobBatch of 4, 1 answered for>"
    assert repr(ring) == "<Ring of 1,000: 3 waiting, 3 in flight>"
    batch.retry(delay="1h")
    assert repr(batch) == "<JobBatch of 4, 4 answered for>"
    ring.close()
    assert repr(ring) == "<Ring of 1,000: 6 waiting, 0 in flight, closed>"
    assert repr(Ring().take(wait=0)) == "<JobBatch of 0, 0 answered for>"


def test_why_slow_names_the_first_thing_to_look_at(time: Time) -> None:
    ring = ring_at(time, 4)
    assert ring.stats().why_slow == "it is not: nothing is waiting"
    ring.put_many(range(3))
    assert ring.stats().why_slow == "3 jobs wait: nobody takes any"
    ring.put(3)
    assert ring.stats().why_slow == "it is full: nobody takes any"
    batch = ring.take(4)
    assert ring.stats().why_slow == "4 jobs are being worked on, and no others are there"
    batch.retry(delay="1m")
    time.advance("30s")
    assert ring.stats().why_slow == "it is full: nobody takes any"
    time.advance("30s")
    ring.take(2).ack()
    batch = ring.take(1)
    assert ring.stats().why_slow == "1 job waits for the next attempt, and no others are there"
