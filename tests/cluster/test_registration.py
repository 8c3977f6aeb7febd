"""The disk's id, and who may use a data directory."""

from __future__ import annotations

from random import Random

import pytest

from penstock.cluster.registration import NAME, Disk, mark_disk, own_disk, read_disk
from penstock.errors import InvalidSetting, LogCorrupt, UnknownFormat
from penstock.testing.memory_files import MemoryFiles

ID = bytes(range(16))


def test_an_empty_directory_gets_an_id_and_keeps_it() -> None:
    files = MemoryFiles()
    made = own_disk(files, "a", "c1", ID)
    assert made == Disk(ID.hex(), "a", "c1")
    # Not before the node has its name for sure.
    assert files.names() == []
    mark_disk(files, made)
    mark_disk(files, made)
    assert own_disk(files, "a", "c1", bytes(16)) == made


def test_the_id_survives_a_power_loss() -> None:
    files = MemoryFiles()
    made = own_disk(files, "a", "c1", ID)
    mark_disk(files, made)
    for seed in range(50):
        assert read_disk(MemoryFiles(files.disk.after_power_loss(Random(seed)))) == made


def test_the_directory_of_a_broker_on_its_own_is_not_taken() -> None:
    files = MemoryFiles()
    files.directory("partitions")
    with pytest.raises(InvalidSetting, match="belongs to a broker on its own"):
        own_disk(files, "a", "c1", ID)


@pytest.mark.parametrize(("node", "cluster", "said"), [("b", "c1", "node a"), ("a", "c2", "cluster c1")])
def test_the_directory_of_another_node_or_cluster_is_not_taken(node: str, cluster: str, said: str) -> None:
    files = MemoryFiles()
    mark_disk(files, own_disk(files, "a", "c1", ID))
    with pytest.raises(InvalidSetting, match=said):
        own_disk(files, node, cluster, ID)


@pytest.mark.parametrize(
    ("data", "error"), [(b"PND\x02" + bytes(8), UnknownFormat), (b"PND\x01" + bytes(20), LogCorrupt), (b"", LogCorrupt)]
)
def test_a_file_that_can_not_be_believed_is_refused(data: bytes, error: type[Exception]) -> None:
    files = MemoryFiles()
    file = files.open(NAME, "create")
    file.write([data])
    file.sync()
    file.close()
    files.sync()
    with pytest.raises(error):
        own_disk(files, "a", "c1", ID)
