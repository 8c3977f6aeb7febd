"""`penstock topic`, and what all commands have in common: where the broker is, tables and JSON, errors."""

from __future__ import annotations

import io
import re
import socket
from pathlib import Path

import pytest

import penstock
from cli.support import Run
from penstock.client.blocking import Client


def test_a_topic_is_made_shown_changed_and_deleted(server: str, run: Run) -> None:
    assert (
        run.ok("topic", "create", "orders", "--partitions", 2, "--retention", "36h").out == "orders has 2 partitions\n"
    )
    shown = run.ok("topic", "show", "orders").out
    assert re.search(r"^retention.hours +36$", shown, re.MULTILINE)
    assert re.search(r"^created +\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ \((now|\d+s ago)\)$", shown, re.MULTILINE)
    assert re.search(r"^ +1 +0 +0 +0 +\d+ bytes *$", shown, re.MULTILINE)
    run.ok("topic", "set", "orders", "--retention", "none", "--retention-bytes", "2GiB", "--set", "max_delay=7d")
    info = run.ok("topic", "show", "orders", "-o", "json").json
    told = {"name", "id", "created", "messages", "bytes", "scheduled", "settings", "partitions", "unknown_partitions"}
    assert set(info) == told
    assert info["unknown_partitions"] == []
    assert info["settings"]["retention"] == {"hours": None, "bytes": 2 << 30}
    assert info["settings"]["max_delay"] == "7d"
    size = info["partitions"][1].pop("bytes")
    assert info["partitions"][1] == {
        "number": 1,
        "start_offset": 0,
        "end_offset": 0,
        "messages": 0,
        "archived": 0,
        "whole_from": 0,
    }
    assert info["bytes"] == 2 * size
    assert run.ok("topic", "delete", "orders", "--yes").out == "deleted orders with 0 messages\n"
    assert run("topic", "show", "orders").code == 2


def test_topics_are_listed_a_line_each(topic: str, q: Client, run: Run) -> None:
    q.publish(topic, "x")
    rows = run.ok("topic", "list", "--output", "json").rows
    (mine,) = [row for row in rows if row["name"] == topic]
    assert mine["messages"] == 1
    out = run.ok("topic", "list").out
    assert re.search(rf"^{topic} +1 +1 +\d+ bytes +0 +20", out, re.MULTILINE)
    assert "\x1b" not in out


def test_one_that_is_there_is_left_as_it_is_if_that_is_said(topic: str, run: Run) -> None:
    ran = run("topic", "create", topic)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith("[already_exists]\n")
    assert run.ok("topic", "create", topic, "--exist-ok", "-o", "json").json["name"] == topic


def test_settings_are_given_by_flags_or_by_name(server: str, run: Run) -> None:
    settings = [
        "--no-dead-letters",
        "--cleanup",
        "compact",
        "--set",
        "tombstone_age=2h",
        "--set",
        "retention.hours=1.5",
    ]
    made = run.ok("topic", "create", "by-name", *settings, "-o", "json").json["settings"]
    assert (made["dead_letters"], made["cleanup"], made["tombstone_age"]) == (False, "compact", "2h")
    assert made["retention"]["hours"] == 1.5
    lazy = ["--durability", "interval", "--set", "sync_interval=250ms"]
    changed = run.ok("topic", "set", "by-name", *lazy, "-o", "json").json["settings"]
    assert (changed["durability"], changed["sync_interval"]) == ("interval", "250ms")
    alone = ["--replicas", "1", "--set", "min_isr=none"]
    changed = run.ok("topic", "set", "by-name", *alone, "-o", "json").json["settings"]
    assert (changed["replicas"], changed["min_isr"]) == (1, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "nowhere"], "nowhere"),
        (["create", "a b"], "a topic name is made of"),
        (["create", "t", "--retention", "soon"], "--retention: a duration is written as"),
        (["create", "t", "--retention-bytes", "lots"], "--retention-bytes is a number of bytes, or as in 500MB"),
        (["create", "t", "--durability", "maybe"], "durability is fsync or interval, not 'maybe'"),
        (["create", "t", "--set", "sync_interval=0s"], "sync_interval is 1ms to 10m, not 0s"),
        (["create", "t", "--replicas", "3"], "this broker is on its own: replicas is 1, not 3"),
        (["create", "t", "--min-isr", "2"], "this broker is on its own: min_isr is 1, not 2"),
        (["create", "t", "--set", "colour"], "--set is name=value, not 'colour'"),
        (["create", "t", "--set", "colour=red"], "there is no topic setting 'colour'"),
        (["create", "t", "--max-delay", "1d", "--set", "max_delay=2d"], "max_delay is set twice"),
        (["list", "--server", "http://x"], "an address is penstock://host:port"),
        (["list", "--server", "x", "--data", "y"], "--server or in --data, not both"),
    ],
)
def test_what_can_not_be_done_is_told_in_one_line(server: str, run: Run, arguments: list[str], message: str) -> None:
    ran = run("topic", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: ")
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_no_server_there_is_told_with_what_to_do(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ran = run("topic", "list", "--server", f"127.0.0.1:{port}")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: can't connect to penstock://127.0.0.1:{port}: ")
    assert ran.err.endswith("--data DIR needs no server [connection_lost]\n")


def test_a_directory_is_opened_without_a_server(tmp_path: Path, run: Run) -> None:
    data = tmp_path / "data"
    assert "no such directory" in run("topic", "list", "--data", data).err
    run.ok("topic", "create", "orders", "--data", data)
    assert [row["name"] for row in run.ok("topic", "list", "--data", data, "-o", "json").rows] == ["orders"]
    with penstock.open(data):
        ran = run("topic", "list", "--data", data)
    assert ran.code == 2
    assert ran.err == (
        f"error: {data} is in use by another process; if that is a server, reach it with --server [directory_locked]\n"
    )


@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("y", 0)])
def test_somebody_at_a_terminal_is_asked(
    topic: str, q: Client, run: Run, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    terminal = io.StringIO(f"{answer}\n")
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", terminal)
    ran = run("topic", "delete", topic)
    assert ran.code == code
    assert f"Delete {topic} with 0 messages?" in ran.err
    assert (topic in [info.name for info in q.topics()]) == (answer == "n")


def test_an_empty_list_is_no_bad_news(tmp_path: Path, run: Run) -> None:
    ran = run("topic", "list", "--data", tmp_path)
    assert (ran.code, ran.out, ran.err) == (0, "", "there are no topics\n")


@pytest.mark.parametrize(
    "command",
    ["group list", "schedule list", "scheduled list orders", "dlq list orders", "read orders"],
)
def test_no_list_fails_because_it_is_empty(tmp_path: Path, run: Run, command: str) -> None:
    run.ok("topic", "create", "orders", "--data", tmp_path)
    ran = run(*command.split(), "--data", tmp_path)
    assert (ran.code, ran.out) == (0, "")


def test_the_address_comes_from_the_option_the_environment_or_the_default(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def connect(address: str, key: str | None, pace: object) -> None:
        asked.append((address, key))
        raise penstock.errors.ConnectionLost("nobody")

    monkeypatch.setattr("penstock.net.connect", connect)
    run("topic", "list")
    monkeypatch.setenv("PENSTOCK_SERVER", "elsewhere")
    monkeypatch.setenv("PENSTOCK_KEY", "secret")
    run("topic", "list")
    run("topic", "list", "--server", "here", "--server-key", "other")
    assert asked == [("penstock://127.0.0.1:7420", None), ("elsewhere", "secret"), ("here", "other")]
