"""`penstock group`: where groups are, and how to move them."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from cli.support import Run
from penstock.client.blocking import Client
from penstock.clock import rfc3339


def consumed(q: Client, group: str, topic: str, count: int, **settings: object) -> None:
    with q.consumer(group, topic, **settings) as consumer:
        for message in consumer.poll(count, wait="5s"):
            message.ack()


def test_a_group_is_made_shown_changed_and_deleted(server: str, run: Run) -> None:
    made = run.ok("group", "create", "billing", "--ordering", "key", "--visibility", "1m", "-o", "json").json
    assert set(made) == {"name", "created", "lag", "lag_total", "members", "settings", "unknown_partitions"}
    assert (made["settings"]["ordering"], made["settings"]["visibility"]) == ("key", "1m")
    settings = ["--set", "lanes=weighted", "--set", "backoff.initial=2s", "--set", "backoff.jitter=0.5"]
    shown = run.ok("group", "set", "billing", "--max-retries", 7, *settings).out
    assert re.search(r"^backoff.initial +2s$", shown, re.MULTILINE)
    info = run.ok("group", "show", "billing", "-o", "json").json["settings"]
    assert (info["max_retries"], info["lanes"], info["backoff"]["jitter"]) == (7, "weighted", 0.5)
    assert run.ok("group", "create", "flat", "--set", "lanes=none", "-o", "json").json["settings"]["lanes"] == "none"
    assert run.ok("group", "delete", "billing").out == "deleted billing\n"
    assert run("group", "show", "billing").err.endswith("[group_not_found]\n")


def test_lag_and_members_are_shown(topic: str, q: Client, run: Run) -> None:
    for number in range(3):
        q.publish(topic, str(number))
    consumed(q, topic, topic, 1)
    with q.consumer(topic, topic, name="ann"):
        shown = run.ok("group", "show", topic).out
        info = run.ok("group", "show", topic, "-o", "json").json
    assert re.search(rf"^{topic} +0 +2 +ann *$", shown, re.MULTILINE)
    assert (info["lag"], info["lag_total"]) == ({topic: [2]}, 2)
    assert info["members"] == {"ann": [{"topic": topic, "partition": 0}]}
    assert re.search(rf"^{topic} +{topic} +2 +0 +none ", run.ok("group", "list").out, re.MULTILINE)
    assert topic in [row["name"] for row in run.ok("group", "list", "-o", "json").rows]


def test_a_group_is_moved(topic: str, q: Client, run: Run) -> None:
    times = [q.publish(topic, str(number)).append_time for number in range(4)]
    consumed(q, topic, topic, 4)
    moves = [("earliest", 4), ("latest", 0), ("3", 1), (rfc3339(times[2]), 2), ("1h", 4)]
    for to, lag in moves:
        partition = ["--partition", 0] if to == "3" else []
        assert run.ok("group", "seek", topic, topic, "--to", to, *partition, "-o", "json").json["lag"] == [lag]
    assert run.ok("group", "seek", topic, topic, "--to", "latest").out == (
        f"{topic} is at latest in {topic}, with 0 messages to do\n"
    )
    lost = run("group", "seek", topic, topic, "--to", "nowhere")
    assert lost.code == 2
    assert lost.err.startswith("error: seek to earliest, latest, an offset or a time: ")


def test_parked_keys_are_listed_and_released(topic: str, q: Client, run: Run) -> None:
    assert run("group", "parked", "nobody").code == 2
    q.publish(topic, "bad", key="ann")
    with q.consumer(topic, topic, ordering="key") as consumer:
        consumer.poll(1, wait="5s")[0].reject("broken\n")
    assert re.search(
        rf"^{topic} +0 +ann +{topic}:0:0 .* broken\\n *$", run.ok("group", "parked", topic).out, re.MULTILINE
    )
    (row,) = run.ok("group", "parked", topic, "-o", "json").rows
    assert (row["key"], row["id"], row["reason"]) == ("ann", f"{topic}:0:0", "broken\n")
    assert run.ok("group", "release", topic, topic, "ann").out == f"released key ann in 1 partition of {topic}\n"
    ran = run("group", "parked", topic)
    assert (ran.code, ran.err) == (0, f"no key of {topic} is parked\n")


def test_what_was_not_known_while_parked_keys_were_asked_for_is_said(
    topic: str, q: Client, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.publish(topic, "x")
    q.consumer(topic, topic).poll(1)
    known = q.group(topic)
    for infos in ((replace(known, unknown={topic: [0]}), known), (known, replace(known, unknown={topic: [0]}))):
        told = iter(infos)
        monkeypatch.setattr(Client, "group", lambda self, name, partial, told=told: next(told))
        ran = run("group", "parked", topic)
        assert (ran.code, ran.err.splitlines()[0]) == (
            0,
            f"nobody leads 1 partition of {topic}: what is parked there is not known",
        )


def test_a_stretch_is_replayed_into_a_group_of_its_own(topic: str, q: Client, run: Run) -> None:
    for number in range(5):
        q.publish(topic, str(number))
    assert run.ok("group", "replay", topic, f"{topic}-a", "--from-time", "1h").out == (
        f"{topic}-a gets 5 messages of {topic}\n"
    )
    ran = run.ok("group", "replay", topic, f"{topic}-b", "--offsets", "0:1-3", "--set", "max_retries=1", "-o", "json")
    assert ran.json == {"group": f"{topic}-b", "topic": topic, "messages": 3}
    assert run.ok("consume", topic, "-g", f"{topic}-b", "-n", 3).lines == ["1", "2", "3"]
    assert "--offsets are partition:first-last" in run("group", "replay", topic, "x", "--offsets", "1-3").err


def test_what_a_group_had_not_done_at_some_time(topic: str, q: Client, run: Run) -> None:
    for number in range(5):
        q.publish(topic, str(number))
    consumed(q, topic, topic, 2)
    at = rfc3339(q.publish(topic, "5").append_time)
    (state,) = run.ok("group", "state-at", topic, topic, at, "-o", "json").rows
    assert state["unacknowledged"] in ([[2, 4]], [[2, 5]])
    assert (state["partition"], state["floor"], state["leased"], state["dead"]) == (0, 2, [], [])
    assert re.search(r"^ +0 +2 +\d +[34] +0 +0 *$", run.ok("group", "state-at", topic, topic, at).out, re.MULTILINE)
    assert run("group", "state-at", topic, topic, "1h").code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "nobody"], "[group_not_found]"),
        (["create", "x", "--ordering", "both"], "ordering is none, key or partition"),
        (["create", "x", "--visibility", "30"], "visibility: duration '30'"),
        (["create", "x", "--set", "max_retries=many"], "max_retries is a whole number"),
        (["delete", "nobody"], "[group_not_found]"),
    ],
)
def test_what_can_not_be_done_is_told(server: str, run: Run, arguments: list[str], message: str) -> None:
    ran = run("group", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
