"""Disks of their own for nodes, which can be filled, slowed down, or stopped from answering.

small disk    tmpfs of a fixed size
slow disk     ext4 on a loop device: the kernel limits its writes (blkio), or freezes it (fsfreeze)
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

SMALL_BYTES = 48 << 20
_SLOW_BYTES = 512 << 20
_WRITES_S = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_iops_device")
_PROBE = "sync-probe"
# An unhindered sync takes a few milliseconds, on a busy machine a few dozen. With two writes a second it takes longer.
_PROBE_WRITES_S, _PROBE_TOOK_S = 2, 0.4


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextmanager
def small_disk(directory: Path, size_bytes: int = SMALL_BYTES) -> Iterator[None]:
    directory.mkdir()
    _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(directory))
    try:
        yield
    finally:
        _run("umount", "-l", str(directory))


class SlowDisk:
    """Created by `slow_disk`."""

    def __init__(self, node: str, mounted: Path) -> None:
        self.node = node
        self._mounted = mounted
        number = mounted.stat().st_dev
        self._device = f"{os.major(number)}:{os.minor(number)}"
        self._is_frozen = False
        # One fault at a time slows it down.
        self.turn = asyncio.Lock()

    def limit(self, writes_s: int) -> None:
        """The kernel delays whatever exceeds that many writes a second; 0 removes the limit."""
        _WRITES_S.write_text(f"{self._device} {writes_s}\n")

    def freeze(self) -> bool:
        """Writes and syncs wait until `thaw`. Returns whether the kernel confirms that it is frozen."""
        _run("fsfreeze", "--freeze", str(self._mounted))
        self._is_frozen = True
        again = subprocess.run(["fsfreeze", "--freeze", str(self._mounted)], capture_output=True, text=True)
        return "busy" in again.stderr

    def thaw(self) -> None:
        if self._is_frozen:
            _run("fsfreeze", "--unfreeze", str(self._mounted))
            self._is_frozen = False

    def sync_s(self) -> float:
        """How long it takes to write and sync a small file."""
        probe = self._mounted / _PROBE
        with probe.open("wb") as file:
            began = time.monotonic()
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
            took_s = time.monotonic() - began
        probe.unlink(missing_ok=True)
        return took_s

    def heal(self) -> None:
        self.thaw()
        self.limit(0)


@contextmanager
def slow_disk(directory: Path) -> Iterator[SlowDisk]:
    """The data directory of a node becomes a link to a disk that is as fast as any other until it is slowed down."""
    image, mounted = (directory.with_name(f"{directory.name}.{what}") for what in ("image", "disk"))
    with image.open("wb") as file:
        file.truncate(_SLOW_BYTES)
    _run("mkfs.ext4", "-q", "-m", "0", str(image))
    mounted.mkdir()
    _run("mount", "-o", "loop", str(image), str(mounted))
    try:
        (mounted / "data").mkdir()
        directory.symlink_to(mounted / "data")
        disk = SlowDisk(directory.name, mounted)
        try:
            yield disk
        finally:
            disk.heal()
    finally:
        # Its files stay with the histories and logs, should the run be kept.
        directory.unlink(missing_ok=True)
        subprocess.run(["cp", "-a", str(mounted / "data"), str(directory)], capture_output=True)
        _run("umount", "-l", str(mounted))
        mounted.rmdir()
        image.unlink()


def why_no_small_disk() -> str | None:
    """What keeps this machine from having one, if anything does."""

    def probe(directory: Path) -> None:
        with small_disk(directory):
            pass

    return _why_not(probe)


def why_no_slow_disk() -> str | None:
    """What keeps this machine from having one, if anything does."""

    def probe(directory: Path) -> None:
        with slow_disk(directory) as disk:
            disk.limit(_PROBE_WRITES_S)
            # The first writes may pass: the kernel limits what goes on for longer.
            if max(disk.sync_s() for _ in range(3)) < _PROBE_TOOK_S:
                raise OSError("the kernel does not limit its writes")
            disk.limit(0)
            if not disk.freeze():
                raise OSError("the kernel does not freeze it")

    return _why_not(probe)


def _why_not(probe: Callable[[Path], None]) -> str | None:
    with tempfile.TemporaryDirectory() as parent:
        try:
            probe(Path(parent, "probe"))
        except FileNotFoundError as error:
            return f"there is no command {error.filename}" if "/" not in error.filename else f"no {error.filename}"
        except subprocess.CalledProcessError as error:
            return f"no disk can be mounted: {error.stderr.strip()}"
        except OSError as error:
            return f"no slow disk: {error}"
    return None
