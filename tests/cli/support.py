"""A server in a process of its own, and the command line in this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from penstock.cli import main

PENSTOCK = Path(sys.executable).with_name("penstock")


class Ran:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> dict[str, Any]:
        """Of a single answer."""
        value: dict[str, Any] = json.loads(self.out)
        return value

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Of a stream: an object a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def log(self) -> dict[str, Any]:
        """Of `log inspect`, if there is one log."""
        (log,) = self.json["logs"]
        return dict(log)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Run:
    """Runs the command line in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Ran:
        with pytest.raises(SystemExit) as exited:
            main([str(argument) for argument in arguments])
        captured = self._capsys.readouterr()
        assert isinstance(exited.value.code, int)
        return Ran(exited.value.code, captured.out, captured.err)

    def ok(self, *arguments: object) -> Ran:
        ran = self(*arguments)
        assert ran.code == 0, ran.err
        return ran


@contextmanager
def serving(data: Path) -> Iterator[str]:
    """The address of a real server on `data`; it must end well."""
    command = [
        PENSTOCK,
        "serve",
        "--data",
        data,
        "--native",
        "127.0.0.1:0",
        "--http",
        "none",
        "--grpc",
        "none",
        "--log-format",
        "json",
    ]
    process = subprocess.Popen([str(part) for part in command], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        ready = json.loads(process.stderr.readline())
        assert ready["message"] == "ready", ready
        # What it tells later must not fill the pipe.
        Thread(target=process.stderr.read, daemon=True).start()
        yield f"penstock://{ready['native']}"
    finally:
        process.terminate()
        code = process.wait(30)
        process.stderr.close()
        assert code == 0


def script(
    command: str, address: str, *, stdin: bytes | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """In a shell that knows `penstock`, and which server is meant."""
    environment = {**os.environ, "PENSTOCK_SERVER": address, "PATH": f"{PENSTOCK.parent}:{os.environ['PATH']}"}
    environment.pop("COLUMNS", None)
    return subprocess.run(
        ["bash", "-c", command], input=stdin, capture_output=True, env=environment, cwd=cwd, check=False, timeout=60
    )
