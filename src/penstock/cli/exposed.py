"""Keys and passwords on the command line: other users of the machine can read it, and the shell keeps it.

One look at what was given to any command, before it runs. A new option for a key is found by its metavar `KEY`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from penstock.cli.output import note

# A URL with a password: scheme://user:password@host.
_PASSWORD = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@:]*:[^\s/?#]+@", re.IGNORECASE)
# Settings of Spark (`--conf`).
_SECRET = re.compile(r"(secret|password|token|credential|account\.key|sas)[^=]*=.", re.IGNORECASE)


def warn_of_secrets(command: Any, arguments: Sequence[str]) -> None:
    """`command` is the Click command of the whole program."""
    for exposed, instead in _secrets(command, arguments):
        note(f"warning: other users of this machine can see the {exposed}; {instead} instead")


def _secrets(command: Any, arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    rest = list(arguments)
    while rest and (inner := getattr(command, "commands", {}).get(rest[0])) is not None:
        command = inner
        rest.pop(0)
    for param in command.params:
        for option in param.opts:
            values = list(_values(option, rest)) if option.startswith("--") else []
            if is_key(param) and any(values):
                yield f"key in {option}", f"use ${param.envvar or 'PENSTOCK_KEY'}"
            elif option == "--conf" and any(_SECRET.search(value) for value in values):
                yield "secret in --conf", "set it in spark-defaults.conf, or by the environment,"
    if any(_PASSWORD.search(argument) for argument in rest):
        yield "password in a URL", "pass it by the environment or a file"


def is_key(param: Any) -> bool:
    """Whether the parameter of a command is an option that takes a key to a broker."""
    return bool(param.param_type_name == "option" and param.metavar == "KEY")


def _values(option: str, arguments: Sequence[str]) -> Iterator[str]:
    for argument, following in zip_longest(arguments, arguments[1:], fillvalue=""):
        if argument == "--":
            return
        if argument == option:
            yield following
        elif argument.startswith(f"{option}="):
            yield argument.partition("=")[2]
