"""`penstock top`, `penstock bench`, `penstock ping`, help and completion."""

from __future__ import annotations

import os
import pty
import re
import select
import socket
import subprocess
import sys
import termios
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from cli.support import PENSTOCK, Run
from penstock.cli import top
from penstock.client.blocking import Client
from penstock.client.requests import GroupInfo, TopicInfo


def test_top_prints_one_frame_with_topics_and_groups(topic: str, q: Client, run: Run) -> None:
    q.publish(topic, "x")
    with q.consumer(topic, topic, name="ann"):
        out = run.ok("top", "--once").out
        frame = run.ok("top", "--once", "-o", "json").json
    assert re.search(rf"^{topic} +1 +1 +\d+ bytes +0 +- *$", out, re.MULTILINE)
    assert re.search(rf"^{topic} +1 +- +{topic} +1: ann *$", out, re.MULTILINE)
    assert set(frame) == {"time", "topics", "groups"}
    (mine,) = [each for each in frame["topics"] if each["name"] == topic]
    numbers = {"partitions", "unknown_partitions", "messages", "bytes", "scheduled", "rate", "hot_partitions"}
    assert set(mine) == {"name", *numbers}
    assert mine["hot_partitions"] is None
    (group,) = [each for each in frame["groups"] if each["name"] == topic]
    assert (group["lag"], group["members"]) == (1, ["ann"])


def test_top_goes_on_into_a_pipe_with_rates(topic: str, address: str) -> None:
    command = [str(PENSTOCK), "top", "--interval", "0.1", "--server", address, "-o", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        frames = [process.stdout.readline() for _ in range(2)]
        process.stdout.close()
        assert (process.wait(60), process.stderr.read()) == (141, "")
    assert '"rate": 0.0' in frames[1]


def test_top_names_the_partitions_of_a_broker_that_are_hot(q: Client) -> None:
    q.create_topic("skewed", 4)
    before = top._look(q)
    for number, count in enumerate((1, 0, 20, 1)):
        for _ in range(count):
            q.publish("skewed", "x", partition=number)
    now = top._look(q)
    (frame,) = [each for each in top._as_json(now, before)["topics"] if each["name"] == "skewed"]
    assert frame["hot_partitions"] == [2]
    screen = Console(file=StringIO(), width=120)
    screen.print(top._frame(now, before))
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert re.search(r"^skewed +4 +22 +[\d.]+ \w+ +0 +[\d,]+ +2 *$", shown, re.MULTILINE)
    (quiet,) = [each for each in top._as_json(top._look(q), now)["topics"] if each["name"] == "skewed"]
    assert quiet["hot_partitions"] == []


def test_top_on_a_terminal_ends_with_q(topic: str, address: str) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 160))
    command = [str(PENSTOCK), "top", "--interval", "30", "--server", address]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        shown = b""
        while b"published/s" not in shown:
            assert select.select([ours], [], [], 60)[0], shown
            shown += os.read(ours, 4096)
        os.write(ours, b"q")
        assert process.wait(60) == 0
    os.close(ours)


@pytest.mark.parametrize(("height", "width"), [(24, 120), (24, 72), (10, 120)])
def test_top_says_what_it_has_no_room_for_and_shows_the_worst_groups(height: int, width: int) -> None:
    # Where it is narrow, these take more than one line.
    members: dict[str, list[tuple[str, int]]] = {f"consumer-{number}": [] for number in range(6)}
    topics = [TopicInfo(f"topic-{number:02}", (), {}, 0, 0) for number in range(30)]
    groups = [GroupInfo(f"group-{number:02}", {}, 0, {"orders": [number]}, members) for number in range(30)]
    screen = Console(file=StringIO(), width=width, height=height)
    screen.print(top._fitting(screen, top.Snapshot(0, 0, topics, groups), None, "title"))
    lines = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) <= height
    shown = [line.split()[0] for line in lines if re.match(r"(topic|group)-", line)]
    mores = [int(found[1]) for line in lines if (found := re.match(r"… and (\d+) more", line))]
    of_topics, of_groups = ([name for name in shown if name.startswith(kind)] for kind in ("topic", "group"))
    assert mores == [30 - len(of_topics), 30 - len(of_groups)]
    assert of_groups == [f"group-{29 - number}" for number in range(len(of_groups))]
    assert of_topics


def test_bench_measures_and_leaves_nothing_behind(q: Client, run: Run) -> None:
    before = [info.name for info in q.topics()]
    options = ["--messages", 2_500, "--size", 50, "--batch", 1_000, "--partitions", 2, "--singles", 3]
    found = run.ok("bench", *options, "-o", "json").json
    assert (found["messages"], found["size"], found["batch"], found["partitions"]) == (2_500, 50, 1_000, 2)
    for what, count in (("publish", 2_500), ("consume", 2_500), ("one_by_one", 3)):
        assert found[what]["messages"] == count
        assert found[what]["messages_per_s"] > 0
        latency = found[what]["latency_us"]
        assert 0 < latency["p50"] <= latency["p99"] <= latency["p100"]
    out = run.ok("bench", *options).lines
    assert [re.split("  +", line)[0] for line in out[1:4]] == ["publish", "consume", "one by one"]
    assert [info.name for info in q.topics()] == before
    assert q.groups() == [group for group in q.groups() if not group.name.startswith("bench-")]


def test_ping_tells_who_is_there_and_how_far_away(server: str, run: Run) -> None:
    assert re.search(rf" at {server}, protocol \d+: [\d.]+ (µs|ms) there and back", run.ok("ping").out)
    answer = run.ok("ping", "--count", 2, "-o", "json").json
    assert set(answer) == {"server", "broker", "protocol", "round_trip_us"}
    assert 0 < answer["round_trip_us"]["min"] <= answer["round_trip_us"]["max"]


def test_ping_without_a_server_is_told(run: Run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ran = run("ping", "--server", f"127.0.0.1:{port}")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: can't connect to penstock://127.0.0.1:{port}")
    assert run("ping", "--data", tmp_path).code == 2


def test_who_wants_tls_of_a_server_without_it_is_told_so_and_of_no_other_server(address: str, run: Run) -> None:
    for command in ("ping", "top"):
        ran = run(command, "--server", address.replace("penstock://", "penstocks://"))
        assert (ran.code, ran.out) == (2, "")
        assert f"does not seem to speak TLS; without, its address is {address} " in ran.err
        assert "penstock serve" not in ran.err


# --- help ---------------------------------------------------------------------------------------------------


def test_help_fits_and_imports_nothing_heavy(run: Run) -> None:
    ran = run("--help")
    assert max(map(len, ran.lines)) <= 80
    assert "..." not in ran.out.partition("Commands:")[2]
    heavy = "import sys; from penstock.cli import app; print({'numpy', 'pyarrow', 'uvloop', 'yaml'} & set(sys.modules))"
    ran_apart = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert ran_apart.stdout == "set()\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_shown_for_a_shell(shell: str) -> None:
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    ran = subprocess.run(
        [str(PENSTOCK), "--show-completion", shell], capture_output=True, text=True, env=environment, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "penstock" in ran.stdout
