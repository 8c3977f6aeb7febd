"""How people write time: "1h30m" for how long, "2026-01-14T15:00:00Z" for when. Inside, both are microseconds.

A bare number is refused as a duration, whether of seconds or milliseconds: guessing the unit wrong loses messages. Only
0 is 0 in every unit. As a time, a number is microseconds since the epoch, as all times are given out; those before
March 1973 are refused, because today's seconds and milliseconds are among them. A time without an offset is refused.
Nothing passes through a float, so "0.1s" is 100,000 µs exactly.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Literal

from penstock.clock import TIME_MAX_US
from penstock.errors import InvalidInput

TEXT_LENGTH_MAX = 64

# From large to small, the order in which they are written. The micro sign has two code points.
_UNITS = {
    "w": 604_800_000_000,
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
    "\N{MICRO SIGN}s": 1,
    "\N{GREEK SMALL LETTER MU}s": 1,
}
_PART = re.compile(r"([0-9]+)(?:\.([0-9]+))?([^0-9.]*)")
_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# In milliseconds this is the year 5138, in seconds it is later still.
TIME_AS_NUMBER_MIN = 100_000_000_000_000


def duration_us(value: str | timedelta | Literal[0]) -> int:
    """Microseconds in "2w", "1h30m", "1.5s", "250ms" or a timedelta; units from large to small, each once."""
    if isinstance(value, timedelta):
        duration = value // _MICROSECOND
    elif isinstance(value, str):
        duration = 0 if value == "0" else _sum_of_parts(value)
    elif type(value) is int and value == 0:
        duration = 0
    else:
        raise InvalidInput(f'a duration needs its unit, as in "30s" or "5m": {_shown(value)} does not say which')
    if duration < 0:
        raise _negative(value)
    if duration > TIME_MAX_US:
        raise InvalidInput(f"a duration must be from 0 to {duration_text(TIME_MAX_US)}, not {_shown(value)}")
    return duration


def duration_text(us: int) -> str:
    """What `duration_us` reads back as the same number: days, hours and minutes, the rest in the unit it reaches.

    Weeks are read but not written: retention is thought of as 7 or 30 days, not as 4 weeks and 2 days.
    """
    assert 0 <= us <= TIME_MAX_US
    text = ""
    for unit in ("d", "h", "m"):
        count, us = divmod(us, _UNITS[unit])
        text += f"{count}{unit}" if count else ""
    if not us:
        return text or "0s"
    unit = "s" if us >= 1_000_000 else "ms" if us >= 1_000 else "us"
    whole, rest = divmod(us, _UNITS[unit])
    digits = len(str(_UNITS[unit])) - 1
    return text + (f"{whole}.{rest:0{digits}d}".rstrip("0") if rest else str(whole)) + unit


def time_us(value: str | datetime | int) -> int:
    """Microseconds since the epoch at an RFC 3339 time, an aware datetime, or that number itself.

    Digits beyond the microsecond are cut off, as Python does: Go and Java write nine whether they mean them or not.
    """
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise InvalidInput(f"a datetime needs a time zone, such as datetime.UTC: {_shown(value)} has none")
        time = (value - _EPOCH) // _MICROSECOND
    elif isinstance(value, str):
        time = _time_of_text(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        time = _time_of_number(value)
    else:
        raise InvalidInput(f'a time is written as "2026-01-14T15:00:00Z" (RFC 3339), not as {_shown(value)}')
    if not 0 <= time <= TIME_MAX_US:
        raise InvalidInput(f"a time must be within 1970–9999, not {_shown(value)}")
    return time


def _time_of_number(time: int) -> int:
    if not TIME_AS_NUMBER_MIN <= time <= TIME_MAX_US:
        raise InvalidInput(
            f"a time as a number is microseconds since 1970, from {TIME_AS_NUMBER_MIN} (1973) to {TIME_MAX_US} (9999), "
            f'not {_shown(time)}; as text it is "2026-01-14T15:00:00Z" (RFC 3339)'
        )
    return time


def _negative(value: object) -> InvalidInput:
    return InvalidInput(f"a duration can't be negative: {_shown(value)}")


def _sum_of_parts(text: str) -> int:
    duration, position, smallest = 0, 0, TIME_MAX_US
    while position < len(text) <= TEXT_LENGTH_MAX and (part := _PART.match(text, position)):
        whole, fraction, unit = part[1], part[2] or "", part[3]
        if unit not in _UNITS:
            reason = f"there is no unit {unit!r}" if unit else "a number has no unit"
            raise InvalidInput(f"duration {_shown(text)}: {reason}; write w, d, h, m, s, ms or us")
        if _UNITS[unit] >= smallest:
            raise InvalidInput(f"duration {_shown(text)}: units go from large to small, each once, as in 1h30m")
        smallest = _UNITS[unit]
        count, finer = divmod(int(whole + fraction) * smallest, 10 ** len(fraction))
        if finer:
            raise InvalidInput(f"duration {_shown(text)} is finer than a microsecond")
        duration += count
        position = part.end()
    if text[:1] == "-" and _PART.match(text, 1):
        raise _negative(text)
    if not text or position < len(text):
        raise InvalidInput(f'a duration is written as "30s", "5m" or "1h30m", not {_shown(text)}')
    return duration


def _time_of_text(text: str) -> int:
    match = _TIME.fullmatch(text) if len(text) <= TEXT_LENGTH_MAX else None
    if match is None:
        raise InvalidInput(f'a time is written as "2026-01-14T15:00:00Z" (RFC 3339), not {_shown(text)}')
    *fields, fraction, sign, hours, minutes = match.groups()
    offset_minutes = int(hours) * 60 + int(minutes) if sign else 0
    if sign and not (int(hours) < 24 and int(minutes) < 60):
        raise InvalidInput(f"time {_shown(text)}: an offset is at most 23:59")
    year, month, day, hour, minute, second = map(int, fields)
    try:
        local = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError as error:
        raise InvalidInput(f"time {_shown(text)}: {error}") from error
    # As integers, because with its offset applied a valid time may be one that a datetime can't hold.
    offset_us = (-offset_minutes if sign == "-" else offset_minutes) * _UNITS["m"]
    return (local - _EPOCH) // _MICROSECOND + int((fraction or "")[:6].ljust(6, "0")) - offset_us


def _shown(value: object) -> str:
    """Short, whatever it is: it comes from outside and goes into a sentence."""
    if isinstance(value, str):
        return repr(value if len(value) <= TEXT_LENGTH_MAX else value[:TEXT_LENGTH_MAX] + "…")
    if isinstance(value, timedelta):
        us = value // _MICROSECOND
        return ("-" if us < 0 else "") + (duration_text(abs(us)) if abs(us) <= TIME_MAX_US else f"{abs(us)}us")
    if isinstance(value, float | datetime) or (isinstance(value, int) and abs(value) < 1 << 64):
        return repr(value)
    return f"a value of type {type(value).__name__}"
