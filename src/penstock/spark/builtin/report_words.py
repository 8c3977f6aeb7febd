"""How figures are written for people, on a page and in sentences."""

from __future__ import annotations

from datetime import UTC, datetime

NONE = "–"
_KEY_MAX = 48
_SPANS = ((1_000, 1, "µs"), (1_000_000, 1_000, "ms"), (60_000_000, 1_000_000, "s"), (3_600_000_000, 60_000_000, "min"))
_SIZES = ("bytes", "KiB", "MiB", "GiB", "TiB")


def count(number: int | None) -> str:
    return NONE if number is None else f"{number:,}"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def span(us: int | None) -> str:
    """With three digits."""
    if us is None:
        return NONE
    for less_than, size, unit in _SPANS:
        if us < less_than:
            return f"{digits(us / size)} {unit}"
    return f"{digits(us / 3_600_000_000)} h"


def digits(number: float) -> str:
    if number >= 100 or number == int(number):
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def percent(share: float | None) -> str:
    if share is None:
        return NONE
    if 0 < share < 0.0001:
        return "< 0.01 %"
    return f"{share * 100:.2f} %" if 0 < share < 0.01 else f"{share * 100:.1f} %"


def rate(per_s: float | None) -> str:
    return NONE if per_s is None else f"{digits(per_s)}/s"


def size(number: int) -> str:
    value = float(number)
    for unit in _SIZES[:-1]:
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {_SIZES[-1]}"


def time(at: datetime | None) -> str:
    return NONE if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def key(data: bytes) -> str:
    """As text if it can be read, cut if it is long: keys are what producers make them."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    shown = text if text.isprintable() and text else "0x" + data.hex()
    return shown if len(shown) <= _KEY_MAX else f"{shown[:_KEY_MAX]}… ({counted(len(data), 'byte')})"
