"""The whole server: its doors, its log, and its end."""

from __future__ import annotations

import json
import logging
import re
import subprocess
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import penstock
from broker_process import PENSTOCK, BrokerProcess
from penstock.server.logs import set_up


def test_every_door_leads_to_the_same_broker(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", "--http", "none", "--grpc", "127.0.0.1:0", "--log-level", "info")
    try:
        found = re.search(r"grpc=127\.0\.0\.1:(\d+)", broker.said)
        assert found is not None
        with grpc.insecure_channel(f"127.0.0.1:{found[1]}") as channel:
            health = health_pb2_grpc.HealthStub(channel)
            assert health.Check(health_pb2.HealthCheckRequest(), timeout=60).status == 1
        with penstock.connect(broker.address) as q:
            q.create_topic("t")
    finally:
        code, said = broker.stop()
    assert code == 0
    assert "stopped" in said


def test_a_port_that_is_taken_is_told_and_nothing_is_left_open(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "one", "--http", "none", "--grpc", "none")
    assert " http=none grpc=none" in broker.said
    taken = f"127.0.0.1:{broker.port}"
    try:
        for door in ("native", "http", "grpc"):
            doors = {"native": "127.0.0.1:0", "http": "none", "grpc": "none"} | {door: taken}
            flags = [text for name, address in doors.items() for text in (f"--{name}", address)]
            started = subprocess.run(
                [PENSTOCK, "serve", "--data", tmp_path / "two", *flags], capture_output=True, text=True, check=False
            )
            assert started.returncode == 2
            # That, and nothing else.
            assert re.fullmatch(
                rf"error: the {door} door can't be opened: .*{taken}.* in use.*; "
                rf"--{door} names another host:port, or none .*\n",
                started.stderr,
            ), started.stderr
    finally:
        broker.kill()


def test_what_libraries_complain_of_is_in_the_log_in_its_form(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for logger in (logging.getLogger(), logging.getLogger("penstock")):
        monkeypatch.setattr(logger, "handlers", [])
        monkeypatch.setattr(logger, "level", logger.level)
    set_up("json", "info")
    exporter = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    exporter.info("nobody asked")
    exporter.warning("Transient error %s encountered", "Not Found")
    logging.getLogger("penstock.http").info("once")
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(each["level"], each["message"]) for each in told] == [
        ("warning", "Transient error Not Found encountered"),
        ("info", "once"),
    ]
