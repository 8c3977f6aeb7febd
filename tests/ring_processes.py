"""What the tests of worker processes share: how they run, and how they are known to be at work."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.ring import Ring

NOW = {"initial": "0s", "factor": 1, "max": "0s"}


def run(ring: Ring, handler: Any, workers: int = 1, batch: int = 100) -> list[str]:
    """Until there is nothing left to do; the reasons of what failed."""
    ring.run(handler, workers, batch, kind="processes", until_idle="1ms")
    return [failed.reason for failed in ring.failed()]


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


class Pipes:
    """With a handler that waits for word."""

    def __init__(self, path: Path) -> None:
        self.job = {"begun": str(path / "begun"), "word": str(path / "word")}
        for name in self.job.values():
            os.mkfifo(name)

    def pid(self) -> int:
        """When the handler has begun."""
        with open(self.job["begun"]) as begun:
            return int(begun.readline())

    def say(self) -> None:
        open(self.job["word"], "w").close()


@pytest.fixture
def pipes(tmp_path: Path) -> Pipes:
    return Pipes(tmp_path)
