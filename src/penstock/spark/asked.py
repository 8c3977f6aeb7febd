"""Everything that the options of a reading query say, checked. It is sent to executors as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.errors import InvalidSetting
from penstock.spark.bounds import STRATEGY, BoundOption, bound_of, names_of
from penstock.spark.connecting import Connecting
from penstock.spark.losses import Losses
from penstock.spark.options import Options
from penstock.spark.subscription import WAYS, Subscription, subscription_of
from penstock.spark.tables import DELIVERIES, LOGS, MESSAGES, Log

_STARTING, _ENDING = names_of("starting"), names_of("ending")
_STREAMING = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger")
_SPLITTING = ("minPartitions", "maxRecordsPerPartition")
READING = (*WAYS, *_STARTING, STRATEGY, *_ENDING, *_STREAMING, *_SPLITTING, "failOnDataLoss", "include")

# As of Spark's Kafka source.
_TRIGGER_DELAY_US = 15 * 60 * 1_000_000


class Pace(NamedTuple):
    """How much one micro-batch may have. None is no limit."""

    offsets_max: int | None = None
    bytes_max: int | None = None
    offsets_min: int | None = None
    delay_us_max: int = _TRIGGER_DELAY_US


class Cut(NamedTuple):
    """Into how many tasks, at least, and of how many offsets, at most."""

    tasks_min: int | None = None
    offsets_max: int | None = None


class Asked(NamedTuple):
    connecting: Connecting
    table: str
    subscription: Subscription
    start: BoundOption
    end: BoundOption
    losses: Losses
    cut: Cut
    pace: Pace

    @property
    def log(self) -> Log:
        return LOGS[self.table]


def table_in(given: Mapping[str, str]) -> str:
    """Messages or deliveries, which is what the default schema depends on. All else is checked, too.

    It is the first thing that Spark asks for, before it tells whether it is for a batch or a stream.
    """
    options = Options(given, READING, use="reading")
    return _asked(options, _table(options), "earliest", ("earliest", "latest")).table


def _table(options: Options) -> str:
    return options.choice("include", (MESSAGES, DELIVERIES), MESSAGES)


def asked_by(given: Mapping[str, str], *, is_stream: bool) -> Asked:
    options = Options(given, READING, use="reading")
    table = _table(options)
    _check_use(options, table, is_stream)
    if is_stream:
        return _asked(options, table, "latest", ("earliest", "latest"))
    return _asked(options, table, "earliest", ("earliest",))


def _asked(options: Options, table: str, default: str, starts: tuple[str, ...]) -> Asked:
    start, end = bound_of(options, "starting", default, starts), bound_of(options, "ending", "latest", ("latest",))
    # Offsets are compared when they are known. Two times may be apart and mean the same offset.
    if start.is_time and end.is_time and start.everywhere > end.everywhere:
        raise InvalidSetting(f"{start.option} is later than {end.option}: nothing would be read", option=start.option)
    return Asked(
        options.connecting(),
        table,
        subscription_of(options, table),
        start,
        end,
        Losses(options.flag("failOnDataLoss", True)),
        Cut(options.whole("minPartitions"), options.whole("maxRecordsPerPartition")),
        _pace(options),
    )


def _check_use(options: Options, table: str, is_stream: bool) -> None:
    """What would be without effect is refused."""
    if is_stream:
        wrong, why = options.given(_ENDING), "a stream does not end: use trigger(availableNow=True), or spark.read"
    else:
        wrong, why = options.given(_STREAMING), "there are no triggers in spark.read, only in spark.readStream"
    if wrong:
        raise InvalidSetting(f"the option {wrong[0]} is not for this: {why}", option=wrong[0])
    timed = options.given((*_STARTING[1:], *_ENDING[1:], "maxBytesPerTrigger"))
    if table == DELIVERIES and timed:
        raise InvalidSetting(f"the option {timed[0]} is not for deliveries: they are found by offset", option=timed[0])
    if STRATEGY in options and not options.given(_STARTING[1:]):
        raise InvalidSetting(f"the option {STRATEGY} is for {' or '.join(_STARTING[1:])}, and none is given")


def _pace(options: Options) -> Pace:
    most, least = options.whole("maxOffsetsPerTrigger"), options.whole("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise InvalidSetting(f"minOffsetsPerTrigger is {least}, more than maxOffsetsPerTrigger, which is {most}")
    delay_us = options.duration_us("maxTriggerDelay")
    if delay_us is not None and least is None:
        raise InvalidSetting("the option maxTriggerDelay is for minOffsetsPerTrigger, which is not given")
    return Pace(most, options.whole("maxBytesPerTrigger"), least, _TRIGGER_DELAY_US if delay_us is None else delay_us)
