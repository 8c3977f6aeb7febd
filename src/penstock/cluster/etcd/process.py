"""A local etcd of one member, for trying out (`penstock cluster dev`) and for tests.

It syncs to disk as every etcd does: what is tried out here is what is run elsewhere. It logs to a file beside its data,
and is a group of processes of its own, so that a Ctrl-C in a terminal does not end it before those who need it.
"""

from __future__ import annotations

import fcntl
import http.client
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from penstock.errors import DirectoryLocked, EtcdMissing, EtcdNotStarted

# Below the ports that Linux gives to connections on their way out, so that nobody takes one between two starts.
_PORTS = range(20_000, 32_000)
_STARTS_MAX = 5
_POLL_S = 0.02
_STOP_S = 15.0
_LOG_TAIL_BYTES = 2_000


def find_etcd() -> str:
    found = shutil.which("etcd")
    if found is None:
        raise EtcdMissing(
            "etcd is not installed, or not on the PATH. Debian and Ubuntu have it (sudo apt-get install etcd-server);"
            " releases for other systems are at https://github.com/etcd-io/etcd/releases. A single broker needs none."
        )
    return found


class EtcdProcess:
    """Not running until `start`; after `kill` or `stop` it can be started again on the same data, at the same ports."""

    def __init__(
        self,
        directory: Path,
        *,
        client_port: int | None = None,
        peer_port: int | None = None,
        arguments: Sequence[str] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls` is how to connect to it, if `arguments` (--cert-file …) make it speak TLS."""
        self._binary = find_etcd()
        self._directory = directory
        self._wanted = (client_port, peer_port)
        self._ports: tuple[int, int] | None = None
        self._arguments = tuple(arguments)
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        assert self._ports is not None, "it was never started"
        return self._ports[0]

    @property
    def pid(self) -> int:
        assert self._process is not None, "it is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> Path:
        return self._directory / "etcd.log"

    def start(self, within_s: float = 30.0) -> None:
        """Returns when it is healthy."""
        assert self._process is None, "it is running"
        self._directory.mkdir(0o700, parents=True, exist_ok=True)
        self._directory.chmod(0o700)
        self._check_unused()
        for left in reversed(range(_STARTS_MAX)):
            ports = self._ports or (self._wanted[0] or free_port(), self._wanted[1] or free_port())
            try:
                self._start(ports, time.monotonic() + within_s)
            except EtcdNotStarted as error:
                self.kill()
                chosen_here = self._ports is None and None in self._wanted
                if left and chosen_here and "address already in use" in error.details["log"]:
                    continue
                raise
            except BaseException:
                self.kill()
                raise
            self._ports = ports
            return

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """It keeps its connections, and says nothing any more. Returns when all its threads stand still."""
        assert self._process is not None, "it is not running"
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def resume(self) -> None:
        assert self._process is not None, "it is not running"
        self._process.send_signal(signal.SIGCONT)

    @property
    def _scheme(self) -> str:
        return "https" if self._tls else "http"

    def _check_unused(self) -> None:
        """It would wait for another one to end, without a word."""
        try:
            with (self._directory / "data" / "member" / "snap" / "db").open("rb") as database:
                fcntl.flock(database, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DirectoryLocked(
                f"{self._directory} is in use by another etcd that is running", directory=str(self._directory)
            ) from error
        except OSError:
            # It is not there yet, or etcd itself says what is wrong with it.
            return

    def _start(self, ports: tuple[int, int], until: float) -> None:
        client, peer = f"{self._scheme}://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}"
        for port in ports:
            # Somebody else's etcd there would be taken for this one's being healthy.
            if not _is_free(port):
                raise EtcdNotStarted(f"port {port} is taken: address already in use", log="address already in use")
        command = [self._binary, "--name", "local", "--data-dir", str(self._directory / "data")]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", f"local={peer}", *self._arguments]
        with open(self.log, "ab", opener=partial(os.open, mode=0o600)) as log:
            begins = log.tell()
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        while not self._is_healthy(ports[0]):
            ended = self._process.poll()
            if ended is not None or time.monotonic() > until:
                with self.log.open("rb") as log:
                    log.seek(begins)
                    said = log.read().decode("utf-8", "replace")[-_LOG_TAIL_BYTES:]
                what = "is not healthy yet" if ended is None else f"ended with {ended}"
                raise EtcdNotStarted(f"the local etcd {what}; the end of {self.log}:\n{said}", log=said)
            time.sleep(_POLL_S)

    def _is_healthy(self, port: int) -> bool:
        connection = (
            http.client.HTTPSConnection("127.0.0.1", port, timeout=2, context=self._tls)
            if self._tls
            else http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        )
        try:
            connection.request("GET", "/health")
            return b'"true"' in connection.getresponse().read(1_000)
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        # One that is paused would not hear of it otherwise.
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def free_port() -> int:
    """For whoever listens on it more than once: nobody connects from it meanwhile."""
    for _ in range(1_000):
        port = random.choice(_PORTS)
        if _is_free(port):
            return port
    raise EtcdNotStarted("there is no free port for a local etcd", log="")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As etcd does: connections of one that was killed do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
