"""The broker of the demo: `penstock serve` as a process of its own, which can be killed and started again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import IO, Self

from penstock.cli.demo.telling import NotSo

_PENSTOCK = (sys.executable, "-P", "-c", "from penstock.cli import main; main()")
_STOP_S_MAX = 60.0
_LINES_KEPT = 20


class Server:
    """In a `with`. Its ports are chosen when it is first started, and kept from then on."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._native = self._http = "127.0.0.1:0"
        self._told: deque[str] = deque(maxlen=_LINES_KEPT)
        self._process: subprocess.Popen[str] | None = None
        self._listening: Thread | None = None

    @property
    def address(self) -> str:
        return f"penstock://{self._native}"

    @property
    def dashboard(self) -> str:
        return f"http://{self._http}/"

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None, "not started"
        return self._process

    def start(self) -> None:
        """Returns when it is ready."""
        doors = ["--native", self._native, "--http", self._http, "--grpc", "none"]
        self._process = subprocess.Popen(
            [*_PENSTOCK, "serve", "--data", str(self._data), *doors, "--log-format", "json"],
            stderr=subprocess.PIPE,
            text=True,
            # Settings meant for another broker are not for this one.
            env={name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")},
            # Ctrl-C is for the demo, which then stops it in good order.
            start_new_session=True,
        )
        log = self._process.stderr
        assert log is not None
        for line in log:
            self._told.append(line)
            told = _entry(line)
            if told.get("message") == "ready":
                self._native, self._http = told["native"], told["http"]
                # What it tells later must not fill the pipe.
                self._listening = Thread(target=self._listen, args=[log], daemon=True)
                self._listening.start()
                return
        log.close()
        self._process.wait()
        raise NotSo("the broker starts", *self._told)

    def _listen(self, log: IO[str]) -> None:
        with log:
            self._told.extend(log)

    def kill(self) -> None:
        """As kill -9 does: it has no chance to do anything about it."""
        self._running.kill()
        self._gone()

    def stop(self) -> int:
        """Its exit code."""
        self._running.terminate()
        return self._gone()

    def _gone(self) -> int:
        code = self._running.wait(_STOP_S_MAX)
        if self._listening is not None:
            self._listening.join()
            self._listening = None
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            try:
                self.stop()
            finally:
                self.kill()


def _entry(line: str) -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads(line)
    except ValueError:
        return {"message": line}
    return found
