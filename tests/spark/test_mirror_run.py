"""`penstock pipeline mirror` as a process: killed in the middle and run again; and the commands that go with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from broker_process import PENSTOCK, BrokerProcess, broker_process
from penstock.cli import main
from penstock.client.blocking import Client
from spark.mirrors import messages

MESSAGES = 24


@pytest.fixture
def other(tmp_path: Path) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path / "other") as process:
        yield process


@contextmanager
def mirroring(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [PENSTOCK, "pipeline", "mirror", *arguments, "--master", "local[2]", "-o", "json"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def until(process: subprocess.Popen[str], **wanted: Any) -> dict[str, Any]:
    """The first event that has all these."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        event: dict[str, Any] = json.loads(line)
        if all(event.get(name) == value for name, value in wanted.items()):
            return event
    assert process.stderr is not None
    raise AssertionError(f"it ended without {wanted}: {said}{process.stderr.read()}")


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """By a command that needs no Spark."""
    with pytest.raises(SystemExit) as ended:
        main(["pipeline", *arguments, "-o", "json"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_a_mirror_that_is_killed_goes_on_and_the_target_is_like_the_source(
    q: Client, broker: BrokerProcess, other: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    q.create_topic("events", 2)
    with q.producer("events") as producer:
        for number in range(MESSAGES):
            producer.send(f"{number}", key=f"{number}", headers={"n": f"{number}"})
    with q.consumer("billing", "events") as consumer:
        for message in consumer.poll(MESSAGES, wait="5s"):
            message.ack()
    ends = ("--from", broker.address, "--to", other.address)
    state = ("--state-dir", str(tmp_path / "state"), "--checkpoint", str(tmp_path / "checkpoint"))
    arguments = (*ends, *state, "--topics", "events", "--prefix", "dc1.", "--rows-per-batch", "8")

    with mirroring(*arguments, "--every", "0ms") as first:
        seen = until(first, event="progress")
        # All that was between two looks is told as one.
        assert seen["rows"] == 8 * seen["batches"]
        assert seen["lag"] == MESSAGES - seen["rows"]
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    q.publish("events", "the last", partition=1)
    with mirroring(*arguments, "--once") as second:
        assert until(second, event="ended")["status"] == "finished"
        assert second.wait() == 0

    with penstock.connect(other.address) as far:
        assert messages(far, "dc1.events") == messages(q, "events")
        end = q.topic("events").partitions[1].end_offset
        place = ("--to", other.address, "--topic", "events", "--partition", "1", "--offset")
        moved = ("mirror-groups", *ends, "--groups", "billing")
        row = json.loads(told(capsys, "translate", *place, f"{end - 1}"))
        assert (row["target"], row["to"], row["is_mirrored"]) == ("dc1.events", end - 1, True)
        rows = told(capsys, *moved, "--dry-run")
        assert [json.loads(each)["partition"] for each in rows.splitlines()] == [0, 1]
        assert far.groups() == []
        assert told(capsys, *moved) == rows
        with far.consumer("billing", "dc1.events") as consumer:
            assert [message.value for message in consumer.poll(MESSAGES, wait="5s")] == [b"the last"]
