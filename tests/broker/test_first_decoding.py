"""Threads that decode the first thing of a kind at the same time: in a process of its own, since what fails is that."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from threading import Barrier, Thread

sys.setswitchinterval(1e-6)

from types import SimpleNamespace

from penstock.broker import snapshot
from penstock.broker.delays import Delays
from penstock.broker.lanes import Lanes

frames = snapshot.take(0, [], Lanes(), Delays(1), [], 1)
log = SimpleNamespace(frames=lambda start: iter(frames))
together = Barrier(8)


def read():
    together.wait()
    for _ in range(50):
        assert snapshot.read(log, 0) is not None


threads = [Thread(target=read) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_partitions_that_are_opened_at_once_read_their_first_snapshots() -> None:
    for _ in range(5):
        assert subprocess.run([sys.executable, "-c", PROGRAM], check=False).returncode == 0
