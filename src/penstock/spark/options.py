"""The options of `format("penstock")` as Spark hands them over: text, in names whose case does not matter.

Each is read by what it must be. What can't be is refused before anything runs, with its value and what is allowed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from penstock.durations import duration_us
from penstock.errors import InvalidInput, InvalidSetting
from penstock.spark.connecting import RETRY_US, Connecting

CONNECTION = ("url", "key", "keyFile", "tls.ca", "tls.cert", "tls.key", "retryFor")
# What Spark puts beside them for purposes of its own.
_SPARKS = frozenset({"checkpointlocation", "queryname", "outputmode", "serialization.format", "provider", "owner"})
# So begin the options of CREATE TABLE, which come without it, too.
_OF_A_TABLE = "option."
_SHOWN_MAX = 200


class Options:
    """Those that were given, in the names they are documented by."""

    def __init__(self, given: Mapping[str, str], known: Iterable[str], *, use: str) -> None:
        """`known` are those for this use ("reading", "writing") besides the ones about the connection."""
        names = {name.lower(): name for name in (*CONNECTION, *known)}
        self._given: dict[str, str] = {}
        for name, value in given.items():
            lower = name.lower()
            if lower in names:
                self._given[names[lower]] = value
            elif lower not in _SPARKS:
                raise _unknown(name, names, use)

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def given(self, names: Iterable[str]) -> list[str]:
        """Which of these there are."""
        return [name for name in names if name in self._given]

    def text(self, name: str) -> str | None:
        value = self._given.get(name)
        if value is not None and not value.strip():
            raise refused(name, value, "some text")
        return value

    def whole(self, name: str, least: int = 1) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not re.fullmatch(r"[0-9]{1,18}", value.strip()) or int(value) < least:
            raise refused(name, value, f"a whole number from {least} on")
        return int(value)

    def flag(self, name: str, default: bool) -> bool:
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        value = self.text(name)
        if value is None:
            return default
        if value.strip().lower() not in allowed:
            raise refused(name, value, " or ".join(allowed))
        return value.strip().lower()

    def duration_us(self, name: str) -> int | None:
        value = self.text(name)
        try:
            return None if value is None else duration_us(value.strip())
        except InvalidInput as error:
            raise refused(name, value, f'a duration as in "30s" or "15m" ({error.message})') from error

    def json(self, name: str, example: str) -> dict[str, Any] | None:
        """An object; what must be in it is for the caller to say."""
        value = self.text(name)
        if value is None:
            return None
        try:
            found = json.loads(value)
        except ValueError as error:
            raise refused(name, value, f"JSON as in {example} ({error})") from error
        if not isinstance(found, dict) or not found:
            raise refused(name, value, f"JSON as in {example}")
        return found

    def connecting(self) -> Connecting:
        """Where the broker is."""
        url = self.text("url")
        if url is None:
            raise InvalidSetting("the option url is missing: where the broker is, as in penstock://localhost:7420")
        ca, cert, key = (self.text(name) for name in ("tls.ca", "tls.cert", "tls.key"))
        retry_us = self.duration_us("retryFor")
        found = Connecting(url.strip(), self._key(), ca, cert, key, RETRY_US if retry_us is None else retry_us)
        try:
            found.check()
        except InvalidSetting:
            raise
        except InvalidInput as error:
            raise InvalidSetting(f"the option url: {error.message}") from error
        return found

    def _key(self) -> str | None:
        """From a file it is read here, on the driver. Spark shows options, and a file's name is no secret."""
        name = self.text("keyFile")
        if name is None:
            return self.text("key")
        if "key" in self:
            raise InvalidSetting("there are both key and keyFile: name one of them")
        try:
            words = Path(name).read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is no text"
            raise InvalidSetting(f"the option keyFile: {name} can't be read on the driver: {why}") from error
        if len(words) != 1:
            raise InvalidSetting(
                f"the option keyFile: {name} has {len(words)} words; it must have a key and nothing else"
            )
        return words[0]


def refused(name: str, value: object, allowed: str) -> InvalidSetting:
    shown = repr(value)
    shown = shown if len(shown) <= _SHOWN_MAX else shown[:_SHOWN_MAX] + "…"
    return InvalidSetting(f"the option {name} is {allowed}, not {shown}", option=name)


def _unknown(name: str, names: Mapping[str, str], use: str) -> InvalidSetting:
    near = get_close_matches(name.lower(), names, n=1)
    if name.lower() == "path":
        told = "topics are not named by a path: load() and save() take none"
    elif name.lower().startswith(_OF_A_TABLE):
        told = "Spark forgets the options of CREATE TABLE when it reads such a table: CREATE TEMPORARY VIEW keeps them"
    elif near:
        told = f"did you mean {names[near[0]]}?"
    else:
        told = f"there are {', '.join(sorted(names.values()))}"
    return InvalidSetting(f"there is no option {name!r} for {use}; {told}", option=name)
