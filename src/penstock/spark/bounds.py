"""Where reading starts and where it ends, as options say it, and as offsets.

    startingOffsets              earliest, latest, or {"orders": {"0": 23, "1": -2}}; -2 is earliest, -1 is latest
    startingTimestamp            for all partitions: milliseconds since 1970, or "2026-01-14T15:00:00Z"
    startingOffsetsByTimestamp   for each: {"orders": {"0": 1768402800000, "1": "2026-01-14T15:00:00Z"}}

and the same with `ending`. Times are those at which messages were appended to the log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from penstock.client.blocking import Client
from penstock.clock import TIME_MAX_US, rfc3339
from penstock.durations import time_us
from penstock.errors import InvalidInput, InvalidSetting, OffsetOutOfRange
from penstock.spark.losses import Losses
from penstock.spark.options import Options, refused
from penstock.spark.subscription import Seen

Side = Literal["starting", "ending"]
Offsets = dict[str, dict[int, int]]

EARLIEST, LATEST = -2, -1
_NAMED = {"earliest": EARLIEST, "latest": LATEST}
_OFFSETS_EXAMPLE = '{"orders": {"0": 23, "1": -2}}'
_TIMES_EXAMPLE = '{"orders": {"0": 1768402800000}}'
STRATEGY = "startingOffsetsByTimestampStrategy"


def names_of(side: Side) -> tuple[str, str, str]:
    return f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp"


class BoundOption(NamedTuple):
    """One end of what is read, as it is told.

    `everywhere` or `by_partition`: offsets, or times in microseconds if `is_time`.
    """

    option: str
    everywhere: int = EARLIEST
    by_partition: Mapping[str, Mapping[int, int]] | None = None
    is_time: bool = False
    # What a time stands for that nothing was appended at or after: None is an error.
    later: Literal["latest"] | None = "latest"

    def offsets(self, client: Client, seen: Mapping[str, Seen], losses: Losses) -> Offsets:
        """For each partition in `seen`, within what it holds now."""
        found: Offsets = {}
        for topic, now in seen.items():
            wanted = {number: self._wanted(topic, number) for number in now.partitions}
            if self.is_time:
                found[topic] = self._at(client, topic, now, wanted)
            else:
                found[topic] = {number: self._within(topic, now, number, at, losses) for number, at in wanted.items()}
        return found

    def _wanted(self, topic: str, number: int) -> int:
        if self.by_partition is None:
            return self.everywhere
        try:
            return self.by_partition[topic][number]
        except KeyError:
            also = "" if self.is_time else f"; {EARLIEST} is earliest, {LATEST} is latest"
            raise InvalidSetting(
                f"the option {self.option} must name every partition that is read, and partition {number} of {topic} "
                f"is missing{also}",
                option=self.option,
            ) from None

    def check_names(self, seen: Mapping[str, Seen]) -> None:
        """InvalidSetting if a partition is named that is not among all that are read."""
        for topic, by_number in (self.by_partition or {}).items():
            for number in by_number:
                if topic not in seen or number not in seen[topic].partitions:
                    raise InvalidSetting(
                        f"the option {self.option} names partition {number} of {topic}, which is not read",
                        option=self.option,
                    )

    def _within(self, topic: str, now: Seen, number: int, wanted: int, losses: Losses) -> int:
        held = now.partitions[number]
        if wanted == EARLIEST:
            return held.start
        if wanted == LATEST:
            return held.end
        if not held.start <= wanted <= held.end:
            losses.report(
                f"the option {self.option} says offset {wanted}, and partition {number} of {topic} has "
                f"{held.start} to {held.end}",
                topic=topic,
                partition=number,
            )
        elif self.option.startswith("starting") and (whole_from := held.lost(wanted)) > wanted:
            losses.report(
                f"the option {self.option} says offset {wanted}, and of what partition {number} of {topic} had up to "
                f"{whole_from}, retention has left single messages, which are for later",
                topic=topic,
                partition=number,
            )
        return min(max(wanted, held.start), held.end)

    def _at(self, client: Client, topic: str, now: Seen, wanted: Mapping[int, int]) -> dict[int, int]:
        found: dict[int, int] = {}
        for time in sorted(set(wanted.values())):
            numbers = [number for number, each in wanted.items() if each == time]
            at = client.reader(topic, from_time=rfc3339(time), partitions=numbers).offsets()
            for number in numbers:
                # What came in since the look is not read.
                end = now.partitions[number].end
                found[number] = min(at[number][0], end)
                if self.later is None and found[number] == end:
                    raise OffsetOutOfRange(
                        f"the option {self.option}: nothing was appended to partition {number} of {topic} at or after "
                        f"{rfc3339(time)}; with {STRATEGY} latest, reading starts behind what is there",
                        topic=topic,
                        partition=number,
                    )
        return found


def bound_of(options: Options, side: Side, default: str, allowed: tuple[str, ...]) -> BoundOption:
    """`allowed` are the words, of earliest and latest, that make sense there."""
    given = options.given(names_of(side))
    if len(given) > 1:
        raise InvalidSetting(f"one of the options {' and '.join(given)}, not both")
    by_offset, by_time, by_times = names_of(side)
    later = options.choice(STRATEGY, ("error", "latest"), "error")
    strict: Literal["latest"] | None = None if side == "starting" and later == "error" else "latest"
    if by_time in options:
        time = _time(by_time, options.text(by_time))
        return BoundOption(by_time, time, is_time=True, later=strict)
    if by_times in options:
        times = _by_partition(options, by_times, _TIMES_EXAMPLE, _time)
        return BoundOption(by_times, by_partition=times, is_time=True, later=strict)
    text = (options.text(by_offset) or default).strip()
    if text.lower() in allowed:
        return BoundOption(by_offset, _NAMED[text.lower()])
    if not text.startswith("{"):
        raise refused(by_offset, text, f"{', '.join(allowed)}, or JSON as in {_OFFSETS_EXAMPLE}")
    offsets = _by_partition(options, by_offset, _OFFSETS_EXAMPLE, _offset)
    for word in _NAMED.keys() - set(allowed):
        if any(_NAMED[word] in by_number.values() for by_number in offsets.values()):
            named = " or ".join(f"{_NAMED[each]} ({each})" for each in allowed)
            raise refused(by_offset, text, f"offsets of partitions, or {named}, and not {_NAMED[word]} ({word})")
    return BoundOption(by_offset, by_partition=offsets)


def _by_partition(options: Options, option: str, example: str, read: Any) -> Offsets:
    found = options.json(option, example) or {}
    offsets: Offsets = {}
    for topic, by_number in found.items():
        if not isinstance(by_number, dict) or not all(re.fullmatch("[0-9]{1,9}", number) for number in by_number):
            raise refused(option, options.text(option), f"JSON as in {example}")
        offsets[topic] = {int(number): read(option, value) for number, value in by_number.items()}
    return offsets


def _offset(option: str, value: object) -> int:
    if type(value) is not int or value < EARLIEST:
        raise refused(option, value, f"a number of 0 or more for each partition, {EARLIEST} or {LATEST}")
    return value


def _time(option: str, value: object) -> int:
    text = str(value).strip() if type(value) in (str, int) else ""
    if re.fullmatch("[0-9]{1,18}", text) and int(text) * 1_000 <= TIME_MAX_US:
        return int(text) * 1_000
    try:
        return time_us(text)
    except InvalidInput as error:
        allowed = 'a time in milliseconds since 1970 or as "2026-01-14T15:00:00Z"'
        raise refused(option, value, allowed) from error
