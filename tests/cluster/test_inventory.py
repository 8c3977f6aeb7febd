"""What a node wrote down of the copies on its disk."""

from __future__ import annotations

from random import Random

import pytest

from penstock.cluster.inventory import NAME, Inventory
from penstock.errors import LogCorrupt, UnknownFormat
from penstock.storage.log import Log
from penstock.testing.memory_files import MemoryFiles


def two_logs(first: int = 1) -> tuple[Log, Log]:
    ids = iter([bytes([first]) * 16, bytes([first + 1]) * 16])
    return Log.open(MemoryFiles(), new_log_id=lambda: next(ids)), Log.open(MemoryFiles(), new_log_id=lambda: next(ids))


def test_a_copy_that_is_gone_is_refused_and_one_that_never_was_is_not() -> None:
    files = MemoryFiles()
    inventory = Inventory(files)
    inventory.check("p", [])
    inventory.add("p", two_logs())
    inventory.check("p", ["p"])
    with pytest.raises(LogCorrupt, match="not there any more"):
        Inventory(files).check("p", ["q"])


def test_another_log_in_the_place_of_one_is_refused() -> None:
    files = MemoryFiles()
    Inventory(files).add("p", two_logs(1))
    again = Inventory(files)
    again.add("p", two_logs(1))
    with pytest.raises(LogCorrupt, match="not the one that was there"):
        again.add("p", two_logs(5))


def test_what_was_removed_may_come_back_anew() -> None:
    files = MemoryFiles()
    inventory = Inventory(files)
    inventory.add("p", two_logs(1))
    inventory.remove("p")
    inventory.remove("p")
    Inventory(files).check("p", [])
    inventory.add("p", two_logs(5))


def test_what_was_written_down_survives_a_power_loss() -> None:
    files = MemoryFiles()
    Inventory(files).add("p", two_logs())
    for seed in range(30):
        with pytest.raises(LogCorrupt):
            Inventory(MemoryFiles(files.disk.after_power_loss(Random(seed)))).check("p", [])


@pytest.mark.parametrize(
    ("data", "error"), [(b"PNI\x02" + bytes(8), UnknownFormat), (b"PNI\x01" + bytes(9), LogCorrupt)]
)
def test_a_list_that_can_not_be_believed_is_refused(data: bytes, error: type[Exception]) -> None:
    files = MemoryFiles()
    file = files.open(NAME, "create")
    file.write([data])
    file.close()
    with pytest.raises(error):
        Inventory(files)
