"""`penstock read`: the log as it was written."""

from __future__ import annotations

import csv
import io
import subprocess
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from cli.support import PENSTOCK, Run, script
from penstock.client.blocking import Client
from penstock.clock import rfc3339


def fill(q: Client, topic: str, count: int) -> None:
    with q.producer(topic) as producer:
        for number in range(count):
            producer.send(f"message {number}")


def test_values_are_printed_and_stay(topic: str, q: Client, run: Run) -> None:
    fill(q, topic, 5)
    for _ in range(2):
        assert run.ok("read", topic).lines == [f"message {number}" for number in range(5)]
    assert run.ok("read", topic, "--from-offset", 1, "--to-offset", 3).lines == ["message 1", "message 2"]
    assert run.ok("read", topic, "--limit", 2).lines == ["message 0", "message 1"]
    assert run("read", topic, "--from-offset", "latest").code == 0


def test_by_time_as_rfc_3339_or_how_long_ago(topic: str, q: Client, run: Run) -> None:
    times = [q.publish(topic, str(number)).append_time for number in range(3)]
    assert run.ok("read", topic, "--from-time", rfc3339(times[1])).lines == ["1", "2"]
    assert run.ok("read", topic, "--to-time", rfc3339(times[1])).lines == ["0"]
    assert run.ok("read", topic, "--from-time", "10m").lines == ["0", "1", "2"]
    assert run("read", topic, "--to-time", "10m").code == 0


def test_only_some_partitions(server: str, q: Client, run: Run) -> None:
    q.create_topic("three", 3)
    for number in range(3):
        q.publish("three", str(number), partition=number)
    assert run.ok("read", "three", "--partition", 2, "--partition", 0).lines == ["2", "0"]
    assert run("read", "three", "--partition", 3).err.endswith("[partition_not_found]\n")


def test_a_pipe_gets_bytes_as_they_are(topic: str, q: Client, address: str) -> None:
    q.publish(topic, b"\xff\x00\x1b[31m")
    ran = script(f"penstock read {topic}", address)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"\xff\x00\x1b[31m\n", b"")


def test_a_terminal_gets_nothing_that_it_would_take_for_a_command(topic: str, q: Client, address: str) -> None:
    q.publish(topic, b"\xff\x00\x1b[31m gr\xc3\xbc\xc3\x9fe")
    ran = script(f"script -qec 'penstock read {topic}' /dev/null", address)
    assert ran.stdout.decode().rstrip() == r"\xff\x00\x1b[31m grüße"


def test_csv_has_a_line_a_message(topic: str, q: Client, run: Run) -> None:
    q.publish(topic, 'a "quoted",\nvalue', key="k", headers={"h": "1"})
    q.publish(topic, b"\xff", priority="high")
    one, two = csv.DictReader(io.StringIO(run.ok("read", topic, "--format", "csv").out))
    assert (one["value"], one["key"], one["headers"]) == ('a "quoted",\nvalue', "k", '{"h": "1"}')
    assert (two["value"], two["key"], two["priority"], two["offset"]) == ('{"base64": "/w=="}', "", "high", "1")


def test_parquet_goes_to_a_file(topic: str, q: Client, run: Run, tmp_path: Path) -> None:
    fill(q, topic, 2_500)
    file = tmp_path / "out.parquet"
    assert run.ok("read", topic, "-o", "parquet", "--file", file).err == f"2500 messages in {file}\n"
    table = parquet.read_table(file)
    assert table.column("value").to_pylist() == [b"message %d" % number for number in range(2_500)]
    assert table.column_names[:3] == ["partition", "offset", "append_time"]
    run.ok("read", topic, "-o", "parquet", "--file", file, "--limit", 1_500)
    assert parquet.read_table(file).num_rows == 1_500


def test_it_follows_what_is_published_later(topic: str, q: Client, address: str) -> None:
    fill(q, topic, 2)
    command = [str(PENSTOCK), "read", topic, "--follow", "--limit", "4", "--server", address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["message 0\n", "message 1\n"]
        q.publish(topic, "three")
        assert process.stdout.readline() == "three\n"
        q.publish(topic, "four")
        assert (process.stdout.read(), process.wait(60)) == ("four\n", 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from-time", "yesterday"], "from_time: a time is written as"),
        (["--from-time", "10"], "--from-time: duration '10': a number has no unit"),
        (["--from-offset", "99"], "has offsets 0 to 0, not 99"),
        (["--from-offset", "0", "--from-time", "1h"], "from_time or from_offset, not both"),
        (["--from-offset", "first"], "from_offset is earliest, latest or a number"),
        (["-o", "parquet"], "--file goes with --output parquet"),
        (["--file", "x"], "--file goes with --output parquet"),
        (["--follow", "--to-offset", "3"], "--follow has no end"),
        (["-o", "parquet", "--file", "/nowhere/x"], "/nowhere/x can't be written: "),
    ],
)
def test_what_can_not_be_read_is_told(topic: str, run: Run, arguments: list[str], message: str) -> None:
    ran = run("read", topic, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_an_unknown_topic_is_told(server: str, run: Run) -> None:
    assert run("read", "nowhere").err.endswith("[topic_not_found]\n")


def test_head_ends_it_quietly(topic: str, q: Client, address: str) -> None:
    fill(q, topic, 50_000)
    ran = script(f"penstock read {topic} -o json | head -1 | wc -l; echo ${{PIPESTATUS[0]}}", address)
    assert (ran.stdout.split(), ran.stderr) == ([b"1", b"141"], b"")
