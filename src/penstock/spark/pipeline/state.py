"""What is known of pipelines that ran here: a small file for each, and a lock for as long as it runs.

    <directory>/<name>/state.json    what `penstock pipeline status` shows; replaced as a whole
    <directory>/<name>/lock          held by the process that runs it: the system lets go of it however that ends
    <directory>/<name>/log.txt       what Spark printed in the last run; log.1.txt in the one before, up to log.9.txt
    <directory>/<name>/checkpoint    unless the pipeline names another

A state that says "running" while nobody holds the lock is of a process that was killed.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from penstock.clock import SystemClock
from penstock.decoding import from_json
from penstock.errors import InvalidInput, NotFound, PipelineRunning, StorageError
from penstock.spark.pipeline.progress import Progress

# Of a pipeline: from a file, or one of those that are built in.
Kind = Literal["file", "archive", "mirror"]
Status = Literal["starting", "running", "finished", "stopped", "failed", "killed"]
ALIVE = ("starting", "running")
# Whoever looks whether a pipeline runs holds its lock for less than a millisecond; one that runs, for longer than this.
_LOOKERS_S = 0.5
_AGAIN_S = 0.01


class State(msgspec.Struct):
    """Times are microseconds since the epoch. `progress` is the last that was told, with the totals of the run."""

    name: str
    file: str
    status: Status
    pid: int
    started_us: int
    master: str
    checkpoint: str
    log: str
    ended_us: int | None = None
    error: str | None = None
    progress: Progress | None = None
    # None: written before there was such a thing.
    kind: Kind | None = None


def default_directory() -> Path:
    """$PENSTOCK_PIPELINES, or where the XDG specification has state."""
    named = os.environ.get("PENSTOCK_PIPELINES")
    if named:
        return Path(named)
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "penstock" / "pipelines"


class Store:
    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()

    def home(self, name: str) -> Path:
        return self.directory / name

    def all(self) -> list[State]:
        if not self.directory.is_dir():
            return []
        names = sorted(path.parent.name for path in self.directory.glob("*/state.json"))
        return [self.get(name) for name in names]

    def get(self, name: str) -> State:
        file = self.home(name) / "state.json"
        try:
            state = from_json(file.read_bytes(), State)
        except FileNotFoundError:
            raise NotFound(f"no pipeline {name!r} has run here (state in {self.directory})", pipeline=name) from None
        except OSError as error:
            raise StorageError(f"{file} can't be read: {error.strerror}") from error
        except msgspec.MsgspecError as error:
            raise StorageError(f"{file} is not the state of a pipeline: {error}") from error
        if state.status in ALIVE and not self._is_held(name):
            state.status = "killed"
        return state

    def put(self, state: State) -> None:
        """Whoever reads sees the old one or the new one."""
        file = self.home(state.name) / "state.json"
        new = file.with_suffix(f".{os.getpid()}")
        new.write_bytes(msgspec.json.format(msgspec.json.encode(state)))
        new.replace(file)

    @contextmanager
    def held(self, name: str) -> Iterator[Path]:
        """The pipeline's directory, for the one process that runs it."""
        home = self.home(name)
        try:
            home.mkdir(0o700, parents=True, exist_ok=True)
            lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StorageError(f"the state of pipelines can't be kept in {home}: {error.strerror}") from error
        try:
            if not _is_taken(lock):
                raise PipelineRunning(
                    f"the pipeline {name} is running already: `penstock pipeline status {name}` shows it", pipeline=name
                )
            yield home
        finally:
            os.close(lock)

    def check_kind(self, name: str, kind: Kind) -> None:
        """What another kind of pipeline keeps under this name is not ours to go on with, or to replace."""
        try:
            state = self.get(name)
        except (NotFound, StorageError):
            # What can't be read is replaced: a disk that was full, or a power loss, may have left it.
            return
        known = state.kind or ("file" if state.file else None)
        if known not in (None, kind):
            of = f"the one from {state.file}" if known == "file" else f"a `penstock pipeline {known}`"
            raise InvalidInput(
                f"a pipeline called {name} is there already, and is another: {of}, whose state is in "
                f"{self.home(name)}. Use another name, or another --state-dir",
                pipeline=name,
                kind=known,
            )

    def _is_held(self, name: str) -> bool:
        try:
            lock = os.open(self.home(name) / "lock", os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False


def _is_taken(lock: int) -> bool:
    """The lock, for us alone; those who only look are waited for."""
    give_up = time.monotonic() + _LOOKERS_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > give_up:
                return False
            time.sleep(_AGAIN_S)


def now_us() -> int:
    return SystemClock().now_us()
