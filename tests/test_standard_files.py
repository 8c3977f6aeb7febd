"""A process whose standard input, output or error is closed, as a daemon's may be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.support import PENSTOCK

OPENS = """
import os, sys
[os.close(int(fd)) for fd in sys.argv[2]]
import penstock
with penstock.open(sys.argv[1]) as q:
    q.create_topic("orders", 1)
    q.publish("orders", b"x")
assert all(os.path.samefile(f"/dev/fd/{fd}", os.devnull) for fd in sys.argv[2])
"""


@pytest.mark.parametrize("closed", ["0", "1", "2", "012"])
def test_a_broker_opens_though_standard_files_are_closed(tmp_path: Path, closed: str) -> None:
    ran = subprocess.run([sys.executable, "-c", OPENS, tmp_path, closed], capture_output=True, check=False, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        ("topic create orders 0<&- 1>&-", 0, ""),
        ("topic list 0<&- 1>&- 2>&-", 0, ""),
        ("topic show none 2>&-", 2, ""),
        ("topic show none 2>/dev/full", 2, ""),
        ("publish orders 0<&-", 2, "error: nothing to publish: "),
    ],
)
def test_commands_run_though_standard_files_are_closed(tmp_path: Path, command: str, code: int, told: str) -> None:
    environment = {**os.environ, "PATH": f"{PENSTOCK.parent}:{os.environ['PATH']}"}
    line = f"penstock {command} --data {tmp_path}"
    ran = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stderr[: len(told)], ran.stderr.count("\n")) == (code, told, bool(told))
