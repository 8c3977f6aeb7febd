"""`penstock trace` and `penstock why`: what became of a message."""

from __future__ import annotations

import re

import pytest

from cli.support import Run
from penstock.client.blocking import Client


def test_a_trace_has_a_line_a_step(topic: str, q: Client, run: Run) -> None:
    id = q.publish(topic, "x").id
    with q.consumer(topic, topic, name="ann") as consumer:
        consumer.poll(1, wait="5s")[0].nack("0s", reason="database is down")
        consumer.poll(1, wait="5s")[0].ack()
    out = run.ok("trace", id).lines
    steps = [re.split(r"  +", line.strip()) for line in out[1:]]
    assert [step[2] for step in steps][:5] == ["PUBLISHED", "DELIVERED", "NACKED", "REDELIVERED", "ACKNOWLEDGED"]
    assert steps[0][1] == "+0 µs"
    assert steps[1][3:6] == [topic, "ann", "1"]
    assert "database is down" in steps[2][6]
    trace = run.ok("trace", id, "-o", "json").json
    assert trace["id"] == id
    assert set(trace["steps"][1]) == {
        "time",
        "since_publish_us",
        "what",
        "group",
        "consumer",
        "attempt",
        "reason",
        "until",
        "place",
    }
    assert (trace["steps"][3]["attempt"], trace["steps"][2]["reason"]) == (2, "database is down")


def test_why_has_one_plain_answer(topic: str, q: Client, run: Run) -> None:
    id = q.publish(topic, "x", delay="1d").id
    q.create_group(topic)
    assert run.ok("why", id, "--group", topic).out.startswith("delayed: it is delayed until ")
    answer = run.ok("why", id, "-g", topic, "-o", "json").json
    assert set(answer) == {"id", "group", "code", "answer"}
    assert (answer["id"], answer["group"], answer["code"]) == (id, topic, "delayed")


@pytest.mark.parametrize("id", ["nonsense", "nowhere:0:0", "{topic}:7:0"])
def test_an_id_that_can_not_be_one_is_told(topic: str, run: Run, id: str) -> None:
    for command in (["trace", id.format(topic=topic)], ["why", id.format(topic=topic), "--group", "g"]):
        ran = run(*command)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("error: ")
        assert ran.err.count("\n") == 1


def test_a_message_that_is_not_there_yet_is_bad_news(topic: str, run: Run) -> None:
    told = (
        f'error: message "{topic}:0:99" does not exist: it is not published yet, or was deleted. See the offsets that '
        f"exist: penstock topic show {topic} [message_not_found]\n"
    )
    assert run("trace", f"{topic}:0:99").err == told
    ran = run("why", f"{topic}:0:99", "--group", topic)
    assert (ran.code, ran.out) == (1, f"not_published: there is no message {topic}:0:99 yet\n")


def test_a_group_that_never_asked_is_told(topic: str, q: Client, run: Run) -> None:
    id = q.publish(topic, "x").id
    assert (
        run.ok("why", id, "--group", "nobody").out
        == 'group_not_started: group "nobody" does not exist. Its first consumer creates it\n'
    )
    q.create_group(topic)
    told = f"group_not_started: group {topic} has never asked for messages of this partition\n"
    assert run.ok("why", id, "--group", topic).out == told
