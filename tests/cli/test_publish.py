"""`penstock publish`: from the command line, from stdin, from lines."""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from collections.abc import Callable

import pytest

from cli.support import Run, script
from penstock.client.blocking import Client
from penstock.clock import SystemClock, rfc3339

Stdin = Callable[[bytes], None]


def values(q: Client, topic: str) -> list[bytes | None]:
    return [message.value for message in q.reader(topic)]


def test_a_value_is_published_and_its_id_printed(topic: str, q: Client, run: Run) -> None:
    assert run.ok("publish", topic, "hello").out == f"{topic}:0:0\n"
    answer = run.ok("publish", topic, "again", "-o", "json").json
    assert set(answer) == {"id", "topic", "partition", "offset", "append_time"}
    assert answer["id"] == f"{topic}:0:1"
    run.ok("publish", topic, os.fsdecode(b"\xff"))
    assert values(q, topic) == [b"hello", b"again", b"\xff"]


def test_a_message_has_what_the_options_say(topic: str, q: Client, run: Run) -> None:
    options = ["--key", "user-1", "--header", "source=web", "-H", "n=1", "--ttl", "3d", "--priority", "high"]
    tomorrow = rfc3339(SystemClock().now_us() + 86_400_000_000)
    run.ok("publish", topic, "x", *options, "--partition", 0, "--at", tomorrow)
    (message,) = q.reader(topic)
    assert (message.key, message.priority) == (b"user-1", 1)
    assert message.headers == (("source", b"web"), ("n", b"1"))
    assert rfc3339(message.deliver_at) == tomorrow
    assert message.deliver_at < message.expires_at
    run.ok("publish", topic, "y", "--delay", "1h")
    assert len(q.scheduled.list(topic)) == 2


def test_acks_say_on_which_disks_it_is_when_it_is_told(topic: str, q: Client, run: Run, stdin: Stdin) -> None:
    assert run.ok("publish", topic, "a", "--acks", "leader").out == f"{topic}:0:0\n"
    assert run.ok("publish", topic, "b", "--acks", "none").out.startswith(f"published 1 message to {topic} in ")
    stdin(b"c\nd\n")
    assert run.ok("publish", topic, "--lines", "--acks", "none", "-o", "json").json["published"] == 2
    assert values(q, topic) == [b"a", b"b", b"c", b"d"]
    assert "acks is all, leader, none, not 'some'" in run("publish", topic, "e", "--acks", "some").err
    assert values(q, topic) == [b"a", b"b", b"c", b"d"]


def test_stdin_is_one_message_without_the_newline_at_its_end(topic: str, q: Client, run: Run, stdin: Stdin) -> None:
    stdin(b"two\nlines\n")
    run.ok("publish", topic)
    stdin(b"\xff\x00\n")
    run.ok("publish", topic, "--raw")
    run.ok("publish", topic, "--tombstone", "--key", "gone")
    assert values(q, topic) == [b"two\nlines", b"\xff\x00\n", None]


def test_each_line_is_a_message(topic: str, q: Client, run: Run, stdin: Stdin) -> None:
    stdin(b"".join(b"line %d\r\n" % number for number in range(3_000)))
    ran = run.ok("publish", topic, "--lines", "--key", "k")
    assert ran.lines == [f"{topic}:0:{offset}" for offset in range(3_000)]
    assert values(q, topic) == [b"line %d" % number for number in range(3_000)]


def test_quiet_prints_a_summary(topic: str, run: Run, stdin: Stdin) -> None:
    stdin(b"a\nb\n")
    assert run.ok("publish", topic, "--lines", "--quiet").out.startswith(f"published 2 messages to {topic} in ")
    stdin(b"a\n")
    answer = run.ok("publish", topic, "--lines", "-q", "-o", "json").json
    assert (answer["published"], answer["topic"]) == (1, topic)


def test_json_lines_have_everything_a_message_has(topic: str, q: Client, run: Run, stdin: Stdin) -> None:
    rows = [
        {"value": "text", "key": "k", "headers": {"a": "1", "b": ["2", "3"]}, "priority": "low", "delay": "1h"},
        {"value": {"id": 1, "name": "grüße"}, "key": {"base64": "/w=="}},
        {"value": {"base64": "AP8="}, "partition": 0, "ttl": None},
        {"value": None, "key": "gone"},
    ]
    stdin("".join(json.dumps(row) + "\n" for row in rows).encode())
    run.ok("publish", topic, "--json-lines")
    one, two, three, four = q.reader(topic)
    assert (one.value, one.key, one.priority) == (b"text", b"k", -1)
    assert one.headers == (("a", b"1"), ("b", b"2"), ("b", b"3"))
    assert one.deliver_at > 0
    assert (two.value, two.key) == ('{"id":1,"name":"grüße"}'.encode(), b"\xff")
    assert (three.value, four.value, four.key) == (b"\x00\xff", None, b"gone")


def test_what_read_prints_as_json_can_be_published_again(topic: str, q: Client, run: Run, stdin: Stdin) -> None:
    q.publish(topic, b"\xff", key="k", headers=[("a", b"\xfe"), ("a", "x")], priority="high")
    q.publish(topic, b"soon over", ttl="1h")
    q.publish(topic, b"long over", expires_at="2020-01-01T00:00:00Z")
    q.publish(topic, b"later", delay="1h", ttl="2h")
    printed = run.ok("read", topic, "-o", "json").out
    stdin(printed.encode())
    run.ok("publish", topic, "--json-lines")
    messages = [each.message for each in q.reader(topic)]
    assert messages[:4] == messages[4:]


def test_what_a_line_has_goes_before_the_options(topic: str, q: Client, run: Run, stdin: Stdin) -> None:
    stdin(b'{"value": "x", "deliver_at": "2020-01-01T00:00:00Z", "expires_at": "2100-01-01T00:00:00Z"}')
    run.ok("publish", topic, "--json-lines", "--delay", "1h", "--ttl", "2h")
    (stored,) = q.reader(topic)
    assert (rfc3339(stored.deliver_at)[:4], rfc3339(stored.expires_at)[:4]) == ("2020", "2100")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"nonsense", "line 2: not JSON"),
        (b"[1]", 'line 2: not an object with a "value"'),
        (b'{"value": "x", "colour": "red"}', "line 2: a message has no 'colour'"),
        (b'{"value": {"base64": "!"}}', "line 2: not base64"),
        (b'{"value": "x", "headers": 1}', "line 2: headers are an object"),
        (b'{"value": "x", "delay": "soon"}', "line 2: delay: a duration is written as"),
        (b'{"value": "x", "partition": 7}', "line 2: {topic} has partitions 0 to 0, not 7"),
        (b'{"value": NaN}', "line 2: not JSON: NaN"),
        (b'{"value": "x", "ttl": "1h", "expires_at": "2100-01-01T00:00:00Z"}', "line 2: a message has a ttl or an"),
    ],
)
def test_a_bad_line_is_named_and_what_came_before_it_is_stored(
    topic: str, q: Client, run: Run, stdin: Stdin, line: bytes, message: str
) -> None:
    stdin(b'{"value": "good"}\n' + line + b"\n" + b'{"value": "never"}\n')
    ran = run("publish", topic, "--json-lines")
    assert (ran.code, ran.out) == (2, f"{topic}:0:0\n")
    assert message.format(topic=topic) in ran.err
    assert values(q, topic) == [b"good"]


@pytest.mark.parametrize("option", ["--raw", "--lines", "--json-lines"])
def test_stdin_is_read_no_further_than_a_message_may_be_long(
    topic: str, run: Run, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    with open("/dev/zero") as endless:
        monkeypatch.setattr("sys.stdin", endless)
        ran = run("publish", topic, option)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "the limit of a " in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x", "--lines"], "VALUE or --lines, not both"),
        (["x", "--delay", "5"], "delay: duration '5': a number has no unit"),
        (["x", "--at", "tomorrow"], "deliver_at: a time is written as"),
        (["x", "--priority", "urgent"], "priority is high, normal or low"),
        (["x", "--header", "nothing"], "--header is name=value"),
        (["x", "--partition", "9"], "partition"),
    ],
)
def test_what_can_not_be_published_is_told(topic: str, run: Run, arguments: list[str], message: str) -> None:
    ran = run("publish", topic, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


def test_an_unknown_topic_is_told(server: str, run: Run, stdin: Stdin) -> None:
    assert run("publish", "nowhere", "x").err.endswith("[topic_not_found]\n")
    stdin(b"x\n")
    assert run("publish", "nowhere", "--lines").code == 2


def test_a_terminal_without_a_value_gets_a_hint(topic: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", terminal)
    ran = run("publish", topic)
    assert ran.code == 2
    assert ran.err.startswith("error: nothing to publish: give a VALUE, or pipe something in")


def test_pipes_work(topic: str, address: str, q: Client) -> None:
    ran = script(f"echo '{{}}' | penstock publish {topic} --key k", address)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"{topic}:0:0\n".encode(), b"")
    (message,) = q.reader(topic)
    assert (message.value, message.key) == (b"{}", b"k")
    ran = script(f"seq 20000 | penstock publish {topic} --lines | head -1", address)
    assert (ran.stdout, ran.stderr) == (f"{topic}:0:1\n".encode(), b"")


def test_large_lines_without_a_key_reach_all_partitions(q: Client, run: Run, stdin: Stdin) -> None:
    q.create_topic("large-lines", 6)
    stdin((b"x" * 15_000 + b"\n") * 600)
    counts = Counter(row["partition"] for row in run.ok("publish", "large-lines", "--lines", "-o", "json").rows)
    assert counts.total() == 600
    assert len(counts) == 6
    assert max(counts.values()) <= 200
