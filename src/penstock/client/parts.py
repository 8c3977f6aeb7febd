"""A table, cut into what goes to each partition as one frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.batch import Batch
from penstock.client.transport import Stored
from penstock.durations import TIME_AS_NUMBER_MIN
from penstock.errors import InvalidMessage
from penstock.published import PublishedBatch


class Part(NamedTuple):
    """`rows` are those of the table."""

    partition: int
    rows: npt.NDArray[np.int64]
    batch: Batch


class Parts(NamedTuple):
    """Checked, and of `total` rows together."""

    topic: str
    total: int
    parts: Sequence[Part]
    # Their partition is the caller's choice.
    is_pinned: bool = False

    def published(self, stored: Stored) -> PublishedBatch:
        """Of a table that went whole."""
        partitions = np.full(self.total, stored.partition, np.int64)
        return PublishedBatch(self.topic, partitions, stored.offset + np.arange(self.total, dtype=np.int64))


def check_times(batch: Batch) -> None:
    """Seconds and milliseconds look like microseconds of long ago."""
    for name, times in (("deliver_at", batch.deliver_at), ("expires_at", batch.expires_at)):
        if times is not None and ((times > 0) & (times < TIME_AS_NUMBER_MIN)).any():
            wrong = int(times[(times > 0) & (times < TIME_AS_NUMBER_MIN)][0])
            raise InvalidMessage(
                f"{name} is microseconds since 1970, from {TIME_AS_NUMBER_MIN} (1973) on, or an Arrow timestamp, "
                f"not {wrong}",
                field=name,
            )
