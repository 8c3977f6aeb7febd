from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.clock import TIME_MAX_US, rfc3339
from penstock.durations import TEXT_LENGTH_MAX, TIME_AS_NUMBER_MIN, duration_text, duration_us, time_us
from penstock.errors import InvalidInput

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

MICRO_SIGN = "\N{MICRO SIGN}"
GREEK_MU = "\N{GREEK SMALL LETTER MU}"
ARABIC_FIVE = "\N{ARABIC-INDIC DIGIT FIVE}"


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("0", 0),
        ("0s", 0),
        ("10us", 10),
        (f"10{MICRO_SIGN}s", 10),
        (f"10{GREEK_MU}s", 10),
        ("250ms", 250_000),
        ("0.1s", 100_000),
        ("1.5s", 1_500_000),
        ("0.000001s", 1),
        ("1.50000000000s", 1_500_000),
        ("30s", 30 * SECOND),
        ("5m", 5 * MINUTE),
        ("90m", 90 * MINUTE),
        ("1h30m", 90 * MINUTE),
        ("1.5h30m", 120 * MINUTE),
        ("7d", 7 * DAY),
        ("2w", 14 * DAY),
        ("1w1d1h1m1s1ms1us", 8 * DAY + HOUR + MINUTE + SECOND + 1_001),
        ("007s", 7 * SECOND),
        (0, 0),
        (timedelta(0), 0),
        (timedelta(days=1, microseconds=1), DAY + 1),
        (timedelta(seconds=0.1), 100_000),
    ],
)
def test_a_duration_is_exactly_what_is_written(text: Any, us: int) -> None:
    assert duration_us(text) == us


@pytest.mark.parametrize(
    "value", [5, 0.0, 1.5, -1, True, False, float("nan"), float("inf"), pytest.param(10**5000, id="huge")]
)
def test_a_bare_number_is_refused_with_a_hint_at_units(value: Any) -> None:
    with pytest.raises(InvalidInput, match='needs its unit, as in "30s"'):
        duration_us(value)


@pytest.mark.parametrize("text", ["5", "1.5", "1h30", "00", "0.0"])
def test_a_number_without_a_unit_is_refused_as_text_too(text: str) -> None:
    with pytest.raises(InvalidInput, match="write w, d, h, m, s, ms or us") as caught:
        duration_us(text)
    assert repr(text) in str(caught.value)


NOT_DURATIONS = {
    "empty": ["", "m", "ms", "."],
    "blanks": [" ", "5 m", " 5m", "5m ", "5m\n", "1h 30m"],
    "signs": ["-5m", "+5m", "1h-30m", "-0s"],
    "other numbers": [".5s", "5.s", "1..5s", "1.5.5s", "1,5s", "1e3s", "1_000s", "0x5s", "nan", "nans", "inf", "infs"],
    "other units": ["5M", "5S", "5min", "5y", "5ns", "5mss", "5sm", "1h30m!"],
    "units in disorder": ["30m1h", "5m5m", f"1us1{MICRO_SIGN}s"],
    "finer than a microsecond": ["0.1us", "0.0000001s", "1.0005ms"],
    "odd characters": ["5m\0", "\0", "\ud800", f"{ARABIC_FIVE}m", f"1{ARABIC_FIVE}m", "５m", "²s"],
    "very long": ["9" * 60 + "w", "9" * 10**5 + "s", "1s" * 10**5, "0." + "0" * 10**5 + "s", "h" * 10**5],
}


@pytest.mark.parametrize("kind", NOT_DURATIONS)
def test_what_is_not_a_duration_is_refused_in_a_short_sentence_that_shows_it(kind: str) -> None:
    for text in NOT_DURATIONS[kind]:
        with pytest.raises(InvalidInput) as caught:
            duration_us(text)
        assert repr(text[:TEXT_LENGTH_MAX])[1:-1] in str(caught.value)
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("value", [timedelta(microseconds=-1), timedelta.min, "-5m", "-1.5h", "-0s"])
def test_a_negative_duration_is_called_negative(value: str | timedelta) -> None:
    with pytest.raises(InvalidInput, match="a duration can't be negative: "):
        duration_us(value)


@pytest.mark.parametrize("value", [timedelta.max, "2932897d"])
def test_a_duration_is_not_longer_than_time_itself(value: str | timedelta) -> None:
    with pytest.raises(InvalidInput, match=r"from 0 to 2932896d23h59m59\.999999s"):
        duration_us(value)


@pytest.mark.parametrize("value", [None, b"5m", ["5m"], Decimal(5), 5j, [10**5000], object()])
def test_other_types_are_not_durations(value: Any) -> None:
    with pytest.raises(InvalidInput, match=type(value).__name__):
        duration_us(value)


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0s"),
        (1, "1us"),
        (999, "999us"),
        (1_000, "1ms"),
        (1_500, "1.5ms"),
        (250_000, "250ms"),
        (1_000_001, "1.000001s"),
        (90 * SECOND, "1m30s"),
        (90 * MINUTE, "1h30m"),
        (HOUR + 250_000, "1h250ms"),
        (7 * DAY, "7d"),
        (30 * DAY, "30d"),
        (TIME_MAX_US, "2932896d23h59m59.999999s"),
    ],
)
def test_a_duration_is_written_short(us: int, text: str) -> None:
    assert duration_text(us) == text


@given(st.integers(0, TIME_MAX_US) | st.integers(0, 10 * DAY) | st.integers(0, 10**6).map(lambda n: n * SECOND))
def test_a_duration_that_was_written_is_read_as_the_same(us: int) -> None:
    assert duration_us(duration_text(us)) == us
    assert duration_us(timedelta(microseconds=us)) == us


@given(st.text(alphabet="0123456789.wdhmsuµ+-e \n", max_size=80) | st.text(max_size=80))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    try:
        assert 0 <= duration_us(text) <= TIME_MAX_US
    except InvalidInput as error:
        assert str(error)


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-01-14T15:00:00Z", 1_768_402_800 * SECOND),
        ("2026-01-14t15:00:00z", 1_768_402_800 * SECOND),
        ("2026-01-14 15:00:00Z", 1_768_402_800 * SECOND),
        ("2026-01-14T16:00:00+01:00", 1_768_402_800 * SECOND),
        ("2026-01-14T09:30:00-05:30", 1_768_402_800 * SECOND),
        ("2026-01-14T15:00:00-00:00", 1_768_402_800 * SECOND),
        ("2026-01-14T15:00:00.25Z", 1_768_402_800 * SECOND + 250_000),
        ("2026-01-14T15:00:00.000001Z", 1_768_402_800 * SECOND + 1),
        ("2024-02-29T00:00:00Z", 1_709_164_800 * SECOND),
        ("1969-12-31T23:00:00-01:00", 0),
        ("9999-12-31T23:59:59.999999Z", TIME_MAX_US),
        (datetime(2026, 1, 14, 15, tzinfo=UTC), 1_768_402_800 * SECOND),
        (datetime(2026, 1, 14, 16, 0, 0, 1, tzinfo=timezone(timedelta(hours=1))), 1_768_402_800 * SECOND + 1),
    ],
)
def test_a_time_is_microseconds_since_the_epoch(text: str | datetime, us: int) -> None:
    assert time_us(text) == us


def test_digits_beyond_the_microsecond_are_cut_off_not_rounded() -> None:
    assert time_us("1970-01-01T00:00:00.123456999Z") == 123_456


@given(st.integers(0, TIME_MAX_US))
@example(TIME_MAX_US)
def test_a_time_that_was_written_is_read_as_the_same(us: int) -> None:
    assert time_us(rfc3339(us)) == us


def test_a_time_after_the_year_9999_is_told_as_the_last_moment_of_it() -> None:
    assert rfc3339(TIME_MAX_US + 1) == rfc3339(1 << 62) == "9999-12-31T23:59:59.999999Z"


@given(st.datetimes(datetime(1971, 1, 1), datetime(9999, 12, 30)), st.integers(-1439, 1439))
def test_a_datetime_and_its_text_are_the_same_time(naive: datetime, offset_minutes: int) -> None:
    aware = naive.replace(tzinfo=timezone(timedelta(minutes=offset_minutes)))
    assert time_us(aware) == time_us(aware.isoformat())
    assert datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us(aware)) == aware


class NoOffset(tzinfo):
    def utcoffset(self, when: datetime | None) -> None: ...
    def dst(self, when: datetime | None) -> None: ...
    def tzname(self, when: datetime | None) -> None: ...


@pytest.mark.parametrize("value", [datetime(2026, 1, 14), datetime(2026, 1, 14, tzinfo=NoOffset())])
def test_a_naive_datetime_is_refused_because_it_may_mean_any_zone(value: datetime) -> None:
    with pytest.raises(InvalidInput, match="needs a time zone"):
        time_us(value)


@pytest.mark.parametrize("value", [1_768_402_800_000_000, TIME_AS_NUMBER_MIN, TIME_MAX_US])
def test_a_time_as_it_was_given_out_is_taken_back(value: int) -> None:
    assert time_us(value) == value


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        1_768_402_800,
        1_768_402_800_000,
        1_768_402_800_000_000_000,
        TIME_AS_NUMBER_MIN - 1,
        TIME_MAX_US + 1,
        pytest.param(10**5000, id="huge"),
    ],
)
def test_a_number_that_may_be_seconds_milliseconds_or_nanoseconds_is_refused(value: int) -> None:
    with pytest.raises(InvalidInput, match="microseconds since 1970") as caught:
        time_us(value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("value", [1_768_402_800, 1.5, True, None, b"2026-01-14T15:00:00Z", date(2026, 1, 14)])
def test_a_time_that_is_neither_text_nor_datetime_is_asked_for_in_rfc_3339(value: Any) -> None:
    with pytest.raises(InvalidInput, match="RFC 3339"):
        time_us(value)


@pytest.mark.parametrize(
    "value",
    [
        "1969-12-31T23:59:59Z",
        "1970-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59-00:01",
        "0001-01-01T00:00:00+23:59",
        datetime(1969, 12, 31, tzinfo=UTC),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=23))),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-23))),
    ],
)
def test_a_time_outside_1970_to_9999_is_refused(value: str | datetime) -> None:
    with pytest.raises(InvalidInput, match="within 1970–9999"):
        time_us(value)


NOT_TIMES = {
    "empty": ["", "Z", "T"],
    "other forms": ["now", "1768402800", "2026-01-14", "20260114T150000Z", "2026-1-14T15:00:00Z", "2026-01-14T15:00Z"],
    "no offset": ["2026-01-14T15:00:00", "2026-01-14T15:00:00.5"],
    "odd offsets": [f"2026-01-14T15:00:00{offset}" for offset in ("+0100", "+1:00", "+01", "+24:00", "+01:60", "CET")],
    "odd fractions": ["2026-01-14T15:00:00.Z", "2026-01-14T15:00:00,5Z", "2026-01-14T15:00:00.-5Z"],
    "no such day": ["2026-02-29T00:00:00Z", "2026-13-01T00:00:00Z", "2026-00-01T00:00:00Z", "0000-01-01T00:00:00Z"],
    "no such time": ["2026-01-14T24:00:00Z", "2026-01-14T15:60:00Z", "2016-12-31T23:59:60Z"],
    "around it": [" 2026-01-14T15:00:00Z", "2026-01-14T15:00:00Z\n", "2026-01-14T15:00:00Z\0", "+2026-01-14T15:00:00Z"],
    "odd characters": [f"202{ARABIC_FIVE}-01-14T15:00:00Z", "\ud800", "2026‐01‐14T15:00:00Z"],
    "very long": ["2026-01-14T15:00:00." + "0" * 10**5 + "Z", "2" * 10**5],
}


@pytest.mark.parametrize("kind", NOT_TIMES)
def test_what_is_not_a_time_is_refused_in_a_short_sentence_that_shows_it(kind: str) -> None:
    for text in NOT_TIMES[kind]:
        with pytest.raises(InvalidInput) as caught:
            time_us(text)
        assert repr(text[:TEXT_LENGTH_MAX])[1:-1] in str(caught.value)
        assert len(str(caught.value)) < 300
