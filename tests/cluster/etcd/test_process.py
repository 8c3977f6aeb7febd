"""A local etcd: found or not, started, stopped, started again; and when that fails, why."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from etcd_support import QUICK, needs_etcd, opened, run
from penstock.cluster.etcd import process as module
from penstock.cluster.etcd.process import EtcdProcess, find_etcd
from penstock.cluster.etcd.store import Put, Won
from penstock.errors import EtcdMissing, EtcdNotStarted


def test_without_etcd_one_is_told_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EtcdMissing, match="sudo apt-get install etcd-server") as caught:
        EtcdProcess(tmp_path / "etcd")
    assert caught.value.code == "etcd_missing"
    assert not (tmp_path / "etcd").exists()


@needs_etcd
def test_data_is_there_again_after_a_stop_and_after_a_kill(tmp_path: Path) -> None:
    process = EtcdProcess(tmp_path / "etcd", arguments=QUICK)

    async def put(value: bytes) -> None:
        async with opened(process.address) as store:
            found = (await store.get("/a")).items
            revision = found["/a"].revision if found else 0
            assert isinstance(await store.commit({"/a": revision}, [Put("/a", value)]), Won)

    async def check(value: bytes) -> None:
        async with opened(process.address) as store:
            assert (await store.get("/a")).items["/a"].value == value

    process.start()
    try:
        address = process.address
        run(lambda: put(b"1"))
        process.stop()
        process.start()
        assert process.address == address
        run(lambda: check(b"1"))
        run(lambda: put(b"2"))
        process.kill()
        process.start()
        run(lambda: check(b"2"))
    finally:
        process.kill()
    # What does not run can't be ended, and that is no error.
    process.kill()
    process.stop()


@needs_etcd
def test_a_paused_one_can_be_stopped(tmp_path: Path) -> None:
    process = EtcdProcess(tmp_path, arguments=QUICK)
    process.start()
    pid = process.pid
    process.pause()
    process.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@needs_etcd
def test_one_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(EtcdNotStarted, match=r"ended with \d+; the end of .*etcd\.log:\n[\s\S]*no-such-flag"):
        EtcdProcess(tmp_path, arguments=["--no-such-flag"]).start()


def pretend(directory: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.mkdir()
    (directory / "etcd").write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    (directory / "etcd").chmod(0o755)
    monkeypatch.setenv("PATH", str(directory))


def test_one_that_is_not_healthy_in_time_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(tmp_path / "bin", f"echo $$ > {tmp_path}/pid; echo starting; exec /bin/sleep 1000", monkeypatch)
    with pytest.raises(EtcdNotStarted, match=r"is not healthy yet; the end of [\s\S]*starting"):
        EtcdProcess(tmp_path / "etcd").start(within_s=10)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text(encoding="utf-8")), 0)


@needs_etcd
def test_a_port_that_was_asked_for_and_is_taken_is_an_error_and_one_chosen_here_is_chosen_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EtcdNotStarted, match="address already in use"):
            EtcdProcess(tmp_path / "asked", client_port=port, peer_port=port).start()
        # The first two that are looked for are gone by the time etcd starts.
        real, ports = module.free_port, [port, port]
        monkeypatch.setattr(module, "free_port", lambda: ports.pop() if ports else real())
        process = EtcdProcess(tmp_path / "chosen", arguments=QUICK)
        process.start()
        assert process.port != port
        process.kill()


def test_the_binary_is_found_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(tmp_path / "bin", "", monkeypatch)
    assert find_etcd() == str(tmp_path / "bin" / "etcd")
