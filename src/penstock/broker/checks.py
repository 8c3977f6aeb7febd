"""What is asked of arguments, where several ask the same."""

from __future__ import annotations

from typing import TypeGuard

from penstock.clock import TIME_MAX_US
from penstock.errors import InvalidInput


def is_int(value: object) -> TypeGuard[int]:
    """A number, and not one of the two that Python takes for numbers."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_time(time_us: object) -> None:
    if not is_int(time_us) or not 0 <= time_us <= TIME_MAX_US:
        raise InvalidInput(f"a time is microseconds within 1970–9999, not {time_us!r}")
