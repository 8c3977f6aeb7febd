"""Nobody closes the ring: it is let go of, the program ends, or it is forked."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from typing import Any

import pytest

from penstock.errors import DirectoryLocked, RingClosed
from penstock.ring import Ring
from ring_support import PATIENCE_S, drained


def test_a_ring_nobody_refers_to_is_written_and_its_directory_free(tmp_path: Any) -> None:
    ring = Ring(journal=tmp_path, flush_interval="60s")
    ring.put_many(["a", "b"])
    ring.take().ack()
    gone = weakref.ref(ring)
    del ring
    gc.collect()
    assert gone() is None
    with Ring(journal=tmp_path) as again:
        assert drained(again) == ["b"]


def test_a_ring_whose_batch_is_held_by_itself_only_is_let_go_of_too(tmp_path: Any) -> None:
    ring = Ring(journal=tmp_path, flush_interval="60s")
    ring.put("a")
    # The ring knows of it, and it of the ring.
    ring.take()
    del ring
    gc.collect()
    with Ring(journal=tmp_path) as again:
        assert again.take().attempts == [2]


def test_a_batch_in_hand_keeps_the_ring(tmp_path: Any) -> None:
    ring = Ring(journal=tmp_path, flush_interval="60s")
    ring.put("a")
    batch = ring.take()
    del ring
    gc.collect()
    with pytest.raises(DirectoryLocked):
        Ring(journal=tmp_path)
    batch.ack()
    del batch
    gc.collect()
    with Ring(journal=tmp_path) as again:
        assert len(again) == 0


def run_python(program: str, *given: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, given)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_a_program_that_ends_without_closing_its_ring_loses_nothing(tmp_path: Any) -> None:
    ended = run_python(
        """
import sys
from penstock import Ring
ring = Ring(journal=sys.argv[1], flush_interval="60s")
ring.put_many(["a", "b", "c"])
ring.take().ack()
""",
        tmp_path,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    with Ring(journal=tmp_path) as ring:
        assert drained(ring) == ["b", "c"]


def test_a_program_that_ends_by_an_error_loses_nothing_also_with_workers_at_work(tmp_path: Any) -> None:
    ended = run_python(
        """
import sys, threading
from penstock import Ring
ring = Ring(journal=sys.argv[1], flush_interval="60s")
began = threading.Event()
def handle(batch):
    began.set()
    threading.Event().wait()
ring.start(handle, batch=1)
ring.put_many(["held", "waits"])
began.wait()
raise SystemExit(3)
""",
        tmp_path,
    )
    assert (ended.returncode, ended.stderr) == (3, "")
    with Ring(journal=tmp_path) as ring:
        batch = ring.take(5)
        assert (batch.jobs, batch.attempts) == (["held", "waits"], [2, 1])


def test_a_program_whose_disk_fails_at_the_end_says_so(tmp_path: Any) -> None:
    ended = run_python(
        """
import sys
from penstock import Ring
from penstock.errors import DiskFull
from penstock.ring.store import Store
ring = Ring(journal=sys.argv[1], flush_interval="60s")
ring.put("a")
def full(*_):
    raise DiskFull("no space left")
Store.append = full
""",
        tmp_path,
    )
    assert "DiskFull: no space left" in ended.stderr


def test_a_forked_child_leaves_the_journal_to_its_parent(tmp_path: Any) -> None:
    ended = run_python(
        """
import os, sys, warnings
from penstock import Ring
from penstock.errors import RingClosed
warnings.simplefilter("ignore")
ring = Ring(journal=sys.argv[1], flush_interval="60s")
ring.put_many(["a", "b"])
batch = ring.take()
ring._lock.acquire()       # as another thread might have, whom the child does not have
child = os.fork()
if child == 0:
    for call in (lambda: ring.put("c"), lambda: ring.take(wait=0), batch.ack, ring.join):
        try:
            call()
        except RingClosed as error:
            assert "forked" in str(error)
        else:
            os._exit(1)
    ring.flush()
    ring.close()
    sys.exit(0)            # with all that runs at the end of a program
_, status = os.waitpid(child, 0)
ring._lock.release()
assert status == 0, status
batch.ack()
ring.put("d")
ring.close()
""",
        tmp_path,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    with Ring(journal=tmp_path) as ring:
        assert drained(ring) == ["b", "d"]


def test_a_forked_child_goes_on_with_a_copy_of_a_ring_without_a_journal() -> None:
    ended = run_python(
        """
import os, sys, threading, warnings
from penstock import Ring
warnings.simplefilter("ignore")
ring = Ring(2)
other = threading.Thread(target=ring.take)      # whom the child does not have
other.start()
while not ring._takers.waiters:
    pass
ring._lock.acquire()                            # as another thread might have, too
ring._starting.acquire()
child = os.fork()
if child == 0:
    assert ring.stats().waiting == 0
    taker = threading.Thread(target=lambda: ring.take().ack())
    taker.start()
    while not ring._takers.waiters:
        pass
    ring.put_many(["a"])
    taker.join()
    ring.run(lambda batch: None, until_idle="1ms")
    assert ring.join(wait=0)
    ring.close()
    sys.exit(0)
_, status = os.waitpid(child, 0)
ring._lock.release()
ring._starting.release()
assert status == 0, status
ring.put("b")
other.join()
assert ring.stats().in_flight == 1
"""
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_forked_child_does_not_keep_the_directory(tmp_path: Any) -> None:
    """Its parent is gone, and the next one can start though the child goes on."""
    reading, writing = os.pipe()
    killed = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            """
import os, signal, sys
from penstock import Ring
ring = Ring(journal=sys.argv[1])
ring.put("a")
ring.flush()
if os.fork() == 0:
    os.read(int(sys.argv[2]), 1)
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
""",
            str(tmp_path),
            str(reading),
        ],
        pass_fds=[reading],
        timeout=PATIENCE_S,
        check=False,
    )
    os.close(reading)
    assert killed.returncode == -9
    with Ring(journal=tmp_path) as ring:
        assert drained(ring) == ["a"]
    os.close(writing)


def test_a_closed_ring_stays_closed(tmp_path: Any) -> None:
    ring = Ring(journal=tmp_path)
    ring.close()
    for call in (lambda: ring.put(1), ring.take, ring.clear_failed, ring.redrive):
        with pytest.raises(RingClosed):
            call()
    Ring(journal=tmp_path).close()
