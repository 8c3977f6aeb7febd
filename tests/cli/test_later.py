"""`penstock scheduled` and `penstock schedule`: messages that come later."""

from __future__ import annotations

import re

import pytest

from cli.support import Run
from penstock.client.blocking import Client


def test_scheduled_messages_are_listed_and_shown(topic: str, q: Client, run: Run) -> None:
    q.publish(topic, "tomorrow", delay="1d")
    q.publish(topic, "in an hour", delay="61m", key="k", headers={"a": "b"})
    out = run.ok("scheduled", "list", topic).lines
    assert re.match(rf"^{topic}:0:1 +\S+Z \(in 1h\) +k +in an hour +normal", out[1])
    rows = run.ok("scheduled", "list", topic, "-o", "json").rows
    assert [row["value"] for row in rows] == ["in an hour", "tomorrow"]
    assert len(run.ok("scheduled", "list", topic, "--limit", 1, "-o", "json").rows) == 1
    shown = run.ok("scheduled", "show", f"{topic}:0:1")
    assert re.search(r"^headers +a=b$", shown.out, re.MULTILINE)
    assert run.ok("scheduled", "show", f"{topic}:0:1", "-o", "json").json["id"] == f"{topic}:0:1"


def test_they_are_cancelled_moved_and_delivered_now(topic: str, q: Client, run: Run) -> None:
    ids = [q.publish(topic, word, delay="1d").id for word in ("cancel", "move", "now")]
    assert run.ok("scheduled", "cancel", ids[0]).out == "cancelled 1 message\n"
    assert run.ok("scheduled", "reschedule", ids[1], "--delay", "2h").out == f"{ids[1]} comes in 2h\n"
    assert run.ok("scheduled", "reschedule", ids[1], "--at", "2030-01-01T00:00:00Z", "-o", "json").json == {
        "rescheduled": ids[1],
        "delay": None,
        "at": "2030-01-01T00:00:00Z",
    }
    assert run.ok("scheduled", "show", ids[1], "-o", "json").json["deliver_at"] == "2030-01-01T00:00:00.000000Z"
    run.ok("scheduled", "now", ids[2])
    assert run.ok("consume", topic, "-g", topic, "--until-idle", "50ms").lines == ["now"]
    assert [one.id for one in q.scheduled.list(topic)] == [ids[1]]


def test_nothing_scheduled_is_no_bad_news(topic: str, run: Run) -> None:
    ran = run("scheduled", "list", topic)
    assert (ran.code, ran.out, ran.err) == (0, "", f"nothing is scheduled in {topic}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["scheduled", "show", "nonsense"], "[invalid_input]"),
        (["scheduled", "cancel", "nowhere:0:0"], "[topic_not_found]"),
        (["scheduled", "reschedule", "x:0:0"], "a message is moved to a deliver_at, or by a delay"),
        (["scheduled", "reschedule", "x:0:0", "--delay", "later"], "delay: a duration is written as"),
        (["scheduled", "list", "nowhere"], "[topic_not_found]"),
        (["schedule", "create", "s", "nowhere", "@hourly", "x"], "[topic_not_found]"),
        (["schedule", "delete", "nothing"], "[not_found]"),
    ],
)
def test_what_can_not_be_done_is_told(server: str, run: Run, arguments: list[str], message: str) -> None:
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_a_schedule_is_made_listed_and_deleted(topic: str, run: Run) -> None:
    assert run("schedule", "list").code == 0
    options = ["--timezone", "Europe/Berlin", "--key", "k", "--header", "a=b", "--priority", "low"]
    made = run.ok("schedule", "create", "morning", topic, "0 7 * * *", "good morning", *options, "-o", "json").json
    assert (made["value"], made["key"], made["headers"], made["priority"]) == ("good morning", "k", {"a": "b"}, "low")
    assert run.ok("schedule", "list", "-o", "json").rows == [made]
    assert re.search(rf"^morning +{topic} +0 7 \* \* \* +Europe/Berlin ", run.ok("schedule", "list").out, re.MULTILINE)
    assert run.ok("schedule", "delete", "morning").out == "deleted morning\n"
    told = run.ok("schedule", "create", "often", topic, "every 90s", "x").out
    assert told.startswith(f"often comes to {topic} first at 20")
    run.ok("schedule", "delete", "often")


def test_a_wrong_cron_is_told(topic: str, run: Run) -> None:
    ran = run("schedule", "create", "s", topic, "99 * * * *", "x")
    assert (ran.code, ran.out) == (2, "")
    assert "99" in ran.err
