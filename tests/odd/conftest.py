"""One server with all its doors, which must end well and log no error."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.support import PENSTOCK


@pytest.fixture(scope="session")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Its addresses, by the names of the doors."""
    directory = tmp_path_factory.mktemp("server")
    flags = [f"--{door}=127.0.0.1:0" for door in ("native", "http", "grpc")]
    command = [PENSTOCK, "serve", "--data", directory / "data", *flags, "--log-format", "json"]
    log = directory / "log"
    with log.open("w") as stderr, subprocess.Popen([str(part) for part in command], stderr=stderr) as process:
        try:
            while not (ready := _lines(log)):
                assert process.poll() is None
            assert ready[0]["message"] == "ready"
            yield {door: ready[0][door] for door in ("native", "http", "grpc")}
        finally:
            process.terminate()
    assert process.returncode == 0, log.read_text()
    assert not [line for line in _lines(log) if line["level"] == "error"]


def _lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
