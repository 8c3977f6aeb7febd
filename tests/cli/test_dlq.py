"""`penstock dlq`: messages that groups have given up."""

from __future__ import annotations

import re

import pytest

from cli.support import Run
from penstock.client.blocking import Client


def given_up(q: Client, topic: str, *reasons: str) -> None:
    """A message for each reason, given up because of it."""
    with q.consumer(topic, topic) as consumer:
        for reason in reasons:
            q.publish(topic, f"value {reason}", key=reason)
            consumer.poll(1, wait="5s")[0].reject(reason)
    # To ask for them is to wait until they are written.
    assert len(q.dead_letters.list(topic)) >= len(reasons)


def test_dead_letters_are_listed_by_what_they_have_in_common(topic: str, q: Client, run: Run) -> None:
    given_up(q, topic, "broken", "lost", "broken too")
    out = run.ok("dlq", "list", topic).out
    assert re.search(rf"^{topic}.dlq:0:0 +{topic}:0:0 +{topic} +1 .*\((now|\d+s ago)\) +broken ", out, re.MULTILINE)
    filters = [
        (["--reason", "broken"], 2),
        (["--key", "lost"], 1),
        (["--group", topic], 3),
        (["--id", f"{topic}:0:1", "--id", f"{topic}.dlq:0:2"], 2),
        (["--since", "1h"], 3),
        (["--limit", "1"], 1),
    ]
    for options, count in filters:
        assert len(run.ok("dlq", "list", topic, *options, "-o", "json").rows) == count
    ran = run("dlq", "list", topic, "--until", "1h")
    assert (ran.code, ran.out, ran.err) == (0, "", f"no dead letters of {topic}\n")


def test_a_dead_letter_is_shown_with_its_attempts(topic: str, q: Client, run: Run) -> None:
    given_up(q, topic, "broken")
    shown = run.ok("dlq", "show", f"{topic}.dlq:0:0").out
    assert re.search(r"^value +value broken$", shown, re.MULTILINE)
    assert re.search(r"^ +1 +.* consumer-\w+ +broken *$", shown, re.MULTILINE)
    letter = run.ok("dlq", "show", f"{topic}.dlq:0:0", "-o", "json").json
    assert (letter["original"], letter["settled"], letter["value"]) == (f"{topic}:0:0", False, "value broken")
    assert [failure["reason"] for failure in letter["failures"]] == ["broken"]


def test_what_others_wrote_does_not_reach_the_terminal_as_it_is(topic: str, q: Client, run: Run) -> None:
    given_up(q, topic, "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m")
    for arguments in (["show", f"{topic}.dlq:0:0"], ["list", topic]):
        out = run.ok("dlq", *arguments).out
        assert all(each.isprintable() for line in out.splitlines() for each in line)


def test_they_are_redriven_after_a_dry_run(topic: str, q: Client, run: Run) -> None:
    given_up(q, topic, "broken", "lost")
    assert run.ok("dlq", "redrive", topic, "--dry-run").out == "would redrive: 2 in place\n"
    done = run.ok("dlq", "redrive", topic, "--reason", "lost", "--rate", 100, "-o", "json").json
    assert done == {"dry_run": False, "in_place": [f"{topic}.dlq:0:1"], "copied": [], "refused": [], "already": []}
    assert run.ok("consume", topic, "-g", topic, "-n", 1).lines == ["value lost"]
    ran = run("dlq", "redrive", topic, "--reason", "unheard of")
    assert (ran.code, ran.out) == (1, "redriven: nothing\n")
    assert len(run.ok("dlq", "list", topic, "--settled", "-o", "json").rows) == 2


def test_they_are_discarded_after_a_dry_run(topic: str, q: Client, run: Run) -> None:
    given_up(q, topic, "broken", "lost")
    assert run.ok("dlq", "discard", topic, "--reason", "lost", "--dry-run").out == "would discard 1 dead letter\n"
    assert run.ok("dlq", "discard", topic, "--reason", "lost", "-o", "json").json == {"dry_run": False, "discarded": 1}
    assert run.ok("dlq", "discard", topic, "--yes").out == "discarded 1 dead letter\n"
    assert run("dlq", "discard", topic).code == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "nowhere"], "[topic_not_found]"),
        (["show", "nonsense"], "[invalid_input]"),
        (["list", "x", "--since", "lately"], "since: a time is written as"),
        (["redrive", "nowhere"], "[topic_not_found]"),
    ],
)
def test_what_can_not_be_done_is_told(server: str, run: Run, arguments: list[str], message: str) -> None:
    ran = run("dlq", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1
