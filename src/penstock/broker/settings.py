"""What can be set on a topic and on a group, with defaults and ranges."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal, Self, get_args

import msgspec

from penstock.broker.lanes import LanesPolicy
from penstock.broker.retries import RETRIES_MAX, SECOND_US, RetryPolicy
from penstock.clock import TIME_MAX_US
from penstock.decoding import convert
from penstock.errors import InvalidSetting, TooManyPartitions

DAY_US = 86_400_000_000
PARTITIONS_DEFAULT = 6
# Kafka advises a few thousand partitions a broker; a topic alone should not use them up.
PARTITIONS_MAX = 1_000
# Of all topics together, for each file that a broker may have open. A partition has two logs, of a segment and a mark
# each: with more, nearly every message to a partition that others took turns with opens a file first.
_PARTITIONS_PER_DESCRIPTOR = 8
REPLICAS_MAX = 9
# SQS allows 12 hours.
VISIBILITY_US_MAX = 7 * DAY_US

Ordering = Literal["none", "key", "partition"]
OnPoison = Literal["park", "skip", "block"]
Assignment = Literal["sticky", "shared"]
Archiving = Literal["none", "required"]
Durability = Literal["fsync", "interval"]
# Redis's appendfsync everysec; NATS syncs every two minutes by default.
SYNC_INTERVAL_US = 1 * SECOND_US


@cache
def _fields(settings: type[_Settings]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """They are read out of annotations, which takes 0.1 ms: a catalog of 1,000 groups makes as many settings."""
    return msgspec.structs.fields(settings)


class _Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    def changed(self, /, **changes: Any) -> Self:
        """Checked as if they came from outside, which they do."""
        try:
            return convert({**msgspec.structs.asdict(self), **changes}, type(self))
        except (msgspec.ValidationError, UnicodeError) as error:
            raise InvalidSetting(str(error)) from error

    def _check_types(self) -> None:
        """What is made by hand is held to the same types as what comes from outside."""
        for field in _fields(type(self)):
            value = getattr(self, field.name)
            try:
                convert(value, field.type)
            except (msgspec.ValidationError, UnicodeError) as error:
                raise InvalidSetting(f"{field.name}: {error}", setting=field.name) from error

    def _check_one_of(self, name: str, allowed: tuple[str, ...]) -> None:
        if getattr(self, name) not in allowed:
            choices = ", ".join(allowed[:-1]) + " or " + allowed[-1]
            raise InvalidSetting(f"{name} is {choices}, not {getattr(self, name)!r}", setting=name)

    def _check_within(self, lowest: float, highest: float, *names: str) -> None:
        """The bounds are told in the details, too, for those who have other words for them."""
        for name in names:
            value = getattr(self, name)
            if value is not None and not lowest <= value <= highest:
                raise InvalidSetting(
                    f"{name} is {lowest} to {highest}, not {value}",
                    setting=name,
                    lowest=lowest,
                    highest=highest,
                    given=value,
                )


class TopicSettings(_Settings, frozen=True, forbid_unknown_fields=True):
    """Kept in the catalog. `None` keeps without that bound."""

    retention_age_us: int | None = 7 * DAY_US
    retention_bytes: int | None = None
    cleanup: Literal["delete", "compact"] = "delete"
    # Kafka's delete.retention.ms: how long a tombstone stays readable.
    tombstone_age_us: int = DAY_US
    max_delay_us: int = 10 * 365 * DAY_US
    # Whether what is given up goes to <topic>.dlq; otherwise it is only marked.
    dead_letters: bool = True
    # With "required", nothing is deleted before somebody has said that it is archived.
    archive: Archiving = "none"
    # With "interval", a publish is answered once it is written, and synced within `sync_interval_us`.
    durability: Durability = "fsync"
    sync_interval_us: int = SYNC_INTERVAL_US
    # In a cluster: on how many nodes each partition is, and how many of them must be in sync to publish. None: three,
    # or as many as there are nodes; and two of three.
    replicas: int | None = None
    min_isr: int | None = None

    def __post_init__(self) -> None:
        self._check_types()
        self._check_one_of("cleanup", ("delete", "compact"))
        self._check_one_of("durability", get_args(Durability))
        self._check_within(1_000, 600 * SECOND_US, "sync_interval_us")
        self._check_one_of("archive", get_args(Archiving))
        self._check_within(1, REPLICAS_MAX, "replicas", "min_isr")
        if (self.min_isr or 1) > (self.replicas or REPLICAS_MAX):
            raise InvalidSetting(
                f"min_isr is at most the number of replicas, {self.replicas}, not {self.min_isr}", setting="min_isr"
            )
        self._check_within(1, TIME_MAX_US, "retention_age_us", "retention_bytes", "tombstone_age_us", "max_delay_us")

    @property
    def sync_within_us(self) -> int | None:
        """None: before anybody is told of a message."""
        return None if self.durability == "fsync" else self.sync_interval_us


class GroupSettings(_Settings, frozen=True, forbid_unknown_fields=True):
    """Kept in the catalog, for a group on all its topics.

    SQS hides a message for 30 s by default; RabbitMQ's consumers hold as many as they like.
    """

    start: Literal["earliest", "latest"] = "earliest"
    visibility_us: int = 30 * SECOND_US
    max_retries: int = 3
    backoff_initial_us: int = 1 * SECOND_US
    backoff_factor: float = 2.0
    backoff_max_us: int = 600 * SECOND_US
    backoff_jitter: float = 0.1
    ordering: Ordering = "none"
    on_poison: OnPoison = "park"
    assignment: Assignment = "sticky"
    lanes: LanesPolicy = "strict"
    max_in_flight: int = 20_000
    # Kafka's session.timeout.ms is 45 s: a member that has not been heard of for so long has left.
    session_us: int = 45 * SECOND_US
    # Made for a replay: it gets what the replay is of, and nothing from anywhere else.
    is_replay: bool = False

    def __post_init__(self) -> None:
        self._check_types()
        self._check_one_of("start", ("earliest", "latest"))
        self._check_one_of("ordering", get_args(Ordering))
        self._check_one_of("on_poison", get_args(OnPoison))
        self._check_one_of("assignment", get_args(Assignment))
        self._check_one_of("lanes", get_args(LanesPolicy))
        self._check_within(1, VISIBILITY_US_MAX, "visibility_us")
        self._check_within(1, TIME_MAX_US, "max_in_flight", "session_us")
        self._check_within(0, RETRIES_MAX, "max_retries")
        self._check_within(0, TIME_MAX_US, "backoff_initial_us")
        self._check_within(self.backoff_initial_us, TIME_MAX_US, "backoff_max_us")
        self._check_within(1, 100, "backoff_factor")
        self._check_within(0, 0.99, "backoff_jitter")
        self.policy()

    def changed(self, /, **changes: Any) -> Self:
        """A longest wait that nobody named does not stand in the way of a first one that is longer."""
        initial_us = changes.get("backoff_initial_us")
        if isinstance(initial_us, int) and "backoff_max_us" not in changes:
            changes["backoff_max_us"] = max(initial_us, self.backoff_max_us)
        return super().changed(**changes)

    def policy(self, dice: Callable[[], float] = lambda: 0.5) -> RetryPolicy:
        return RetryPolicy(
            max_retries=self.max_retries,
            initial_us=self.backoff_initial_us,
            factor=self.backoff_factor,
            longest_us=self.backoff_max_us,
            jitter=self.backoff_jitter,
            dice=dice,
        )


def make_settings(**values: Any) -> TopicSettings:
    return TopicSettings().changed(**values)


def partitions_with(descriptors: int) -> int:
    """Return the maximum number of partitions of a broker that may open this many files."""
    return descriptors * _PARTITIONS_PER_DESCRIPTOR


def check_room(partitions: int, partitions_max: int, node: str | None = None) -> None:
    """Raise TooManyPartitions if all topics together would have more than `partitions_max`."""
    if partitions > partitions_max:
        raise TooManyPartitions(
            f"{'this broker' if node is None else f'node {node}'} would have {partitions} partitions, and takes "
            f"{partitions_max} with the number of files it may open: delete topics, have fewer partitions, or raise "
            "that limit (`ulimit -n`; systemd: LimitNOFILE=) and start it again",
            partitions=partitions,
            partitions_max=partitions_max,
        )


def check_partitions(count: Any) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= PARTITIONS_MAX:
        raise InvalidSetting(f"a topic has 1 to {PARTITIONS_MAX} partitions, not {count!r}", setting="partitions")
    return count
