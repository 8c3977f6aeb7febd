"""penstock cluster dev: etcd and some brokers on this machine, to try a cluster out."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from penstock.cli.output import note
from penstock.errors import InvalidInput, InvalidSetting

if TYPE_CHECKING:
    from types import FrameType

    from penstock.cluster.etcd.process import EtcdProcess

NODES_MAX = 9
_LOOK_S = 0.1
_READY_S = 60.0
_STOP_S = 30.0
_TAIL_BYTES = 2_000
_ENDINGS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class _Stop(Exception):
    pass


class Ports(NamedTuple):
    """Of the first node; 0 for any that are free."""

    native: int
    http: int
    grpc: int

    def of(self, number: int) -> list[str]:
        doors = []
        for door, port in self._asdict().items():
            doors += [f"--{door}", f"127.0.0.1:{port + number if port else 0}"]
        return doors


class Node:
    """A broker that is a process of its own, and logs to a file beside its data."""

    def __init__(self, name: str, directory: Path, etcd: str, doors: list[str]) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self._command = [*_penstock(), "serve", "--cluster", etcd, "--node-id", name, "--data", str(directory / name)]
        self._doors = doors
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0
        self.told_of_end = False
        self.where: dict[str, str] = {}

    @property
    def again(self) -> list[str]:
        """At the ports that it had: those are what clients know."""
        return [*self._command, *(part for door, place in self.where.items() for part in (f"--{door}", place))]

    def start(self) -> None:
        with open(self.log, "ab", opener=partial(os.open, mode=0o600)) as log:
            self._began = log.tell()
            # A group of its own: Ctrl-C in the terminal is for us, and we end it in order.
            self._process = subprocess.Popen(
                [*self._command, *self._doors, "--log-format", "json"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def is_ready(self) -> bool:
        import json

        for line in self._said().splitlines():
            if '"ready"' in line:
                told = json.loads(line)
                self.where = {door: told.get(door, "none") for door in ("native", "http", "grpc")}
                return True
        if self.code is not None:
            raise InvalidSetting(
                f"node {self.name} ended with {self.code}; the end of {self.log}:\n{self._said()[-_TAIL_BYTES:]}"
            )
        return False

    def _said(self) -> str:
        with self.log.open("rb") as log:
            log.seek(self._began)
            return log.read().decode("utf-8", "replace")

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            # One that was paused would not hear of it.
            self._process.send_signal(signal.SIGCONT)
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def dev(
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", min=1, max=NODES_MAX, help="How many brokers.")] = 3,
    directory: Annotated[
        str, typer.Option("--dir", metavar="DIR", help="Where data and logs are, also of the next time.")
    ] = "penstock-dev",
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65_000, help="The first node's native one; 0: any.")
    ] = 7420,
    http_port: Annotated[
        int, typer.Option("--http-port", metavar="PORT", min=0, max=65_000, help="The first node's for HTTP; 0: any.")
    ] = 8080,
    grpc_port: Annotated[
        int, typer.Option("--grpc-port", metavar="PORT", min=0, max=65_000, help="The first node's for gRPC; 0: any.")
    ] = 9000,
) -> None:
    """Start etcd and some brokers on this machine, to try a cluster out. Ctrl-C ends them all; the data stays.

    Each node is a process of its own that can be killed to see what happens.
    """
    from penstock.cluster.etcd.process import EtcdProcess

    home = Path(directory)
    _check_home(home)
    etcd = EtcdProcess(home / "etcd")
    try:
        home.mkdir(0o700, parents=True, exist_ok=True)
        home.chmod(0o700)
    except OSError as error:
        raise InvalidInput(f"{home} can't be made: {error.strerror}", argument="--dir") from error
    before = {each: signal.signal(each, _stop) for each in _ENDINGS}
    brokers: list[Node] = []
    try:
        etcd.start()
        for number in range(nodes):
            doors = Ports(port, http_port, grpc_port).of(number)
            brokers.append(Node(chr(ord("a") + number), home, etcd.address, doors))
            brokers[-1].start()
        _wait_until_ready(brokers)
        _tell(etcd, brokers, home)
        _watch(etcd, brokers)
    except _Stop:
        pass
    finally:
        for each in _ENDINGS:
            signal.signal(each, signal.SIG_IGN)
        if brokers:
            note("stopping")
        for broker in brokers:
            broker.stop()
        etcd.stop()
        for each, handler in before.items():
            # None: of somebody who is not Python.
            signal.signal(each, signal.SIG_DFL if handler is None else handler)


def _stop(number: int, frame: FrameType | None) -> None:
    raise _Stop


def _check_home(home: Path) -> None:
    if home.exists() and not home.is_dir():
        raise InvalidInput(f"{home} is a file; --dir names a directory", argument="--dir")
    if home.is_dir() and any(home.iterdir()) and not (home / "etcd").is_dir():
        raise InvalidInput(
            f"{home} has other things in it than a cluster to try out; --dir names another directory", argument="--dir"
        )


def _wait_until_ready(brokers: list[Node]) -> None:
    until = time.monotonic() + _READY_S
    left = list(brokers)
    while left:
        left = [broker for broker in left if not broker.is_ready()]
        if time.monotonic() > until:
            raise InvalidSetting(f"node {left[0].name} is not ready after {_READY_S:.0f} s; see {left[0].log}")
        time.sleep(_LOOK_S)


def _tell(etcd: EtcdProcess, brokers: list[Node], home: Path) -> None:
    address = "penstock://" + ",".join(broker.where["native"] for broker in brokers)
    lines = [f"etcd    {etcd.address}"]
    for broker in brokers:
        doors = f"{broker.where['native']}  http://{broker.where['http']}"
        lines.append(f"node {broker.name}  {doors}  pid {broker.pid}  log {broker.log}")
    lines += [
        "",
        "In another terminal:",
        f"  export PENSTOCK_SERVER={shlex.quote(address)}",
        "  penstock cluster status",
        "  penstock topic create orders --partitions 6",
        "  penstock publish orders hello",
        "  penstock cluster partitions orders",
        "",
        f"Ctrl-C ends it. The data stays in {home}.",
    ]
    print("\n".join(lines), flush=True)


def _watch(etcd: EtcdProcess, brokers: list[Node]) -> None:
    """What ends by itself, or is killed to see what happens, is told of, and how to have it back."""
    is_etcd_there = True
    while True:
        time.sleep(_LOOK_S)
        for broker in brokers:
            if broker.code is not None and not broker.told_of_end:
                broker.told_of_end = True
                note(f"node {broker.name} has ended ({_why(broker.code)}); to start it again:")
                note(f"  {shlex.join(broker.again)}")
        if is_etcd_there and not etcd.is_running:
            is_etcd_there = False
            note(f"etcd has ended; see {etcd.log}. Nodes go on with what they lead, and nothing else can be changed.")


def _why(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _penstock() -> list[str]:
    """As this process was started, wherever that is installed."""
    script = Path(sys.argv[0])
    if script.name == "penstock" and os.access(script, os.X_OK):
        return [str(script.resolve())]
    return [sys.executable, "-c", "from penstock.cli import main; main()"]
