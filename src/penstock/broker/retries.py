"""How long to wait before a message is tried again, and when to stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.clock import TIME_MAX_US
from penstock.errors import InvalidSetting

SECOND_US = 1_000_000
RETRIES_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential, with a cap and jitter: after attempt n, `initial` × `factor`ⁿ⁻¹, at most `longest`, ± `jitter`.

    SQS makes a message visible at once, Celery waits 3 minutes, most clients start at 1 s and double.
    """

    max_retries: int = 3
    initial_us: int = 1 * SECOND_US
    factor: float = 2.0
    longest_us: int = 600 * SECOND_US
    jitter: float = 0.1
    # A number from 0 to 1, another one each time: it decides where within the jitter a delay falls.
    dice: Callable[[], float] = field(default=lambda: 0.5, compare=False)

    def __post_init__(self) -> None:
        for name, valid in (
            ("max_retries", 0 <= self.max_retries <= RETRIES_MAX),
            ("initial_us", 0 <= self.initial_us <= TIME_MAX_US),
            ("factor", 1 <= self.factor <= 100),
            ("longest_us", self.initial_us <= self.longest_us <= TIME_MAX_US),
            ("jitter", 0 <= self.jitter < 1),
        ):
            if not valid:
                raise InvalidSetting(f"{name} is out of its range: {getattr(self, name)}", setting=name)

    def delay_us(self, attempt: int) -> int:
        """After the attempt of this number, from 1 on, failed."""
        # A large exponent would overflow a float long after the cap has been reached.
        delay = min(self.initial_us * self.factor ** min(attempt - 1, 100), self.longest_us)
        return int(delay * (1 - self.jitter + 2 * self.jitter * self.dice()))
