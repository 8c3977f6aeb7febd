"""What can be set on a topic, with its defaults and ranges."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from penstock.clock import TIME_MAX_US
from penstock.errors import InvalidSetting

DAY_US = 86_400_000_000
PARTITIONS_DEFAULT = 6
# Kafka advises a few thousand partitions a broker; a topic alone should not use them up.
PARTITIONS_MAX = 1_000


class TopicSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Kept in the catalog; nothing acts on them yet. `None` keeps without that bound."""

    retention_age_us: int | None = 7 * DAY_US
    retention_bytes: int | None = None
    cleanup: Literal["delete", "compact"] = "delete"
    # Kafka's delete.retention.ms: how long a tombstone stays readable.
    tombstone_age_us: int = DAY_US
    max_delay_us: int = 10 * 365 * DAY_US

    def __post_init__(self) -> None:
        for name in ("retention_age_us", "retention_bytes", "tombstone_age_us", "max_delay_us"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= TIME_MAX_US:
                raise InvalidSetting(f"{name} must be positive, not {value}", setting=name)

    def changed(self, **changes: Any) -> TopicSettings:
        return make_settings(**{**msgspec.structs.asdict(self), **changes})


def make_settings(**values: Any) -> TopicSettings:
    """Checked as if they came from outside, which they do."""
    try:
        return msgspec.convert(values, TopicSettings)
    except msgspec.ValidationError as error:
        raise InvalidSetting(str(error)) from error


def check_partitions(count: Any) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= PARTITIONS_MAX:
        raise InvalidSetting(f"a topic has 1 to {PARTITIONS_MAX} partitions, not {count!r}", setting="partitions")
    return count
