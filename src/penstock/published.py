"""Where messages went."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.clock import rfc3339


class Published(NamedTuple):
    """Where one message went. Its id is topic:partition:offset; `append_time` is the broker's, in microseconds."""

    topic: str
    partition: int
    offset: int
    append_time: int

    @property
    def id(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} at {rfc3339(self.append_time)}>"


class PublishedBatch(NamedTuple):
    """Where the messages of a batch went: one entry a row, in the order given."""

    topic: str
    partitions: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]

    def __repr__(self) -> str:
        partitions = len(np.unique(self.partitions))
        return f"<{type(self).__name__} of {len(self.offsets)} messages to {self.topic}, in {partitions} partitions>"
