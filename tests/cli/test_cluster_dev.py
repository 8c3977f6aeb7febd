"""penstock cluster dev: etcd and brokers as processes of their own, and what is left of them."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from cli.support import PENSTOCK, Run
from etcd_support import needs_etcd
from penstock.cli.cluster_dev import Node, Ports


class Dev:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said = ""
        assert process.stdout is not None
        for line in process.stdout:
            self.said += line
            if line.startswith("Ctrl-C"):
                return
        raise AssertionError(f"it did not start: {self.said}")

    @property
    def address(self) -> str:
        (found,) = re.findall(r"PENSTOCK_SERVER='?([^'\n]+)", self.said)
        return str(found)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextmanager
def dev(directory: Path, nodes: int) -> Iterator[Dev]:
    command = [PENSTOCK, "cluster", "dev", "--nodes", nodes, "--dir", directory]
    command += ["--port", 0, "--http-port", 0, "--grpc-port", 0]
    process = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, umask=0
    )
    try:
        yield Dev(process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()


@needs_etcd
def test_a_cluster_is_started_and_ended_and_its_data_stays(tmp_path: Path, run: Run) -> None:
    with dev(tmp_path / "dev", 2) as started:
        with penstock.connect(started.address) as q:
            q.create_topic("orders", 2)
            sent = q.publish("orders", "kept").id
        assert run.ok("cluster", "status", "--server", started.address, "-o", "json").json["nodes"] == ["a", "b"]
        assert (tmp_path / "dev" / "a.log").stat().st_size > 0
        for path in [tmp_path / "dev", *(tmp_path / "dev").rglob("*")]:
            assert not path.stat().st_mode & 0o077, path
        for pid in re.findall(r"^node .* pid (\d+) ", started.said, re.M):
            assert b"--node-id" in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert len(re.findall(r"^node .* pid \d+ ", started.said, re.M)) == 2
        handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
        told = run("cluster", "dev", "--dir", tmp_path / "dev")
        assert told.code == 2
        assert "[directory_locked]" in told.err
        assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers
        assert "is in use by another etcd" in told.err
        assert started.stop() == 0
    with dev(tmp_path / "dev", 2) as started, penstock.connect(started.address) as q:
        (message,) = list(q.reader("orders"))
        assert message.id == sent
    for each in ("a", "b"):
        # Nobody has it any more.
        assert "[directory_locked]" not in run("topic", "list", "--data", tmp_path / "dev" / each).err


def test_without_etcd_it_says_how_to_get_it(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    told = run("cluster", "dev", "--dir", tmp_path / "dev")
    assert told.code == 2
    assert "[etcd_missing]" in told.err
    assert not (tmp_path / "dev").exists()


def test_a_directory_with_other_things_in_it_is_not_taken(tmp_path: Path, run: Run) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    told = run("cluster", "dev", "--dir", tmp_path)
    assert told.code == 2
    assert "[invalid_input]" in told.err
    assert "[invalid_input]" in run("cluster", "dev", "--dir", tmp_path / "thesis.txt").err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_the_command_that_starts_a_node_again_has_the_ports_that_it_had(tmp_path: Path) -> None:
    node = Node("a", tmp_path, "http://127.0.0.1:2379", Ports(0, 0, 0).of(0))
    node.where = {"native": "127.0.0.1:4001", "http": "127.0.0.1:4002", "grpc": "none"}
    assert " ".join(node.again).endswith("--native 127.0.0.1:4001 --http 127.0.0.1:4002 --grpc none")
    assert "127.0.0.1:0" not in node.again


@needs_etcd
def test_a_directory_that_can_not_be_made_is_told(run: Run) -> None:
    told = run("cluster", "dev", "--dir", "/proc/nowhere")
    assert told.code == 2
    assert "/proc/nowhere can't be made" in told.err
    assert "[invalid_input]" in told.err
