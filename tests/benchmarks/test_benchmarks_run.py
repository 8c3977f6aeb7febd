"""The benchmarks run to their end and say what they found. How fast is not a question for a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from etcd_support import needs_etcd

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SCRIPTS = (
    "append",
    "backlog",
    "commit",
    "delays",
    "doors",
    "encode",
    "fan_out",
    "groups",
    "hostile",
    "key_order",
    "lanes",
    "latency",
    "leases",
    "memory",
    "neighbours",
    "open",
    "point_read",
    "publish",
    "read",
    "restart",
    "ring",
    "scaling",
    "scan_beside",
    "stalls",
    "start",
    "throughput",
)
CLUSTER = ("cluster_catchup", "cluster_failover", "cluster_idle", "cluster_publish", "cluster_rebalance")
# Each takes Spark half a minute to begin with: too long for every run of the tests.
SPARK = {"spark_archive", "spark_scan", "spark_sink", "spark_stream"}
HELPERS = {
    "beside",
    "cluster_load",
    "cluster_serving",
    "crowd",
    "harness",
    "hostile_clients",
    "loads",
    "pacing",
    "report",
    "ring_children",
    "ring_killed",
    "ring_memory",
    "run",
    "serving",
}


def run(name: str, *arguments: str) -> str:
    return finished(name, *arguments).stdout


def finished(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(BENCHMARKS / f"{name}.py"), "--quick", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, check=False, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done


def processes_with(path: Path) -> list[str]:
    """What still runs of those that were started with it: in their command, or in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        # Some have ended meanwhile, and some belong to others.
        with suppress(OSError):
            started_with = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            if str(path).encode() in started_with:
                found.append(started_with.decode(errors="replace"))
    return found


@pytest.mark.parametrize("script", [*SCRIPTS, *(pytest.param(script, marks=needs_etcd) for script in CLUSTER)])
def test_every_line_of_a_benchmark_is_a_figure_and_nothing_is_left_behind(script: str, tmp_path: Path) -> None:
    lines = run(script, "--json", "--dir", str(tmp_path)).splitlines()

    figures = [json.loads(line) for line in lines]
    assert figures
    for figure in figures:
        assert list(figure) == ["name", "value", "unit", "target", "holds"]
        assert isinstance(figure["name"], str)
        assert isinstance(figure["value"], float)
        assert isinstance(figure["unit"], str)
        assert (figure["target"] is None) == (figure["holds"] is None)
        if figure["target"] is not None:
            assert figure["target"][:3] in ("<= ", ">= ")
            assert isinstance(figure["holds"], bool)
    assert len({figure["name"] for figure in figures}) == len(figures)
    assert list(tmp_path.iterdir()) == []
    assert processes_with(tmp_path) == []


def test_the_runner_knows_every_script_and_keeps_the_figures(tmp_path: Path) -> None:
    assert {path.stem for path in BENCHMARKS.glob("*.py")} - HELPERS == {*SCRIPTS, *CLUSTER, *SPARK}

    results = tmp_path / "results"
    shown = run("run", "encode", "--dir", str(tmp_path / "data"), "--results", str(results))

    kept = json.loads((results / "encode.json").read_text())
    assert kept["script"] == "encode"
    assert kept["figures"]
    assert kept["is_quick"] is True
    assert kept["exit_code"] == 0
    assert kept["figures"][0]["name"] in shown
    assert "encode" in (results / "report.html").read_text()


def test_a_peer_that_is_not_there_is_skipped_with_a_line_that_says_so(tmp_path: Path) -> None:
    done = finished("throughput", "--json", "--dir", str(tmp_path), PATH="/nowhere", KAFKA_BOOTSTRAP="")

    names = [json.loads(line)["name"] for line in done.stdout.splitlines()]
    assert {"send", "send_batch", "iterate", "batches"} <= set(names)
    assert not any("Redis" in name for name in names)
    assert "Redis Streams, fsync always: skipped, it needs redis-server" in done.stderr
    assert "RabbitMQ quorum queues: skipped, it needs" in done.stderr
    assert "Kafka, default: skipped, it needs KAFKA_BOOTSTRAP" in done.stderr
