"""A real server in a process of its own, with all doors, or some."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import NamedTuple

PENSTOCK = Path(sys.executable).with_name("penstock")
DOORS = ("native", "http", "grpc")


class Serving(NamedTuple):
    """Where it is, and what it has logged since, a line each."""

    process: subprocess.Popen[str]
    native: str
    http: str
    grpc: str
    log: list[str]


@contextmanager
def serving(
    data: Path, *arguments: str, doors: tuple[str, ...] = DOORS, descriptors: int | None = None
) -> Iterator[Serving]:
    """It must end well. `descriptors`: it may not have more, whatever it does."""
    where = [part for door in DOORS for part in (f"--{door}", "127.0.0.1:0" if door in doors else "none")]
    command = [str(PENSTOCK), "serve", "--data", str(data), *where, *arguments]
    if descriptors is not None:
        command = ["sh", "-c", f'ulimit -n {descriptors}; exec "$0" "$@"', *command]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    log: list[str] = []
    # What it tells later must not fill the pipe.
    reading = Thread(target=log.extend, args=(process.stderr,), daemon=True)
    try:
        ready = process.stderr.readline()
        places = dict(re.findall(r"(native|http|grpc)=(\S+)", ready))
        assert " ready " in ready, ready + process.stderr.read()
        reading.start()
        yield Serving(process, *(places[door] for door in DOORS), log)
    finally:
        process.terminate()
        code = process.wait(30)
        if reading.ident is not None:
            reading.join(30)
        process.stderr.close()
    assert code == 0, "".join(log)
