"""Threads that decode the first thing of a kind at the same time: in a process of its own, since what fails is that."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from threading import Barrier, Thread

sys.setswitchinterval(1e-6)

import msgspec

from penstock.broker import snapshot

data = msgspec.msgpack.encode(snapshot.Snapshot(0, b"", b"", b"", b"", {}, [], []))
together = Barrier(8)


def decode():
    together.wait()
    for _ in range(50):
        snapshot._snapshots.decode(data)


threads = [Thread(target=decode) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_partitions_that_are_opened_at_once_read_their_first_snapshots() -> None:
    for _ in range(5):
        assert subprocess.run([sys.executable, "-c", PROGRAM], check=False).returncode == 0
