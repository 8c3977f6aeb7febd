"""What people type: settings, headers, times, sizes. What can't be understood is refused before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.clock import SystemClock
from penstock.durations import duration_us
from penstock.errors import InvalidInput
from penstock.limits import KIB, MIB

_HOUR_US = 3_600_000_000
# Python refuses to read numbers of more than 4,300 digits.
_SIZE = re.compile(r"([0-9]{1,30}) ?(|B|KB|MB|GB|TB|KiB|MiB|GiB|TiB)")
_SIZES = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": KIB,
    "MiB": MIB,
    "GiB": MIB * KIB,
    "TiB": MIB * MIB,
}
_NUMBER = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,30})?")
_OFFSET = re.compile(r"[0-9]{1,30}")


def pairs_given(option: str, texts: Sequence[str] | None) -> list[tuple[str, str]]:
    """name=value, each."""
    found = []
    for text in texts or ():
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise InvalidInput(f"{option} is name=value, not {text!r}", argument=option)
        found.append((name, value))
    return found


def settings_given(
    texts: Sequence[str] | None, flags: Mapping[str, Any], check: Callable[[Mapping[str, Any]], object]
) -> dict[str, Any]:
    """Those of --set, and those with flags of their own, which must not say the same.

    `check` refuses names that are no settings: they may be those of other arguments of the call that takes these.
    """
    found = {name: _setting(name, value) for name, value in pairs_given("--set", texts)}
    check(found)
    for name in flags:
        if name in found:
            raise InvalidInput(f"{name} is set twice: by --set and by its own flag", argument=name)
    return {**found, **flags}


def flags_given(**flags: Any) -> dict[str, Any]:
    """Without those that were not."""
    return {name: value for name, value in flags.items() if value is not None}


def _setting(name: str, text: str) -> Any:
    # "none" is a word for some settings, and the lack of a bound for others.
    if text == "none" and (name.startswith("retention.") or name in ("replicas", "min_isr")):
        return None
    if name == "retention.bytes":
        return size_given(name, text)
    if text in ("true", "false"):
        return text == "true"
    if _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    return text


def retention_given(age: str | None, size: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if age is not None:
        found["retention.hours"] = None if age == "none" else _hours(age)
    if size is not None:
        found["retention.bytes"] = None if size == "none" else size_given("--retention-bytes", size)
    return found


def _hours(age: str) -> float | int:
    age_us = duration_given("--retention", age)
    return age_us // _HOUR_US if age_us % _HOUR_US == 0 else age_us / _HOUR_US


def size_given(name: str, text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise InvalidInput(f"{name} is a number of bytes, or as in 500MB or 10GiB, not {text!r}", argument=name)
    return int(match[1]) * _SIZES[match[2]]


def duration_given(name: str, text: str) -> int:
    try:
        return duration_us(text)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error.message}", argument=name) from error


def names_given(option: str, text: str | None) -> list[str]:
    names = [] if text is None else [name.strip() for name in text.split(",")]
    if not all(names):
        raise InvalidInput(f"{option} is names with commas between them, as in a,b, not {text!r}", argument=option)
    return names


def past_given(name: str, text: str) -> str | int:
    """A time, or a duration for so long ago."""
    if not text[:1].isdigit() or "-" in text:
        return text
    return SystemClock().now_us() - duration_given(name, text)


def maybe_past_given(name: str, text: str | None) -> str | int | None:
    return None if text is None else past_given(name, text)


def offset_given(text: str) -> str | int:
    """A number, or a word that somebody else knows."""
    return int(text) if _OFFSET.fullmatch(text) else text
