"""Schedules against tables of known firings, and against a model that looks at the clock every minute."""

from __future__ import annotations

import pickle
import sys
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.cron import TEXT_LENGTH_MAX, Cron
from penstock.clock import TIME_MAX_US
from penstock.durations import time_us
from penstock.errors import InvalidInput

SECOND_US = 1_000_000
MINUTE = timedelta(minutes=1)


def firings(text: str, after: str, count: int, timezone: str = "UTC") -> list[str]:
    """In local time, as "2026-01-14 15:00+01:00"; `after` is RFC 3339."""
    cron, at, found = Cron.parse(text, timezone), time_us(after), []
    for _ in range(count):
        due = cron.next_after(at)
        assert due is not None
        assert due > at
        found.append(datetime.fromtimestamp(due // SECOND_US, ZoneInfo(timezone)).isoformat(" ", "minutes"))
        at = due
    return found


def times(text: str, after: str, count: int, timezone: str = "UTC") -> list[str]:
    """The same without the date, for what happens within a day."""
    return [firing[11:] for firing in firings(text, after, count, timezone)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # After Wednesday, 14 January 2026, 15:00 UTC.
        ("* * * * *", ["01-14 15:01", "01-14 15:02"]),
        ("*/5 * * * *", ["01-14 15:05", "01-14 15:10"]),
        ("0 * * * *", ["01-14 16:00", "01-14 17:00"]),
        ("0 15 * * *", ["01-15 15:00", "01-16 15:00"]),
        ("*/5 9-17 * * mon-fri", ["01-14 15:05", "01-14 15:10"]),
        ("30 9,12-14/2,23 * * *", ["01-14 23:30", "01-15 09:30", "01-15 12:30", "01-15 14:30", "01-15 23:30"]),
        ("0 0 1 * *", ["02-01 00:00", "03-01 00:00"]),
        ("0 0 31 * *", ["01-31 00:00", "03-31 00:00", "05-31 00:00"]),
        ("0 0 1 Feb,DEC *", ["02-01 00:00", "12-01 00:00"]),
        ("0 0 1 feb-apr *", ["02-01 00:00", "03-01 00:00", "04-01 00:00"]),
        ("0 0 * * 0", ["01-18 00:00", "01-25 00:00"]),
        ("0 0 * * 7", ["01-18 00:00", "01-25 00:00"]),
        ("0 0 * * sun", ["01-18 00:00", "01-25 00:00"]),
        ("0 0 * * fri-sun", ["01-16 00:00", "01-17 00:00", "01-18 00:00", "01-23 00:00"]),
        ("0 0 * * 5-7", ["01-16 00:00", "01-17 00:00", "01-18 00:00", "01-23 00:00"]),
        ("0 0 * * sun-mon", ["01-18 00:00", "01-19 00:00", "01-25 00:00"]),
        ("0 0 * * sun-sun", ["01-18 00:00", "01-25 00:00"]),
        ("0 0 * * 0-7", ["01-15 00:00", "01-16 00:00"]),
        ("59 23 31 12 *", ["12-31 23:59"]),
        ("  0\t0  1 1   * ", ["01-01 00:00"]),
        ("@hourly", ["01-14 16:00", "01-14 17:00"]),
        ("@daily", ["01-15 00:00", "01-16 00:00"]),
        ("@midnight", ["01-15 00:00", "01-16 00:00"]),
        ("@weekly", ["01-18 00:00", "01-25 00:00"]),
        ("@monthly", ["02-01 00:00", "03-01 00:00"]),
        ("@Yearly", ["01-01 00:00", "01-01 00:00"]),
        ("@annually", ["01-01 00:00", "01-01 00:00"]),
        ("every 5m", ["01-14 15:05", "01-14 15:10"]),
        ("@every 1h30m", ["01-14 16:30", "01-14 18:00"]),
        ("EVERY 1d", ["01-15 00:00", "01-16 00:00"]),
    ],
)
def test_a_schedule_fires_when_cron_would(text: str, expected: list[str]) -> None:
    found = firings(text, "2026-01-14T15:00:00Z", len(expected))
    assert [firing[5:16] for firing in found] == expected


def test_if_both_day_fields_are_restricted_either_one_will_do() -> None:
    assert [day[:10] for day in firings("0 0 13 * fri", "2026-02-01T00:00:00Z", 6)] == [
        "2026-02-06",
        "2026-02-13",
        "2026-02-20",
        "2026-02-27",
        "2026-03-06",
        "2026-03-13",
    ]


def test_a_day_field_that_begins_with_a_star_is_not_restricted_even_with_a_step() -> None:
    odd_mondays = [day[:10] for day in firings("0 0 */2 * mon", "2026-01-01T00:00:00Z", 3)]
    assert odd_mondays == ["2026-01-05", "2026-01-19", "2026-02-09"]


def test_a_firing_is_strictly_after_the_time_to_the_microsecond() -> None:
    cron, noon = Cron.parse("0 12 * * *"), time_us("2026-01-14T12:00:00Z")
    assert cron.next_after(noon - 1) == noon
    assert cron.next_after(noon) == cron.next_after(noon + 1) == noon + 86_400 * SECOND_US


def test_a_schedule_of_the_zone_follows_its_clock_not_ours() -> None:
    assert firings("0 9 * * *", "2026-03-28T00:00:00Z", 2, "Europe/Berlin") == [
        "2026-03-28 09:00+01:00",
        "2026-03-29 09:00+02:00",
    ]
    assert firings("0 9 * * mon", "2026-01-14T00:00:00Z", 1, "Asia/Kathmandu") == ["2026-01-19 09:00+05:45"]


@pytest.mark.parametrize("text", ["0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "* * 30 feb *", "*/7 * 31 nov */2"])
@pytest.mark.parametrize("timezone", ["UTC", "Europe/Berlin"])
def test_a_schedule_for_a_day_that_never_comes_never_fires(text: str, timezone: str) -> None:
    assert Cron.parse(text, timezone).next_after(time_us("2026-01-14T00:00:00Z")) is None


def test_the_rarest_day_is_found() -> None:
    """29 February on a Sunday; 2100 is no leap year."""
    years_found = [int(day[:4]) for day in firings("0 0 29 2 */7", "2026-01-01T00:00:00Z", 5)]
    assert years_found == [2032, 2060, 2088, 2128, 2156]
    leap_days = [date(year, 2, 29) for year in range(1972, 9999, 4) if year % 100 or not year % 400]
    for weekday in range(7):
        years = [day.year for day in leap_days if day.weekday() == weekday]
        assert max(later - earlier for earlier, later in pairwise(years)) == 40, "as cron.py has it"


def test_the_calendar_ends_with_the_year_9998() -> None:
    for timezone in ("UTC", "Pacific/Kiritimati", "Etc/GMT+12"):
        for text in ("* * * * *", "0 0 * * *"):
            cron = Cron.parse(text, timezone)
            assert cron.next_after(TIME_MAX_US) is None
            assert cron.next_after(time_us("9998-12-29T00:00:00Z")) is not None
            assert cron.next_after(0) is not None
    every = Cron.parse("every 1s")
    assert every.next_after(TIME_MAX_US) is None
    assert every.next_after(TIME_MAX_US - SECOND_US) == TIME_MAX_US - SECOND_US + 1


@given(st.integers(0, TIME_MAX_US // 2), st.integers(SECOND_US, 10**13))
def test_intervals_are_counted_from_the_epoch(at: int, interval_us: int) -> None:
    due = Cron.parse(f"every {interval_us}us").next_after(at)
    assert due is not None
    assert due % interval_us == 0
    assert at < due <= at + interval_us


# When clocks are changed. Berlin: 29 March 2026, 02:00 becomes 03:00; 25 October 2026, 03:00 becomes 02:00.

SPRING = "2026-03-28T23:10:00Z"  # 00:10 in Berlin
AUTUMN = "2026-10-24T22:10:00Z"  # 00:10 in Berlin


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30 2 * * *", ["03:00+02:00", "02:30+02:00"]),
        ("0 2 * * *", ["03:00+02:00", "02:00+02:00"]),
        ("59 2 29 3 *", ["03:00+02:00"]),
        ("*/20 2 * * *", ["03:00+02:00", "02:00+02:00", "02:20+02:00"]),
        ("30 1-3 * * *", ["01:30+01:00", "03:00+02:00", "03:30+02:00", "01:30+02:00"]),
        ("0 */2 * * *", ["03:00+02:00", "04:00+02:00"]),
    ],
)
def test_a_skipped_time_fires_at_the_first_moment_after_the_gap(text: str, expected: list[str]) -> None:
    assert times(text, SPRING, len(expected), "Europe/Berlin") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30 2 25 * *", ["02:30+02:00", "02:30+01:00"]),
        ("30 2 * * *", ["02:30+02:00", "02:30+01:00", "02:30+01:00"]),
        ("*/20 2 * * *", ["02:00+02:00", "02:20+02:00", "02:40+02:00", "02:00+01:00"]),
        ("30 1-3 * * *", ["01:30+02:00", "02:30+02:00", "03:30+01:00"]),
        ("0 */2 * * *", ["02:00+02:00", "04:00+01:00"]),
    ],
)
def test_a_repeated_time_fires_the_first_time_only(text: str, expected: list[str]) -> None:
    found = firings(text, AUTUMN, len(expected), "Europe/Berlin")
    assert [firing[11:] for firing in found] == expected
    assert len({firing[:16] for firing in found}) == len(found), "no local time twice"


def test_a_schedule_for_every_hour_fires_in_both_runs_of_a_repeated_hour() -> None:
    assert times("@hourly", AUTUMN, 4, "Europe/Berlin") == ["01:00+02:00", "02:00+02:00", "02:00+01:00", "03:00+01:00"]
    assert times("30 0-23 * * *", AUTUMN, 4, "Europe/Berlin") == [
        "00:30+02:00",
        "01:30+02:00",
        "02:30+02:00",
        "02:30+01:00",
    ]
    assert times("*/30 * * * *", "2026-10-25T00:10:00Z", 4, "Europe/Berlin") == [
        "02:30+02:00",
        "02:00+01:00",
        "02:30+01:00",
        "03:00+01:00",
    ]


def test_a_schedule_for_every_hour_makes_nothing_up_for_a_skipped_one() -> None:
    assert times("@hourly", SPRING, 3, "Europe/Berlin") == ["01:00+01:00", "03:00+02:00", "04:00+02:00"]
    assert times("30 * * * *", SPRING, 3, "Europe/Berlin") == ["00:30+01:00", "01:30+01:00", "03:30+02:00"]


def test_a_skipped_midnight_fires_at_one() -> None:
    days = firings("@daily", "2018-11-03T12:00:00Z", 2, "America/Sao_Paulo")
    assert days == ["2018-11-04 01:00-02:00", "2018-11-05 00:00-02:00"]


def test_the_firing_of_a_skipped_day_falls_together_with_that_of_the_next() -> None:
    days = firings("@daily", "2011-12-29T12:00:00Z", 2, "Pacific/Apia")
    assert days == ["2011-12-31 00:00+14:00", "2012-01-01 00:00+14:00"], "there was no 30 December"


def test_half_an_hour_can_be_skipped_and_repeated_too() -> None:
    assert times("15 2 * * *", "2026-10-03T00:00:00Z", 1, "Australia/Lord_Howe") == ["02:30+11:00"]
    assert times("45 * * * *", "2026-04-04T14:30:00Z", 2, "Australia/Lord_Howe") == ["01:45+11:00", "01:45+10:30"]


def test_a_repeated_hour_may_begin_on_the_day_before() -> None:
    """In St. John's, 00:01 became 23:01."""
    found = firings("30 * 6 11 *", "2010-11-07T01:59:00Z", 2, "America/St_Johns")
    assert found == ["2010-11-06 23:30-02:30", "2010-11-06 23:30-03:30"]


# The model.

Field = tuple[str, frozenset[int]]

CHANGES = {
    "UTC": ["2026-01-01T00:00:00Z", "2024-02-29T00:00:00Z"],
    "Europe/Berlin": ["2026-03-29T01:00:00Z", "2026-10-25T01:00:00Z"],
    "America/New_York": ["2026-03-08T07:00:00Z", "2026-11-01T06:00:00Z"],
    "America/St_Johns": ["2010-03-14T03:31:00Z", "2010-11-07T02:31:00Z"],
    "America/Sao_Paulo": ["2018-02-18T02:00:00Z", "2018-11-04T03:00:00Z"],
    "Australia/Lord_Howe": ["2026-04-04T15:00:00Z", "2026-10-03T15:30:00Z"],
    "Pacific/Apia": ["2011-12-30T10:00:00Z"],
    "Africa/Casablanca": ["2026-02-15T02:00:00Z", "2026-03-22T02:00:00Z"],
}


@st.composite
def fields(draw: st.DrawFn, low: int, high: int) -> Field:
    """A field and the numbers that it means, made together so that the model need not parse."""
    texts: list[str] = []
    numbers: set[int] = set()
    for _ in range(draw(st.integers(1, 3))):
        first = draw(st.integers(low, high))
        last = draw(st.integers(first, high))
        step = draw(st.integers(1, high))
        text, meant = draw(
            st.sampled_from(
                [
                    ("*", range(low, high + 1)),
                    (f"*/{step}", range(low, high + 1, step)),
                    (f"{first}", range(first, first + 1)),
                    (f"{first}-{last}", range(first, last + 1)),
                    (f"{first}-{last}/{step}", range(first, last + 1, step)),
                ]
            )
        )
        texts.append(text)
        numbers.update(meant)
    return ",".join(texts), frozenset(numbers)


def every(low: int, high: int) -> st.SearchStrategy[Field]:
    return st.just(("*", frozenset(range(low, high + 1))))


schedules = st.tuples(
    fields(0, 59),
    every(0, 23) | fields(0, 23),
    every(1, 31) | fields(1, 31),
    every(1, 12) | fields(1, 12),
    every(0, 7) | fields(0, 7),
)


def matches(schedule: tuple[Field, ...], local: datetime) -> bool:
    (_, minutes), (_, hours), (day_text, days), (_, months), (weekday_text, weekdays) = schedule
    on_day, on_weekday = local.day in days, bool({local.isoweekday(), local.isoweekday() % 7} & weekdays)
    unrestricted = day_text[0] == "*" or weekday_text[0] == "*"
    on = (on_day and on_weekday) if unrestricted else (on_day or on_weekday)
    return on and local.month in months and local.hour in hours and local.minute in minutes


def model(schedule: tuple[Field, ...], zone: ZoneInfo, start: datetime, minutes: int) -> Iterator[datetime]:
    """Looks at the clock every minute. All changes of these zones are on whole minutes."""
    by_the_hours_that_pass = len(schedule[1][1]) == 24
    shown = start.astimezone(zone)
    for n in range(1, minutes + 1):
        now = start + n * MINUTE
        before, shown = shown, now.astimezone(zone)
        if by_the_hours_that_pass:
            if matches(schedule, shown):
                yield now
        elif shown.fold == 0:
            # One minute, or more if the clock has been put forward; none if it has been put back.
            passed = (shown.replace(tzinfo=None) - before.replace(tzinfo=None)) // MINUTE
            if before.fold == 1:
                # The clock shows a new time again, one minute after the last that was repeated.
                passed = 1
            if any(matches(schedule, shown.replace(tzinfo=None) - back * MINUTE) for back in range(passed)):
                yield now


@pytest.mark.parametrize("timezone", CHANGES)
@settings(max_examples=60, deadline=None)
@given(schedule=schedules, data=st.data())
def test_next_after_finds_what_looking_every_minute_finds(
    timezone: str, schedule: tuple[Field, ...], data: st.DataObject
) -> None:
    zone, days = ZoneInfo(timezone), 2
    change = data.draw(st.sampled_from(CHANGES[timezone]))
    minutes_before = data.draw(st.integers(0, 240) | st.integers(0, days * 1440))
    start = datetime.fromisoformat(change) - minutes_before * MINUTE
    expected = [time_us(firing) for firing in model(schedule, zone, start, days * 1440)]

    cron = Cron.parse(" ".join(text for text, _ in schedule), timezone)
    at, end, found = time_us(start), time_us(start + timedelta(days=days)), []
    while (due := cron.next_after(at)) is not None and due <= end:
        found.append(due)
        at = due
    assert found == expected


@pytest.mark.parametrize("timezone", ["UTC", "Europe/Berlin"])
@settings(deadline=None)
@given(schedule=schedules, start=st.datetimes(datetime(1973, 1, 1), datetime(2100, 1, 1)), seconds=st.integers(0, 59))
def test_next_after_is_right_at_any_time(
    timezone: str, schedule: tuple[Field, ...], start: datetime, seconds: int
) -> None:
    start = start.replace(second=0, microsecond=0, tzinfo=UTC)
    expected = next(model(schedule, ZoneInfo(timezone), start, 3 * 1440), None)
    cron = Cron.parse(" ".join(text for text, _ in schedule), timezone)
    due = cron.next_after(time_us(start) + seconds * SECOND_US)
    if expected is not None:
        assert due == time_us(expected)
    else:
        assert due is None or due > time_us(start + timedelta(days=3))


# What is not a schedule.


@pytest.mark.parametrize(
    ("text", "field", "reason"),
    [
        ("60 * * * *", "minute", "'60' is not a number from 0 to 59"),
        ("* 24 * * *", "hour", "'24' is not a number from 0 to 23"),
        ("* * 0 * *", "day of month", "'0' is not a number from 1 to 31"),
        ("* * * 13 *", "month", "'13' is not a number from 1 to 12 or jan to dec"),
        ("* * * mon *", "month", "'mon' is not a number"),
        ("* * * * 8", "day of week", "'8' is not a number from 0 to 7 or sun to sat"),
        ("* * * * monday", "day of week", "'monday' is not"),
        ("-5 * * * *", "minute", "'' is not a number"),
        ("1-2-3 * * * *", "minute", "'2-3' is not a number"),
        ("*-5 * * * *", "minute", "'*' is not a number"),
        ("5-* * * * *", "minute", "'*' is not a number"),
        ("** * * * *", "minute", "'**' is not a number"),
        ("1,,2 * * * *", "minute", "'' is not a number"),
        (", * * * *", "minute", "'' is not a number"),
        ("+5 * * * *", "minute", "'+5' is not a number"),
        ("005 * * * *", "minute", "'005' is not a number"),
        ("1_0 * * * *", "minute", "'1_0' is not a number"),
        ("1.5 * * * *", "minute", "'1.5' is not a number"),
        ("? * * * *", "minute", "'?' is not a number"),
        ("* * L * *", "day of month", "'l' is not a number"),
        ("* * * * fri#2", "day of week", "'fri#2' is not a number"),
        ("* 22-6 * * *", "hour", "22-6 runs backwards; write it as two ranges"),
        ("* * * * fri-mon", "day of week", "fri-mon runs backwards"),
        ("5/15 * * * *", "minute", "a step needs a range, as in 5-59/15"),
        ("*/0 * * * *", "minute", "'0' is not a step from 1 to 59"),
        ("*/60 * * * *", "minute", "'60' is not a step"),
        ("*/ * * * *", "minute", "'' is not a step"),
        ("*/-1 * * * *", "minute", "'-1' is not a step"),
        ("*/5/5 * * * *", "minute", "'5/5' is not a step"),
        ("*/* * * * *", "minute", "'*' is not a step"),
        ("* * * jan/2 *", "month", "a step needs a range"),
    ],
)
def test_a_wrong_field_is_refused_with_its_name_and_the_reason(text: str, field: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Cron.parse(text)
    assert caught.value.details == {"field": field}
    assert f"the {field} of a schedule can't be" in str(caught.value)
    assert reason in str(caught.value)


NOT_SCHEDULES = {
    "not five fields": ["", " ", "*", "* * * *", "* * * * * *", "0 0 1 1 * 2026", "TZ=UTC * * * * *"],
    "no shortcuts": ["@", "@reboot", "@ hourly", "@hourly *", "hourly", "@everyday"],
    "no intervals": [
        "every",
        "@every",
        "every 5",
        "every 1h 30m",
        "every -5s",
        "every 5M",
        "every nan",
        "every every 5s",
    ],
    "intervals too short or too long": ["every 999ms", "every 0s", "every 0", "every 99999999999w"],
    "odd characters": ["\0 * * * *", "* * * * *\0", "\ud800 * * * *", "*\u2003* * * *", "every 9999999µs"],
    "digits of other scripts": ["٥ * * * *", "５ * * * *", "² * * * *", "*/٥ * * * *", "every ٥s"],
    "nonsense": ["((((" * 50, "@" * 200, "every " + "1" * 200 + "s", "-/-,-/- " * 5, "*/*/*-*,* " * 5],
    "very long": [part * 10**5 for part in ("* ", "1,", "1-", "*/", "9", " ")] + [" " * TEXT_LENGTH_MAX + "* * * * *"],
}


@pytest.mark.parametrize("kind", NOT_SCHEDULES)
def test_what_is_not_a_schedule_is_refused_in_a_short_sentence(kind: str) -> None:
    for text in NOT_SCHEDULES[kind]:
        with pytest.raises(InvalidInput) as caught:
            Cron.parse(text)
        assert len(str(caught.value)) < 600


@pytest.mark.parametrize("value", [None, 5, b"* * * * *", ["*"] * 5, object()])
def test_other_types_are_not_schedules(value: Any) -> None:
    with pytest.raises(InvalidInput):
        Cron.parse(value)
    with pytest.raises(InvalidInput):
        Cron.parse("* * * * *", value)


@given(st.text(alphabet="0123456789*/-, @everyhoulsmn") | st.text(max_size=300), st.integers(0, TIME_MAX_US))
def test_any_text_is_a_schedule_or_refused(text: str, at: int) -> None:
    try:
        due = Cron.parse(text).next_after(at)
    except InvalidInput:
        return
    assert due is None or at < due <= TIME_MAX_US


NOT_ZONES = {
    "unknown": ["", ".", "Mars/Olympus", "CET-1CEST", "+01:00", "utc ", "a/" * 30, "x" * 10**5],
    "files and directories": ["Europe", "Europe/", "zone.tab", "tzdata.zi", "leapseconds"],
    "paths": ["../etc/passwd", "/etc/passwd", "Europe/../../passwd", "Europe/../Europe/Berlin"],
    "odd characters": ["UTC\0", "\0", "\ud800", "Ünïcode/Zone", "Europe/Berlin\n"],
}


@pytest.mark.parametrize("kind", NOT_ZONES)
def test_an_unknown_zone_is_refused(kind: str) -> None:
    for name in NOT_ZONES[kind]:
        with pytest.raises(InvalidInput, match="time zone") as caught:
            Cron.parse("* * * * *", name)
        assert len(str(caught.value)) < 300


@pytest.fixture
def no_zone_data(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Also what somebody has imported of it before.
    for name in {"tzdata", *(name for name in sys.modules if name.startswith("tzdata."))}:
        monkeypatch.setitem(sys.modules, name, None)
    zoneinfo.reset_tzpath(to=[])
    ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath()


@pytest.mark.usefixtures("no_zone_data")
def test_on_a_machine_without_zone_data_utc_works_and_other_zones_are_refused() -> None:
    assert Cron.parse("@hourly").next_after(0) == 3_600 * SECOND_US
    with pytest.raises(InvalidInput, match="this machine knows no time zone 'Europe/Berlin'"):
        Cron.parse("@hourly", "Europe/Berlin")


def test_a_schedule_is_a_value() -> None:
    cron = Cron.parse(" @every   90s ", "Europe/Berlin")
    assert (cron.text, cron.timezone) == ("@every 90s", "Europe/Berlin")
    assert cron == Cron.parse("@every 90s", "Europe/Berlin") != Cron.parse("@every 90s")
    assert len({cron, Cron.parse("@every 90s", "Europe/Berlin")}) == 1
    assert pickle.loads(pickle.dumps(cron)).next_after(0) == 90 * SECOND_US
    with pytest.raises(AttributeError):
        cron.text = "@every 1s"  # type: ignore[misc]
