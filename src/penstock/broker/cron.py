"""When something recurs: the five fields of cron, a shortcut, or a fixed interval.

    */5 9-17 * * mon-fri      minute, hour, day of month, month, day of week (0 and 7 are Sunday)
    @hourly @daily @weekly @monthly @yearly
    every 90s                 or "@every 90s": whole intervals since the epoch, so nothing need be remembered

A line means what it means to Vixie cron. If both day fields are restricted, a day that matches either one will do; a
field that begins with `*` is not restricted, so `*/2 * mon` is a Monday on an odd day.

When clocks are changed:

  - A schedule names local times, and each of them fires once: at its first coming if it comes twice, and at the first
    moment after the gap if it is skipped.
  - A schedule for all 24 hours is for the hours that pass, not for their names: it fires whenever the local clock shows
    a matching time, in both runs of a repeated hour and never for a skipped one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from calendar import monthrange
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from penstock.clock import TIME_MAX_US
from penstock.durations import duration_text, duration_us
from penstock.errors import InvalidInput

# A list of all 60 minutes has 169 characters.
TEXT_LENGTH_MAX = 256
ZONE_LENGTH_MAX = 64
INTERVAL_MIN_US = SECOND_US = 1_000_000

_DAY_S = 86_400
_EPOCH = datetime(1970, 1, 1)
_EPOCH_DAY = _EPOCH.toordinal()
# The rarest day that can be written is a 29 February on one day of the week; across 2100 it is 40 years to the next.
_YEARS_MAX = 40
# The calendar ends a year early, so that any offset can be added to any time in it.
_YEAR_MAX = 9998
_END_S = (date(_YEAR_MAX + 1, 1, 1).toordinal() - _EPOCH_DAY) * _DAY_S
# No zone has changed its offset twice within a week since 1970, so looking this often misses no change.
_LOOK_S = 6 * _DAY_S

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_SHORTCUTS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


@dataclass(frozen=True, slots=True)
class Cron:
    """Made by `parse`. Two are equal if they were written alike for the same zone."""

    text: str
    timezone: str
    _zone: tzinfo = field(repr=False, compare=False)
    _interval_us: int = field(repr=False, compare=False)
    _calendar: _Calendar | None = field(repr=False, compare=False)

    @classmethod
    def parse(cls, text: str, timezone: str = "UTC") -> Cron:
        if not isinstance(text, str) or len(text) > TEXT_LENGTH_MAX or not text.isascii():
            raise InvalidInput(f"a schedule is a line of ASCII text, at most {TEXT_LENGTH_MAX} characters long")
        zone = _zone_named(timezone)
        words = text.split()
        text = " ".join(words)
        if words and words[0].lower() in ("every", "@every"):
            return cls(text, timezone, zone, _interval_us(text, words[1:]), None)
        if text.startswith("@"):
            if text.lower() not in _SHORTCUTS:
                raise InvalidInput(f"there is no schedule {text!r}; there are {', '.join(_SHORTCUTS)} and @every")
            words = _SHORTCUTS[text.lower()].split()
        if len(words) != 5:
            fields = "minute, hour, day of month, month, day of week"
            raise InvalidInput(f"a schedule has five fields ({fields}); {text!r} has {len(words)}")
        return cls(text, timezone, zone, 0, _Calendar.of(words))

    def next_after(self, time_us: int) -> int | None:
        """The first firing strictly after this time. None if there is none, or none before the year 9999."""
        assert 0 <= time_us <= TIME_MAX_US
        if self._calendar is None:
            due_us = (time_us // self._interval_us + 1) * self._interval_us
            return due_us if due_us <= TIME_MAX_US else None
        # Offsets and firings are whole seconds, so strictly after a second is strictly after all of it.
        moment = time_us // SECOND_US
        if moment >= _END_S:
            return None
        find = self._when_the_clock_shows if len(self._calendar.hours) == 24 else self._once_for_each_name
        due = find(self._calendar, moment)
        return None if due is None else due * SECOND_US

    # Below, a moment is in seconds since the epoch, and so is a local time, as if it were UTC's.

    def _once_for_each_name(self, calendar: _Calendar, moment: int) -> int | None:
        local = calendar.next_after(moment + self._offset(moment))
        # In the second run of a repeated hour, the rest of the hour's names have had their firing.
        while local is not None and self._first_coming(local) <= moment:
            local = calendar.next_after(local)
        return None if local is None else self._first_coming(local)

    def _when_the_clock_shows(self, calendar: _Calendar, moment: int) -> int | None:
        offset = self._offset(moment)
        while (local := calendar.next_after(moment + offset)) is not None:
            due = local - offset
            change = self._change_of_offset(moment, due, offset)
            if change is None:
                return due
            # What the clock shows at the change itself may match, too.
            moment, offset = change - 1, self._offset(change)
        return None

    def _offset(self, moment: int) -> int:
        return _seconds(datetime.fromtimestamp(moment, self._zone).utcoffset())

    def _first_coming(self, local: int) -> int:
        named = (_EPOCH + timedelta(seconds=local)).replace(tzinfo=self._zone)
        moment = local - _seconds(named.utcoffset())
        if moment + self._offset(moment) == local:
            return moment
        # It is skipped. PEP 495: by the offset before the gap it lies after the gap, by the one after it before.
        before = local - _seconds(named.replace(fold=1).utcoffset())
        return bisect_left(range(moment), True, lo=before, key=lambda at: at + self._offset(at) > local)

    def _change_of_offset(self, moment: int, due: int, offset: int) -> int | None:
        """The first second after `moment`, up to `due`, at which the offset is another one."""
        while moment < due:
            look = min(moment + _LOOK_S, due)
            if self._offset(look) != offset:
                return bisect_left(range(look), True, lo=moment + 1, key=lambda at: self._offset(at) != offset)
            moment = look
        return None


@dataclass(frozen=True, slots=True)
class _Calendar:
    """The five fields, each as the numbers it allows, on a clock that is never changed."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    either_day: bool

    @classmethod
    def of(cls, words: list[str]) -> _Calendar:
        minute, hour, day, month, weekday = words
        return cls(
            _numbers("minute", minute, 0, 59),
            _numbers("hour", hour, 0, 23),
            _numbers("day of month", day, 1, 31),
            _numbers("month", month, 1, 12, _MONTHS),
            tuple({number % 7 for number in _numbers("day of week", weekday, 0, 7, _WEEKDAYS)}),
            either_day=not day.startswith("*") and not weekday.startswith("*"),
        )

    def next_after(self, local: int) -> int | None:
        """The first matching minute after this local time."""
        day, second = divmod(local, _DAY_S)
        time = self._time_from(second // 60 + 1)
        found = self._day_from(day if time is not None else day + 1)
        if found is None:
            return None
        if time is None or found > day:
            time = (self.hours[0] * 60 + self.minutes[0]) * 60
        return found * _DAY_S + time

    def _time_from(self, minute_of_day: int) -> int | None:
        """The first matching second of a day, at this minute or later."""
        hour, minute = divmod(minute_of_day, 60)
        if hour in self.hours and minute <= self.minutes[-1]:
            return (hour * 60 + self.minutes[bisect_left(self.minutes, minute)]) * 60
        later = bisect_right(self.hours, hour)
        return (self.hours[later] * 60 + self.minutes[0]) * 60 if later < len(self.hours) else None

    def _day_from(self, day: int) -> int | None:
        """The first matching day, this one or later, in days since the epoch."""
        start = date.fromordinal(_EPOCH_DAY + day)
        for year in range(start.year, min(start.year + _YEARS_MAX, _YEAR_MAX) + 1):
            for month in self.months:
                if (year, month) < (start.year, start.month):
                    continue
                monday_is_0, length = monthrange(year, month)
                first = start.day if (year, month) == (start.year, start.month) else 1
                for number in range(first, length + 1):
                    if self._is_due(number, (monday_is_0 + number) % 7):
                        return date(year, month, number).toordinal() - _EPOCH_DAY
        return None

    def _is_due(self, day: int, weekday: int) -> bool:
        if self.either_day:
            return day in self.days or weekday in self.weekdays
        return day in self.days and weekday in self.weekdays


def _numbers(name: str, text: str, low: int, high: int, names: tuple[str, ...] = ()) -> tuple[int, ...]:
    """The numbers that a list of `*`, `a`, `a-b`, `*/step` and `a-b/step` allows."""

    def number(word: str) -> int:
        if word in names:
            return low + names.index(word)
        if word.isdecimal() and len(word) <= 2 and low <= int(word) <= high:
            return int(word)
        also = f" or {names[0]} to {names[-1]}" if names else ""
        raise refused(f"{word!r} is not a number from {low} to {high}{also}")

    def refused(reason: str) -> InvalidInput:
        return InvalidInput(f"the {name} of a schedule can't be {text!r}: {reason}", field=name)

    allowed: set[int] = set()
    for item in text.lower().split(","):
        span, slash, step = item.partition("/")
        first, dash, last = span.partition("-")
        begin, end = (low, high) if span == "*" else (number(first), number(last if dash else first))
        if names is _WEEKDAYS and begin > end == 0:
            # The Sunday that ends a range is the one after, as in fri-sun.
            end = 7
        if begin > end:
            raise refused(f"{span} runs backwards; write it as two ranges")
        if slash and not dash and span != "*":
            raise refused(f"a step needs a range, as in {first}-{high}/{step or 5}")
        # A step past the end, such as */90 minutes, would quietly mean once.
        if slash and not (step.isdecimal() and len(step) <= 2 and 1 <= int(step) <= high):
            raise refused(f"{step!r} is not a step from 1 to {high}")
        allowed.update(range(begin, end + 1, int(step) if slash else 1))
    return tuple(sorted(allowed))


def _interval_us(text: str, words: list[str]) -> int:
    if len(words) != 1:
        raise InvalidInput(f'an interval is written as "every 90s", not {text!r}')
    interval_us = duration_us(words[0])
    if interval_us < INTERVAL_MIN_US:
        raise InvalidInput(f"an interval is at least {duration_text(INTERVAL_MIN_US)}, not {words[0]!r}")
    return interval_us


def _zone_named(name: str) -> tzinfo:
    if name == "UTC":
        # It needs no data, so the default works on machines that have none.
        return UTC
    if not isinstance(name, str) or len(name) > ZONE_LENGTH_MAX:
        raise InvalidInput('a time zone is a name such as "Europe/Berlin"')
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        # Besides unknown ones: paths that lead elsewhere, and directories and other files among the data.
        raise InvalidInput(f"this machine knows no time zone {name!r}") from error


def _seconds(offset: timedelta | None) -> int:
    assert offset is not None
    return offset.days * _DAY_S + offset.seconds
