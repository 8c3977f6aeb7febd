"""The whole server: its doors, its log, and its end."""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import penstock
from broker_process import BrokerProcess


def test_every_door_leads_to_the_same_broker(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", "--http", "none", "--grpc", "127.0.0.1:0", "--log-level", "info")
    try:
        found = re.search(r"grpc=127\.0\.0\.1:(\d+)", broker.said)
        assert found is not None
        with grpc.insecure_channel(f"127.0.0.1:{found[1]}") as channel:
            health = health_pb2_grpc.HealthStub(channel)
            assert health.Check(health_pb2.HealthCheckRequest(), timeout=10).status == 1
        with penstock.connect(broker.address) as q:
            q.create_topic("t")
    finally:
        code, said = broker.stop()
    assert code == 0
    assert "stopped" in said


def test_a_port_that_is_taken_is_told_and_nothing_is_left_open(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "one", "--http", "none", "--grpc", "none")
    try:
        with pytest.raises(AssertionError, match="address already in use"):
            BrokerProcess(tmp_path / "two", "--http", "none", "--grpc", "none", port=broker.port)
    finally:
        broker.kill()
