"""Handlers in real processes. What one wants to tell comes back as the reason of a failed job."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import Any

import pytest

import ring_handlers as handlers
from penstock.errors import InvalidInput, WorkerFailed
from penstock.ring import JobBatch, Ring, exchange
from ring_processes import NOW, no_process_is_left, run

__all__ = ["no_process_is_left"]


# --- what a handler gets, and what becomes of its answers ------------------------------------------------------------


def test_jobs_are_handled_in_as_many_processes_as_there_are_workers() -> None:
    ring = Ring()
    ring.put_many(list(range(40)))
    told = [reason.split() for reason in run(ring, handlers.tell, workers=2, batch=1)]
    assert sorted(int(job) for job, _, _ in told) == list(range(40))
    assert os.getpid() not in {int(pid) for _, _, pid in told}
    assert 1 <= len({pid for _, _, pid in told}) <= 2
    assert ring.stats().handled_batches == 40


def test_what_is_not_answered_for_is_acknowledged() -> None:
    ring = Ring()
    ring.put_many(list(range(1000)))
    assert run(ring, handlers.nothing, batch=300) == []
    assert ring.join(0)
    assert (ring.stats().acked, ring.stats().handled_batches) == (1000, 4)


def test_each_job_is_answered_for_as_the_handler_says() -> None:
    is_handled = Event()

    class WatchedRing(Ring):
        def _note_handled(self, spent_s: float) -> None:
            super()._note_handled(spent_s)
            is_handled.set()

    with WatchedRing() as ring:
        ring.put_many(
            [{"id": at, "do": do} for at, do in enumerate(["fail", "ack", "retry", "nothing", "retry", "ack"])]
        )
        running = ring.start(handlers.answer, kind="processes")
        is_handled.wait()
        assert running.stop()
        stats = ring.stats()
        assert (stats.acked, stats.retried, stats.delayed, stats.failed) == (3, 2, 2, 1)
        assert [(failed.job["id"], failed.reason) for failed in ring.failed()] == [(0, "no use")]


def test_a_handler_that_raises_has_its_jobs_tried_again_but_those_it_answered_for() -> None:
    ring = Ring(max_attempts=2, backoff=NOW)
    ring.put_many(["a", "b", "c"])
    assert run(ring, handlers.answer_and_raise) == ["ValueError: bad ? job"]
    assert [failed.job for failed in ring.failed()] == ["c"]
    assert (ring.stats().acked, ring.stats().retried) == (2, 2)


def test_an_error_after_the_last_answer_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    ring = Ring()
    ring.put_many(["a", "b"])
    assert run(ring, handlers.raise_when_all_is_answered) == []
    assert ring.stats().acked == 2
    assert "ValueError: too late to matter\nTraceback" in caplog.text


def test_a_handler_that_raises_is_in_the_log_with_the_traceback_of_its_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ring = Ring(max_attempts=1)
    ring.put_many(["a", "b"])
    run(ring, handlers.answer_and_raise)
    (record,) = (record for record in caplog.records if record.name.startswith("penstock"))
    assert record.getMessage().startswith("a handler failed with a batch of 2 jobs: ValueError: bad ? job\nTraceback ")
    assert "in answer_and_raise" in record.getMessage()


def test_a_coroutine_that_a_handler_returns_is_not_taken_for_done() -> None:
    ring = Ring(max_attempts=1)
    ring.put("a")
    (reason,) = run(ring, handlers.tell_later)
    assert reason.startswith("InvalidInput: the handler returned a value of type coroutine, ")
    assert ring.stats().acked == 0


def test_a_wrong_answer_is_an_error_of_the_handler() -> None:
    ring = Ring(max_attempts=1)
    ring.put("a")
    (reason,) = run(ring, handlers.answer_wrongly)
    assert reason.startswith("InvalidInput: ")


def test_a_handler_sees_how_often_a_job_was_tried() -> None:
    ring = Ring(backoff=NOW)
    ring.put_many(["tried", "fresh"])
    ring.take(1).retry()
    told = [reason.rsplit(" ", 1)[0] for reason in run(ring, handlers.tell)]
    assert told == ["'tried' 2", "'fresh' 1"]


def test_answers_are_in_the_journal(tmp_path: Path) -> None:
    with Ring(journal=tmp_path, max_attempts=1) as ring:
        ring.put_many(["a", "b", "c"])
        run(ring, handlers.answer_and_raise, batch=2)
    with Ring(journal=tmp_path) as ring:
        assert len(ring) == 0
        assert [failed.job for failed in ring.failed()] == ["b"]


def test_an_answer_that_comes_after_the_handler_has_returned_is_refused() -> None:
    ring = Ring()
    ring.put_many(["a", "b"])
    told = run(ring, handlers.answer_late, batch=1)
    assert told == ["NotLeased: the jobs of this batch were answered for already"]
    assert ring.stats().acked == 1


def test_a_coroutine_function_runs_in_one_loop_of_its_process() -> None:
    ring = Ring()
    ring.put_many(["a", "b", "c"])
    (told,) = set(run(ring, handlers.tell_loop, batch=1))
    assert int(told.split()[0]) != os.getpid()


def test_a_handler_may_be_an_object_that_can_be_pickled() -> None:
    ring = Ring()
    ring.put("a")
    assert run(ring, handlers.Handler("hello")) == ["hello"]


def test_a_worker_process_imports_neither_pyarrow_nor_numpy() -> None:
    ring = Ring()
    ring.put("a")
    modules = run(ring, handlers.tell_modules)[0].split()
    assert "msgspec" in modules
    assert not {"pyarrow", "numpy", "pyroaring", "grpc"} & set(modules)


# --- jobs on their way -----------------------------------------------------------------------------------------------


def test_jobs_are_of_the_type_that_the_ring_was_given_and_those_that_are_not_fail() -> None:
    ring = Ring(type=handlers.Mail)
    ring.put_many([handlers.Mail("ann"), {"from": "bob"}, {"to": "cid"}])
    failed = {str(failed.job): failed.reason for failed in (run(ring, handlers.tell), ring.failed())[1]}
    assert failed.pop("{'from': 'bob'}") == "ValidationError: Object missing required field `to`"
    told = [reason.rsplit(" ", 1)[0] for reason in failed.values()]
    assert told == ["Mail(to='ann') 1", "Mail(to='cid') 1"]


def test_a_job_that_can_not_be_written_fails_and_the_others_go_on() -> None:
    ring = Ring(max_attempts=2, backoff=NOW)
    jobs: list[Any] = [1, object(), 2, 1 << 70, "\udcff", 3]
    ring.put_many(jobs)
    run(ring, handlers.answer_and_raise)
    failed = {id(failed.job): failed.reason for failed in ring.failed()}
    assert failed.pop(id(jobs[5])) == "ValueError: bad ? job"
    assert set(failed) == {id(jobs[1]), id(jobs[3]), id(jobs[4])}
    assert all(reason.startswith("a job can't be sent to a worker process: ") for reason in failed.values())
    assert ring.stats().acked == 2


def test_a_batch_of_nothing_but_such_jobs_does_not_reach_the_handler() -> None:
    ring = Ring(backoff=NOW)
    ring.put_many([object(), object()])
    assert len(run(ring, handlers.answer_and_raise)) == 2
    assert ring.stats().retried == 0


def test_large_batches_go_through_shared_memory_and_larger_ones_through_the_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchange, "SHARED_BYTES_MAX", 4_000_000)
    written: list[int] = []
    write = exchange.Memory.write

    def write_and_note(memory: exchange.Memory, data: bytes) -> None:
        written.append(len(data))
        write(memory, data)

    monkeypatch.setattr(exchange.Memory, "write", write_and_note)
    ring = Ring()
    sizes = [100, 70_000, 3_000_000, 5_000_000, 100_000, 10]
    ring.put_many([bytes([at + 1]) * size for at, size in enumerate(sizes)])
    told = run(ring, handlers.tell_sum, batch=1)
    assert told == [f"1 {(at + 1) * size}" for at, size in enumerate(sizes)]
    assert [size // 1000 for size in written] == [70, 3000, 100]


@pytest.mark.parametrize("job_type", [bytes, memoryview])
def test_a_job_that_the_handler_keeps_is_not_overwritten_by_the_next_batch(job_type: Any) -> None:
    ring = Ring(type=job_type)
    ring.put_many([bytes([1]) * 50_000, bytes([2]) * 50_000])
    assert run(ring, handlers.keep_and_tell_the_first, batch=1) == ["50000", "50000"]


def test_without_shared_memory_all_goes_through_the_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange.Memory, "make", lambda: None)
    ring = Ring()
    ring.put_many([bytes([1]) * 100_000] * 3)
    assert run(ring, handlers.tell_sum) == ["3 300000"]


# --- what can't be started -------------------------------------------------------------------------------------------


def _local() -> Any:
    class Local:
        pass

    def closure(batch: JobBatch) -> None:
        batch.ack([Local])

    return closure, Local


@pytest.mark.parametrize(
    ("handler", "job_type", "message"),
    [
        (lambda batch: None, Any, "the handler can't be given to another process"),
        (_local()[0], Any, "the handler can't be given to another process"),
        (handlers.nothing, _local()[1], "the type of the jobs can't be given to another process"),
        (handlers.nothing, dict[object, str] | list[int] | set[int], "jobs can't be read as"),
    ],
    ids=["a lambda", "a closure", "a local type", "no type of msgpack"],
)
def test_what_another_process_can_not_find_by_name_is_refused_before_anything_is_started(
    handler: Any, job_type: Any, message: str
) -> None:
    ring = Ring(type=job_type)
    ring.put("a")
    with pytest.raises(InvalidInput, match=message):
        ring.start(handler, kind="processes")
    assert ring.take(1).attempts == [1]


def _jobs_are_unharmed(ring: Ring) -> bool:
    stats = ring.stats()
    return (stats.waiting, stats.taken, stats.failed) == (2, 0, 0)


def test_a_handler_that_the_process_can_not_import_ends_the_run_and_leaves_the_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("only_here")
    exec("def handler(batch): pass", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    ring = Ring()
    ring.put_many(["a", "b"])
    with pytest.raises(WorkerFailed, match="ModuleNotFoundError: No module named 'only_here'") as caught:
        ring.run(module.handler, 3, kind="processes")
    assert "Traceback" in caught.value.details["traceback"]
    assert _jobs_are_unharmed(ring)


def test_a_process_that_ends_while_it_starts_ends_the_run_and_leaves_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.joinpath("ends_when_imported.py").write_text(
        "import multiprocessing, os\n"
        "if multiprocessing.parent_process() is not None:\n"
        "    os._exit(3)\n"
        "def handler(batch): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import ends_when_imported

    ring = Ring()
    ring.put_many(["a", "b"])
    with pytest.raises(WorkerFailed, match="ended with exit code 3 before it was ready"):
        ring.run(ends_when_imported.handler, 2, kind="processes")
    assert _jobs_are_unharmed(ring)


def test_a_process_that_the_system_does_not_start_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: object) -> None:
        raise BlockingIOError("too many processes")

    monkeypatch.setattr("multiprocessing.context.SpawnProcess._Popen", staticmethod(refuse))
    ring = Ring()
    ring.put_many(["a", "b"])
    with pytest.raises(WorkerFailed, match="too many processes"):
        ring.run(handlers.nothing, kind="processes")
    assert _jobs_are_unharmed(ring)
