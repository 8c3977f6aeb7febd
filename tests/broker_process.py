"""A real broker process, which can be killed and started again at the same port."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.cluster.etcd.process import free_port

PENSTOCK = Path(sys.executable).with_name("penstock")


class BrokerProcess:
    def __init__(self, data: Path, *arguments: str, port: int | None = None, descriptors: int | None = None) -> None:
        """`descriptors`: it may not have more, whatever it does."""
        self._data = data
        self._arguments = arguments
        self._limiting = [] if descriptors is None else ["sh", "-c", f'ulimit -n {descriptors}; exec "$0" "$@"']
        # Until it was ready.
        self.said = ""
        if port is None:
            self._start_somewhere()
        else:
            self.port = port
            self.start()

    @property
    def address(self) -> str:
        return f"penstock://127.0.0.1:{self.port}"

    def _start_somewhere(self) -> None:
        """At a port that nobody connects from while it is not there."""
        while True:
            self.port = free_port()
            try:
                return self.start()
            except AssertionError:
                if "is in use already" not in self.said:
                    raise

    def start(self) -> None:
        """Returns when it is ready."""
        self.process = subprocess.Popen(
            [
                *self._limiting,
                *(PENSTOCK, "serve", "--data", self._data, "--native", f"127.0.0.1:{self.port}"),
                *self._arguments,
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self.said = ""
        for line in self.process.stderr:
            self.said += line
            found = re.search(r" ready .*native=127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found[1])
                return
        self._gone()
        raise AssertionError(f"the broker did not start:\n{self.said}")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self._gone()

    def stop(self) -> tuple[int, str]:
        """Its exit code, and the rest of its log."""
        self.process.send_signal(signal.SIGTERM)
        return self._gone()

    def _gone(self) -> tuple[int, str]:
        assert self.process.stderr is not None
        rest = self.process.stderr.read()
        self.process.stderr.close()
        return self.process.wait(), rest


@contextmanager
def broker_process(data: Path, *arguments: str, descriptors: int | None = None) -> Iterator[BrokerProcess]:
    process = BrokerProcess(data, "--http", "none", "--grpc", "none", *arguments, descriptors=descriptors)
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.kill()
