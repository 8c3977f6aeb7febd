"""Whoever reads on is told if what was there was given up since, and nobody else is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker.partition import Partition
from penstock.storage.epochs import Epoch

# At epoch 3 a leader was elected that ended at 50; the one before ended at 80. Now there is something up to 60 or 100.
LINEAGE = (Epoch(1, 0), Epoch(2, 20), Epoch(3, 50), Epoch(4, 55))


@pytest.mark.parametrize(
    ("end", "offset", "until", "epoch", "cut"),
    [
        # Under way, at the epoch before.
        (60, 70, 80, 2, 50),
        (60, 30, 80, 2, 50),
        (100, 70, 80, 2, 50),
        (100, 30, 80, 1, 50),
        (60, 30, 50, 2, None),
        # Since.
        (100, 30, 80, 3, None),
        (100, 30, 80, 4, None),
        # Not begun yet: by what there was when it was asked where to read.
        (60, 70, 80, 0, 50),
        (60, 0, 80, 0, 50),
        (100, 0, 80, 0, None),
        (60, 0, 60, 0, None),
        (60, 10, 40, 0, None),
    ],
)
def test_where_the_log_was_cut_off_for_a_reader(end: int, offset: int, until: int, epoch: int, cut: int | None) -> None:
    partition: Any = SimpleNamespace(
        unclean=(3,), messages=SimpleNamespace(lineage=LINEAGE), reading=SimpleNamespace(visible_offset=end)
    )
    assert Partition.cut_before(partition, offset, until, epoch) == cut


def test_without_an_unclean_election_nobody_is() -> None:
    partition: Any = SimpleNamespace(unclean=())
    assert Partition.cut_before(partition, 70, 80, 2) is None
