"""Worker processes that end: by themselves, by a signal, because they are stopped, and with their parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

import ring_handlers as handlers
from penstock.ring import Ring
from penstock.ring.workers import Work
from ring_processes import NOW, Pipes, no_process_is_left, pipes, run

__all__ = ["no_process_is_left", "pipes"]

TESTS = Path(__file__).parents[1]


# --- processes that end ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("sys.exit", "the worker process ended with exit code 3"),
        ("os._exit", "the worker process ended with exit code 4"),
        ("segfault", "the worker process was ended by SIGSEGV"),
        ("kill", "the worker process was ended by SIGKILL"),
    ],
)
def test_a_batch_whose_process_ended_is_tried_again_by_another(how: str, reason: str) -> None:
    ring = Ring(backoff=NOW)
    ring.put_many([how, "another"])
    (told, other) = run(ring, handlers.end)
    assert told.rsplit(" ", 1)[0] == f"{how!r} 2"
    assert other.rsplit(" ", 1)[0] == "'another' 2"
    assert ring.stats().retried == 2
    once = Ring(max_attempts=1)
    once.put(how)
    assert run(once, handlers.end) == [reason]


def test_the_end_of_a_process_is_seen_though_those_it_has_forked_live_on(pipes: Pipes) -> None:
    ring = Ring(backoff=NOW)
    ring.put(pipes.job)
    assert run(ring, handlers.fork_and_end) == []
    assert ring.stats().last_error == "the worker process ended with exit code 4"
    pipes.say()


@pytest.mark.parametrize("gives_all", [False, True])
def test_the_end_of_a_process_is_seen_though_what_it_has_started_lives_on(pipes: Pipes, gives_all: bool) -> None:
    ring = Ring(backoff=NOW)
    ring.put(pipes.job | {"gives_all": gives_all})
    assert run(ring, handlers.start_and_end) == []
    assert ring.stats().last_error == "the worker process ended with exit code 4"
    pipes.say()


def test_jobs_given_to_a_process_that_had_ended_before_are_not_counted_as_tried() -> None:
    with Ring() as ring:
        running = ring.start(handlers.tell, kind="processes")
        ring.put("first")
        ring.join()
        (process,) = multiprocessing.active_children()
        process.kill()
        process.join()
        ring.put("second")
        ring.join()
        first, second = (failed.reason.split() for failed in ring.failed())
        assert (second[0], second[1]) == ("'second'", "1")
        assert first[2] != second[2]
        assert running.stop()


# --- stopping --------------------------------------------------------------------------------------------------------


def test_stopped_workers_finish_what_they_hold_and_take_no_more(pipes: Pipes, monkeypatch: pytest.MonkeyPatch) -> None:
    is_told = Event()
    stop_soon = Work.stop_soon

    def tell_and_note(work: Work) -> None:
        stop_soon(work)
        is_told.set()

    monkeypatch.setattr(Work, "stop_soon", tell_and_note)
    ring = Ring()
    ring.put_many([pipes.job, pipes.job])
    running = ring.start(handlers.wait_for_word, batch=1, kind="processes")
    pipes.pid()
    stopped: list[bool] = []
    stopping = Thread(target=lambda: stopped.append(running.stop()))
    stopping.start()
    is_told.wait()
    pipes.say()
    stopping.join()
    assert stopped == [True]
    assert (ring.stats().acked, len(ring)) == (1, 1)
    running.join()


@pytest.mark.parametrize("ignores_sigterm", [False, True])
def test_workers_that_do_not_end_in_time_are_ended_and_their_batch_goes_back(
    pipes: Pipes, monkeypatch: pytest.MonkeyPatch, ignores_sigterm: bool
) -> None:
    monkeypatch.setattr("penstock.ring.processes.TERMINATING_S", 0.05)
    ring = Ring()
    ring.put(pipes.job | {"ignores_sigterm": ignores_sigterm})
    running = ring.start(handlers.wait_for_word, kind="processes")
    pipes.pid()
    assert running.stop(0) is False
    stats = ring.stats()
    assert (stats.acked, stats.delayed, stats.in_flight) == (0, 1, 0)
    ended_by = "SIGKILL" if ignores_sigterm else "SIGTERM"
    assert stats.last_error == f"the worker process was ended by {ended_by}"
    running.join()


def test_closing_the_ring_ends_the_workers_and_the_journal_has_what_they_held(pipes: Pipes, tmp_path: Path) -> None:
    with Ring(journal=tmp_path / "journal") as ring:
        ring.put(pipes.job)
        ring.start(handlers.wait_for_word, kind="processes")
        pipes.pid()
        ring.close(0)
        assert multiprocessing.active_children() == []
    with Ring(journal=tmp_path / "journal") as ring:
        assert ring.take(1, wait="1m").attempts == [2]


def test_workers_can_be_stopped_while_they_start() -> None:
    ring = Ring()
    ring.put("a")
    running = ring.start(handlers.nothing, 2, kind="processes")
    running.stop(0)
    running.join()


def test_a_process_that_would_not_end_for_a_thread_of_its_own_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.ring.spawned.ENDING_S", 0.05)
    ring = Ring()
    ring.put("a")
    assert run(ring, handlers.leave_a_thread) == []
    assert ring.stats().acked == 1


# --- whole programs --------------------------------------------------------------------------------------------------

Program = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    started: list[subprocess.Popen[str]] = []

    def start(text: str) -> subprocess.Popen[str]:
        script = tmp_path / "program.py"
        script.write_text("import sys\nimport ring_handlers as handlers\nfrom penstock import Ring\n" + text)
        started.append(
            subprocess.Popen(
                [sys.executable, "-W", "error", script],
                env=os.environ | {"PYTHONPATH": str(TESTS)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
        return started[0]

    yield start
    for process in started:
        with process:
            process.kill()


def test_processes_end_when_their_parent_is_killed(program: Program, pipes: Pipes) -> None:
    parent = program(
        'if __name__ == "__main__":\n'
        "    ring = Ring()\n"
        f"    ring.put({pipes.job!r})\n"
        "    ring.run(handlers.wait_for_word, kind='processes')\n"
    )
    with open(pipes.job["begun"]) as begun:
        assert int(begun.readline()) != parent.pid
        parent.kill()
        # As long as the process lives it has this open.
        assert begun.read() == ""
    assert parent.communicate() == ("", "")


def test_a_program_that_ends_without_closing_its_ring_leaves_no_process(program: Program, pipes: Pipes) -> None:
    parent = program(
        "def handler(batch):\n"
        "    handlers.wait_for_word(batch)\n"
        'if __name__ == "__main__":\n'
        "    ring = Ring()\n"
        f"    ring.put({pipes.job!r})\n"
        "    ring.start(handler, 2, kind='processes')\n"
        f"    with open({pipes.job['begun']!r}) as begun:\n"
        "        begun.readline()\n"
    )
    assert parent.communicate() == ("", "")
    assert parent.returncode == 0


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_ctrl_c_lets_workers_finish_what_they_hold(program: Program, pipes: Pipes, kind: str) -> None:
    parent = program(
        'if __name__ == "__main__":\n'
        "    ring = Ring()\n"
        f"    ring.put({pipes.job!r})\n"
        "    try:\n"
        f"        ring.run(handlers.wait_for_word, 2, kind={kind!r})\n"
        "    except KeyboardInterrupt:\n"
        "        print(ring.stats().acked)\n"
    )
    pipes.pid()
    os.killpg(parent.pid, signal.SIGINT)
    # A build that does not wait has ended by then.
    time.sleep(0.5)
    pipes.say()
    assert parent.communicate() == ("1\n", "")
    assert parent.returncode == 0


def test_a_script_without_a_guard_is_told_so(program: Program) -> None:
    parent = program("ring = Ring()\nring.put(1)\nring.run(handlers.nothing, kind='processes', until_idle='1ms')\n")
    _, error = parent.communicate()
    assert parent.returncode == 1
    assert 'must do so below `if __name__ == "__main__":`' in error
