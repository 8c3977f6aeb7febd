"""Servers with all their doors, which must end well and log no error."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.support import PENSTOCK
from etcd_support import etcd_process


@pytest.fixture(scope="session")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The addresses of a server on its own, by the names of the doors."""
    with served(tmp_path_factory.mktemp("server"), *(f"--{door}=127.0.0.1:0" for door in DOORS)) as addresses:
        yield addresses


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster of two nodes."""
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed (Debian: etcd-server)")
    with ExitStack() as stack:
        etcd = stack.enter_context(etcd_process(tmp_path_factory.mktemp("etcd"))).address
        nodes = [
            stack.enter_context(
                served(
                    tmp_path_factory.mktemp(name),
                    *("--native=127.0.0.1:0", "--http=none", "--grpc=none"),
                    *(f"--cluster={etcd}", f"--node-id={name}"),
                )
            )
            for name in ("a", "b")
        ]
        yield ",".join(node["native"] for node in nodes)


DOORS = ("native", "http", "grpc")


@contextmanager
def served(directory: Path, *flags: str) -> Iterator[dict[str, str]]:
    command = [PENSTOCK, "serve", "--data", directory / "data", *flags, "--log-format", "json"]
    log = directory / "log"
    with log.open("w") as stderr, subprocess.Popen([str(part) for part in command], stderr=stderr) as process:
        try:
            while not (ready := [line for line in _lines(log) if line["message"] == "ready"]):
                assert process.poll() is None, log.read_text()
            yield {door: ready[0][door] for door in DOORS if door in ready[0]}
        finally:
            process.terminate()
    assert process.returncode == 0, log.read_text()
    assert not [line for line in _lines(log) if line["level"] == "error"]


def _lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
