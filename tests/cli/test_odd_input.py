"""Every option and argument of every command, with input that makes no sense: one line of error, or an answer.

The commands are those of the parser: a new one is tried without a line here.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from penstock.cli.app import app, main
from penstock.client.blocking import Client

HUGE, DIGITS = str(2**70), "9" * 5_000
UNICODE = "grün\udcff\x1b[2J\n€"
ODD = ["-1", "a=b", "", HUGE, UNICODE, DIGITS]
SETTINGS = [
    f"{name}={value}" for name in ("name", "partitions", "topics", "lanes", "max_retries") for value in (5, "x")
]
SETTINGS += [f"retention.bytes={HUGE}TiB", f"max_in_flight={DIGITS}", "=", "name", "lanes="]
# What a command is called with besides: enough to be understood, and to end soon.
GIVEN: dict[str, dict[str, str]] = {
    "serve": {"--data": "/dev/null/x", "--native": "nowhere"},
    "publish": {"topic": "orders", "value": "x"},
    "consume": {"topics": "orders", "--group": "g", "--until-idle": "0s"},
    "read": {"topic": "orders"},
    "trace": {"id": "orders:0:0"},
    "why": {"id": "orders:0:0", "--group": "g"},
    "top": {"--once": ""},
    "bench": {"--messages": "1", "--singles": "1"},
    "topic": {"name": "orders"},
    "topic create": {"name": "new", "--exist-ok": ""},
    "topic delete": {"name": "none"},
    "group": {"name": "g", "topic": "orders"},
    "group seek": {"--to": "latest"},
    "group replay": {"--from-time": "1h"},
    "group state-at": {"time": "1h"},
    "scheduled": {"topic": "orders", "id": "orders:0:1", "ids": "orders:0:1"},
    "schedule": {"name": "s", "topic": "orders", "cron": "@daily", "value": "x"},
    "dlq": {"topic": "orders", "id": "orders.dlq:0:0"},
    "dlq redrive": {"--dry-run": ""},
    "pipeline": {"file": "/dev/null/x", "--state-directory": "/dev/null/x"},
    "pipeline archive": {"--to": "/dev/null/x", "--topic": "orders", "--once": ""},
    "pipeline mirror": {"--source": "penstock://127.0.0.1:1", "--target": "penstock://127.0.0.1:1", "--once": ""},
    "pipeline mirror-groups": {
        "--source": "penstock://127.0.0.1:1",
        "--target": "penstock://127.0.0.1:1",
        "--group": "g",
    },
    "pipeline translate": {
        "--target": "penstock://127.0.0.1:1",
        "--topic": "orders",
        "--partition": "0",
        "--offset": "0",
    },
    "pipeline report": {"--topic": "orders", "--html": "/dev/null/x"},
    "cluster": {"where": "orders:0", "node": "n", "nodes": "n", "partition_id": "p"},
    "cluster dev": {"--directory": "/dev/null/x", "--nodes": "0"},
    "key": {"principal": "ann", "identity": "ann"},
    "archive": {"directory": "/dev/null/x"},
    "log": {"directory": "/dev/null/x"},
}
# Odd values that make sense all the same. The others are refused.
NAME = {"-1", HUGE}
TEXT = {"-1", "a=b", "", HUGE, DIGITS}
PATH = {"-1", "a=b", "", HUGE, UNICODE}
LARGE = {HUGE}
# What it is of every command, or of one.
VALID: dict[str, set[str]] = {
    "name": NAME,
    "--group": NAME,
    "--name": NAME,
    "--key": TEXT,
    "--reason": TEXT,
    "--server-key": {"-1", "a=b", HUGE},
    "--state-dir": PATH,
    "publish value": TEXT | {UNICODE},
    "publish --header": {"a=b"},
    "schedule create value": TEXT | {UNICODE},
    "consume --max": LARGE,
    "read --limit": LARGE,
    "read --to-offset": LARGE,
    "group set --set": {"max_retries=5"},
    "topic create --data": PATH - {""},
    "key create principal": {"-1", "a=b", HUGE},
    "key create --file": PATH - {""},
    # They are shown, and not used.
    **dict.fromkeys(
        (
            f"config show --{name}"
            for name in ("data", "access", "tls-cert", "telemetry-service-name", "archive-dir", "cluster-name")
        ),
        {*ODD} - {""},
    ),
}
# Nothing of what it is given can be wrong, and it takes a while.
LONG = {"demo"}


COMMAND = get_command(app)


def leaves(command: Any = COMMAND, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield " ".join(path), command
        return
    for name, each in command.commands.items():
        yield from leaves(each, (*path, name))


COMMANDS = dict(leaves())
# Where an option or argument is first, by its help and its words.
FIRST: dict[tuple[Any, ...], str] = {}
for _name, _command in sorted(COMMANDS.items()):
    for _parameter in _command.params:
        FIRST.setdefault((_parameter.help, *_parameter.opts), _name)


def given(name: str) -> dict[str, str]:
    """For this command, and for all of its group, if it has such."""
    whole = {**GIVEN.get(name.partition(" ")[0], {}), **GIVEN.get(name, {})}
    known = {each for parameter in COMMANDS[name].params for each in words(parameter)}
    return {word: value for word, value in whole.items() if word in known}


def words(parameter: Any) -> list[str]:
    return [parameter.name] if parameter.param_type_name == "argument" else [*parameter.opts]


def line(name: str, changed: Any = None, odd: str = "") -> list[str]:
    """The command with all that it is given, and one parameter changed."""
    parts, arguments = name.split(), []
    values = given(name)
    for parameter in COMMANDS[name].params:
        is_changed = parameter is changed
        word = next((each for each in words(parameter) if each in values), words(parameter)[0])
        value = odd if is_changed else values.get(word)
        if value is None:
            continue
        if parameter.param_type_name == "argument":
            arguments.append(value)
        elif getattr(parameter, "is_flag", False) and not is_changed:
            parts.append(word)
        else:
            parts.append(f"{word}={value}" if word.startswith("--") else word + value)
    return [*parts, "--", *arguments]


@pytest.fixture
def orders(q: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    """Something to ask for, and a directory of its own for what commands write."""
    monkeypatch.chdir(tmp_path)
    # Otherwise it is made anew for each call, which takes longer than most of them.
    monkeypatch.setattr("penstock.cli.app.get_command", lambda app: COMMAND)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    q.create_topic("orders", 1, exist_ok=True)
    q.publish("orders", b"x")
    q.publish("orders", b"later", delay="1h")
    q.create_group("g")
    return q


def check(arguments: list[str], monkeypatch: pytest.MonkeyPatch, *, is_valid: bool = False) -> None:
    """That the command ends with one line of error; or with an answer, if what it is given makes sense."""
    err = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), "utf-8"))
    monkeypatch.setattr("sys.stderr", io.TextIOWrapper(err, "utf-8", write_through=True))
    with pytest.raises(SystemExit) as exited:
        main(arguments)
    lines = err.getvalue().decode().splitlines(keepends=True)
    told = "".join(line for line in lines if not line.startswith("warning: "))
    assert exited.value.code in ((0, 1, 2) if is_valid else (2,)), (arguments, told)
    if exited.value.code == 2:
        assert (told[:7], told.count("\n")) == ("error: ", 1), (arguments, told)


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - LONG))
@pytest.mark.usefixtures("orders")
def test_odd_input_gets_one_line_of_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for parameter in COMMANDS[name].params:
        odd = ODD + SETTINGS if "--set" in parameter.opts else ODD
        # What several commands have in common is tried in full with the first of them.
        is_first = name == FIRST[parameter.help, *parameter.opts]
        for value in odd if is_first else odd[-2:]:
            is_valid = any(value in VALID.get(word, VALID.get(f"{name} {word}", ())) for word in words(parameter))
            check(line(name, parameter, value), monkeypatch, is_valid=is_valid)


@pytest.mark.usefixtures("orders")
def test_no_command_needs_a_stdin_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    for name in sorted(COMMANDS.keys() - LONG):
        check(line(name), monkeypatch, is_valid=True)
    for option in ("--raw", "--lines", "--json-lines"):
        check(["publish", "orders", option], monkeypatch)


def test_whatever_is_tried_is_there() -> None:
    assert all(any(f"{each} ".startswith(f"{name} ") for each in COMMANDS) for name in [*GIVEN, *LONG])
    known = {each for name in COMMANDS for parameter in COMMANDS[name].params for each in words(parameter)}
    assert all(what.split()[-1] in known for what in VALID)
