"""Keys and passwords in argv: every command warns, wherever its option for a key came from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from cli.support import Run
from penstock.cli.app import app
from penstock.cli.exposed import is_key

# Options that are called after a key or a secret, and take none.
OTHERS = {
    "--key": "of a message",
    "-k": "of a message",
    "--keys": "a number",
    "--tls-key": "a file",
    "--etcd-key": "a file",
}


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))
    if not hasattr(command, "commands"):
        yield path, command


COMMANDS = dict(commands(get_command(app)))
WITH_KEYS = [
    (path, option)
    for path, command in COMMANDS.items()
    for param in command.params
    if is_key(param)
    for option in param.opts
]


@pytest.mark.parametrize(
    ("path", "option"), WITH_KEYS, ids=lambda each: each if isinstance(each, str) else " ".join(each)
)
def test_a_key_in_argv_is_warned_of(path: tuple[str, ...], option: str, run: Run) -> None:
    for given in ([option, "pk_1_secret"], [f"{option}=pk_1_secret"]):
        # What is wrong with the rest does not matter.
        told = run(*path, *given, "--no-such-option").err
        assert f"warning: other users of this machine can see the key in {option}; use $PENSTOCK_" in told
        assert "secret" not in told
    assert "warning" not in run(*path, "--no-such-option").err


def test_every_option_that_could_carry_a_secret_is_known() -> None:
    found = {
        option
        for command in COMMANDS.values()
        for param in command.params
        if param.param_type_name == "option" and not is_key(param)
        for option in param.opts
        if re.search("key|secret|password|token", option)
    }
    assert found <= OTHERS.keys()
    assert ("pipeline", "archive") in dict(WITH_KEYS)
    assert len(WITH_KEYS) > 40


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["consume", "t", "--archive", "s3://id:secret@bucket/x"], "password in a URL"),
        (["serve", "--cluster", "http://root:secret@etcd:2379"], "password in a URL"),
        (["pipeline", "archive", "--to", "x", "--conf", "spark.hadoop.fs.s3a.secret.key=secret"], "secret in --conf"),
        (["pipeline", "archive", "--to", "x", "--conf", "spark.master=local"], None),
        (["publish", "t", "x", "--key", "of-a-message"], None),
        (["read", "t", "--server", "penstock://host:7420"], None),
        (["publish", "--server-key", ""], None),
        (["publish", "--server-key"], None),
    ],
)
def test_passwords_in_urls_and_settings_are_warned_of(arguments: list[str], told: str | None, run: Run) -> None:
    err = run(*arguments).err if arguments[-1] == "--server-key" else run(*arguments, "--no-such-option").err
    assert ("warning" in err) == (told is not None)
    assert told is None or f"can see the {told}" in err
