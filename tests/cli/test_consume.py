"""`penstock consume`: what is printed is acknowledged, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess

import pyarrow as pa
import pytest

from cli.support import PENSTOCK, Run, script
from penstock.cli.consume import _settle
from penstock.client.blocking import Client
from penstock.testing import VirtualQueue


def fill(q: Client, topic: str, count: int) -> None:
    with q.producer(topic) as producer:
        for number in range(count):
            producer.send(f"message {number}", key=f"k{number % 3}")


def test_values_are_printed_and_acknowledged(topic: str, q: Client, run: Run) -> None:
    fill(q, topic, 250)
    ran = run.ok("consume", topic, "--group", topic, "--until-idle", "50ms")
    assert ran.lines == [f"message {number}" for number in range(250)]
    assert q.lag(topic) == {topic: [0]}
    assert run("consume", topic, "--group", topic, "--until-idle", "1ms").code == 1


def test_json_rows_tell_everything(topic: str, q: Client, run: Run) -> None:
    q.publish(topic, b"\xff\n", key="k", headers={"source": "web"}, priority="high")
    (row,) = run.ok("consume", topic, "-g", topic, "--max", 1, "-o", "json").rows
    assert row.pop("append_time")
    assert row.pop("timestamp")
    assert row == {
        "id": f"{topic}:0:0",
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "key": "k",
        "value": {"base64": "/wo="},
        "headers": {"source": "web"},
        "priority": "high",
        "deliver_at": None,
        "expires_at": None,
        "attempt": 1,
    }


@pytest.mark.parametrize("most", [1, 7, 130])
def test_it_ends_after_so_many_and_the_next_one_goes_on_there(topic: str, q: Client, run: Run, most: int) -> None:
    fill(q, topic, 200)
    assert run.ok("consume", topic, "-g", topic, "-n", most).lines == [f"message {number}" for number in range(most)]
    assert q.lag(topic) == {topic: [200 - most]}
    (row,) = run.ok("consume", topic, "-g", topic, "-n", 1, "-o", "json").rows
    assert (row["offset"], row["attempt"]) == (most, 1)


def test_what_was_leased_and_is_too_much_is_given_back(topic: str, q: Client, address: str) -> None:
    q.publish(topic, "first")
    command = [str(PENSTOCK), "consume", topic, "-g", topic, "--max", "3", "--server", address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "first\n"
        # Three of them come together, and two are wanted.
        with q.producer(topic) as producer:
            producer.send_batch(pa.table({"value": [f"more {number}".encode() for number in range(10)]}))
        assert (process.stdout.read(), process.wait(60)) == ("more 0\nmore 1\n", 0)
    assert q.lag(topic) == {topic: [8]}
    (next_one,) = q.consumer(topic, topic).poll(1, wait="5s")
    assert (next_one.value, next_one.attempt) == (b"more 2", 1)


def test_without_acknowledgements_all_is_given_back_at_the_end(topic: str, q: Client, run: Run) -> None:
    fill(q, topic, 150)
    assert len(run.ok("consume", topic, "-g", topic, "--ack", "none", "-n", 120).lines) == 120
    assert q.lag(topic) == {topic: [150]}
    (row,) = run.ok("consume", topic, "-g", topic, "-n", 1, "-o", "json").rows
    assert (row["offset"], row["attempt"]) == (0, 1)


def test_several_topics_and_settings_of_the_group(topic: str, q: Client, run: Run) -> None:
    q.create_topic(f"{topic}-2", 1)
    q.publish(topic, "one")
    q.publish(f"{topic}-2", "two")
    settings = ["--set", "ordering=key", "--set", "max_retries=9", "--name", "ann"]
    ran = run.ok("consume", topic, f"{topic}-2", "-g", topic, "-n", 2, *settings)
    assert sorted(ran.lines) == ["one", "two"]
    group = q.group(topic)
    assert (group.settings["ordering"], group.settings["max_retries"]) == ("key", 9)
    assert any(step.consumer == "ann" for step in q.trace(f"{topic}:0:0").steps)


def test_without_a_group_it_reads_by_time(topic: str, q: Client, run: Run) -> None:
    fill(q, topic, 5)
    assert run.ok("consume", topic, "--from-time", "1h").lines == [f"message {number}" for number in range(5)]
    assert len(run.ok("consume", topic, "--from-time", "1h", "--max", 2).lines) == 2
    assert run("consume", topic, "--to-time", "1h").code == 1
    assert topic not in [group.name for group in q.groups()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "consume takes either a --group, or --from-time, --from-snapshot and --to-time, and not both"),
        (["--group", "g", "--from-time", "1h"], "consume takes either a --group, or"),
        (["--group", "g", "--until-idle", "5"], "until_idle: duration '5': a number has no unit"),
        (["--group", "g", "--set", "colour=red"], "there is no group setting 'colour'"),
        (["--group", "a b"], "a group name is made of"),
    ],
)
def test_what_can_not_be_consumed_is_told(topic: str, run: Run, arguments: list[str], message: str) -> None:
    ran = run("consume", topic, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_an_unknown_topic_is_told(server: str, run: Run) -> None:
    assert run("consume", "nowhere", "-g", "g").err.endswith("[topic_not_found]\n")


def test_a_reader_that_stops_early_ends_it_quietly_and_nothing_is_lost(topic: str, q: Client, address: str) -> None:
    fill(q, topic, 20_000)
    ran = script(f"penstock consume {topic} -g {topic} --until-idle 10s | head -3; echo ${{PIPESTATUS[0]}}", address)
    assert ran.stdout.decode().splitlines() == ["message 0", "message 1", "message 2", "141"]
    assert ran.stderr == b""
    # A pipe holds some of what nobody read; what did not fit into it was given back.
    assert 0 < q.lag(topic)[topic][0] <= 20_000
    (next_one,) = q.consumer(topic, topic).poll(1, wait="5s")
    assert next_one.attempt == 1


def test_ctrl_c_is_quiet_and_gives_back_what_was_not_printed(topic: str, q: Client, address: str) -> None:
    fill(q, topic, 3)
    command = [str(PENSTOCK), "consume", topic, "-g", topic, "--server", address]
    # A group of its own: the signal is for the command alone, as from a terminal.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert [process.stdout.readline() for _ in range(3)] == [f"message {number}\n" for number in range(3)]
        while q.lag(topic) != {topic: [0]}:
            pass
        os.kill(process.pid, signal.SIGINT)
        assert (process.wait(), process.stderr.read()) == (130, "")
    assert q.group(topic).members == {}


def test_what_could_not_be_acknowledged_is_told_and_does_not_end_it(capsys: pytest.CaptureFixture[str]) -> None:
    with VirtualQueue() as queue:
        queue.create_topic("orders", partitions=1)
        queue.publish("orders", b"x")
        batch = next(queue.consumer("w", "orders", visibility="1s").batches())
        messages = list(batch.messages())
        queue.clock.advance("2s")
        queue.consumer("w", "orders").poll()
        _settle(batch, messages, 1, acks=True)
    assert "not acknowledged, and may come again" in capsys.readouterr().err
