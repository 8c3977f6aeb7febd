"""Values of every type, and at the edges of their ranges; and what fits a parameter, by its name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.batch import Batch
from penstock.client.identified import Identity

HUGE = 2**70


class Hostile:
    """What can't even be shown, compared or hashed."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not to be compared")

    def __repr__(self) -> str:
        return "<hostile>"


ODD: list[Any] = [None, True, 0, -1, 1 << 63, 1 << 64, HUGE, -HUGE, 1.5, 5e-324, float("nan"), float("inf")]
ODD += ["", "x", "\ud800", "a/b", "x" * 300, "a:0:" + "9" * 5_000, "٣s", "9" * 5_000, b"", b"\xff", bytearray(b"x")]
ODD += [[], [None], ["x"], [HUGE], (1, 2, 3), {}, {0: HUGE}, {0: None}, {HUGE: 0}, {"a": None}, {0: ("a", "b")}, {1: 2}]
ODD += [object(), print, Exception, np.int64(3), np.array([1]), timedelta(days=-1), datetime.max.replace(tzinfo=UTC)]
ODD += [
    datetime(2026, 1, 1),
    pa.table({"value": [5]}),
    pa.table({"value": [b"x"], "deliver_at": [-1]}),
    {0: (0, HUGE)},
    {0: (-1, 1)},
    {0: (1, 0, 2)},
]

_numbers = count()
PAST, FUTURE = "2020-01-01T00:00:00Z", "2100-01-01T00:00:00Z"


def right(parameter: str, owner: str = "") -> Any:
    """A value that fits; KeyError for a parameter that is new and needs one."""
    if parameter in ("name", "group") and owner in ("create_topic", "create_group", "replay", "create"):
        return f"new-{next(_numbers)}"
    if parameter == "name" and owner.startswith("delete"):
        return "none"
    return _RIGHT[owner, parameter] if (owner, parameter) in _RIGHT else _RIGHT["", parameter]


_RIGHT: dict[tuple[str, str], Any] = {
    ("", "topic"): "orders",
    ("", "topics"): "orders",
    ("", "name"): "w",
    ("topic", "name"): "orders",
    ("change_topic", "name"): "orders",
    ("", "group"): "w",
    ("", "id"): "orders:0:0",
    ("", "value"): b"x",
    ("", "cron"): "@daily",
    ("", "time"): PAST,
    ("", "key"): "k",
    ("", "offsets"): {0: 0},
    ("", "visibility"): "1m",
    ("", "table"): pa.table({"value": [b"x"]}),
    ("", "handler"): print,
    ("", "until_idle"): "0s",
    ("", "wait"): "0s",
    ("", "timeout"): 10.0,
    ("", "job"): 1,
    ("", "identity"): Identity(9),
    ("", "batch"): Batch.from_columns([b"x"], now_us=1),
    ("", "callback"): print,
    ("", "jobs"): [1],
    ("", "partition"): 0,
    ("", "since"): 0,
    ("", "place"): 0,
    ("", "now_us"): 1_800_000_000_000_000,
}
# Without these a call waits for ever, or has nothing to do.
ALWAYS = {"until_idle", "wait", "timeout"}
WITH = {"replay": {"from_time": PAST}, "seek": {"to": "earliest"}, "reschedule": {"delay": "1h"}}
# Which of several that exclude one another is left out when one is tried.
INSTEAD = {"to": "time", "time": "to", "delay": "deliver_at", "deliver_at": "delay", "offsets": "from_time"}
