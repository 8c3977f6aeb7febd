"""How a ring is to behave. Checked once, when it is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, Literal, get_args

from penstock.durations import duration_us
from penstock.errors import InvalidInput, InvalidSetting

WhenFull = Literal["block", "reject", "drop_oldest"]
# A number alone does not say which unit it is in; None is for ever.
Duration = str | timedelta | Literal[0]

CAPACITY_MAX = 1 << 28
ATTEMPTS_MAX = 1_000
_BACKOFF = {"initial": "100ms", "factor": 2, "max": "1m"}


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long after its n-th attempt a job waits: the same in all groups of the broker."""

    initial_us: int
    factor: float
    max_us: int

    def delay_us(self, attempts: int) -> int:
        try:
            return min(int(self.initial_us * self.factor ** (attempts - 1)), self.max_us)
        except OverflowError:
            return self.max_us


@dataclass(frozen=True, slots=True)
class RingSettings:
    capacity: int
    when_full: WhenFull
    max_attempts: int
    backoff: Backoff
    failed_max: int

    @classmethod
    def of(
        cls, *, capacity: int, when_full: str, max_attempts: int, backoff: Mapping[str, Any] | None, failed_max: int
    ) -> RingSettings:
        if when_full not in get_args(WhenFull):
            raise InvalidSetting(f'when_full is "block", "reject" or "drop_oldest", not {when_full!r}')
        return cls(
            whole("capacity", capacity, 1, CAPACITY_MAX),
            when_full,  # type: ignore[arg-type]
            whole("max_attempts", max_attempts, 1, ATTEMPTS_MAX),
            _backoff(backoff),
            whole("failed_max", failed_max, 0, CAPACITY_MAX),
        )


def whole(name: str, value: object, lowest: int, highest: int) -> int:
    if type(value) is not int or not lowest <= value <= highest:
        raise InvalidSetting(f"{name} is a whole number from {lowest} to {highest:,}, not {value!r}")
    return value


def _backoff(given: Mapping[str, Any] | None) -> Backoff:
    if given is not None and not isinstance(given, Mapping):
        raise InvalidSetting(f"backoff has initial, factor and max; it is not a value of type {type(given).__name__}")
    settings = {**_BACKOFF, **(given or {})}
    if unknown := sorted(set(settings) - set(_BACKOFF), key=repr):
        raise InvalidSetting(f"backoff has initial, factor and max, not {unknown[0]!r}")
    factor = settings["factor"]
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= 100:
        raise InvalidSetting(f"backoff's factor is a number from 1 to 100, not {factor!r}")
    initial, longest = (duration_setting(f"backoff's {name}", settings[name]) for name in ("initial", "max"))
    return Backoff(initial, float(factor), longest)


def duration_setting(name: str, value: Any) -> int:
    """Microseconds; InvalidSetting says which one it is."""
    try:
        return duration_us(value)
    except InvalidInput as error:
        raise InvalidSetting(f"{name}: {error.message}") from None


def seconds(duration: Duration) -> float:
    return _seconds_of_text(duration) if type(duration) is str else duration_us(duration) / 1e6


@lru_cache(maxsize=256)
def _seconds_of_text(duration: str) -> float:
    """Kept: the same few are asked for again and again, in the middle of everything."""
    return duration_us(duration) / 1e6


def listed(jobs: Iterable[Any]) -> list[Any]:
    if isinstance(jobs, str | bytes | bytearray | Mapping) or not isinstance(jobs, Iterable):
        raise InvalidInput(f"put_many takes a list of jobs, not a value of type {type(jobs).__name__}; `put` takes one")
    # A list of our own: whoever waits for room is not to find another one.
    return list(jobs)
