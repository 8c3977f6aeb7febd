"""A node whose disk is full: it goes on with what it has, and takes up the rest once there is room."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from cluster_nodes import LocalCluster
from penstock.client.cluster_requests import ClusterReport
from penstock.client.requests import CreateTopic
from penstock.errors import DiskFull
from penstock.storage.files import DiskFile, DiskFiles, Mode


class FullDisk:
    """Nothing new can be made below that directory while it is full."""

    def __init__(self, below: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        self.refused = 0
        real = DiskFiles.open

        def open_file(files: DiskFiles, name: str, mode: Mode) -> DiskFile:
            if self.is_full and mode == "create" and Path(files.path).is_relative_to(below):
                self.refused += 1
                raise DiskFull(f"no space left for {name}")
            return real(files, name, mode)

        monkeypatch.setattr(DiskFiles, "open", open_file)


@pytest.fixture
def disk(cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    """The one of c."""
    return FullDisk(tmp_path / "c", monkeypatch)


def in_sync(**names: str) -> Callable[[ClusterReport], bool]:
    """These, for each partition of a topic."""
    return lambda report: all(sorted(each.in_sync) == names[each.topic].split() for each in report.partitions)


def test_a_node_without_room_for_a_new_partition_goes_on_with_those_it_has(
    cluster: LocalCluster, disk: FullDisk
) -> None:
    cluster.create("old", 3)
    with penstock.connect(cluster.address) as q:
        disk.is_full = True
        # Led by those who lead no more than others: a and b.
        cluster.call(CreateTopic("new", 2, {}))
        cluster.until(in_sync(old="a b c", new="a b"))
        for partition in range(3):
            q.publish("old", b"as before", partition=partition)
        with q.consumer("g", "old") as consumer:
            got = 0
            while got < 3:
                for message in consumer.poll(max=3, wait="10s"):
                    message.ack()
                    got += 1
        assert disk.refused
        assert not cluster.nodes["c"].task.done()

        # Nor does it keep the node from starting.
        cluster.stop("c")
        cluster.start("c")
        for partition in range(2):
            q.publish("new", b"by others", partition=partition)

        disk.is_full = False
        cluster.until(in_sync(old="a b c", new="a b c"))


def test_a_partition_is_removed_once_there_is_room_to_note_that(
    cluster: LocalCluster, disk: FullDisk, tmp_path: Path
) -> None:
    cluster.create("t", 1)
    copies = tmp_path / "c" / "partitions"
    assert len(list(copies.iterdir())) == 1
    disk.is_full = True
    with penstock.connect(cluster.address) as q:
        q.delete_topic("t")
    cluster.until(lambda report: disk.refused > 0)
    assert len(list(copies.iterdir())) == 1
    disk.is_full = False
    cluster.until(lambda report: not list(copies.iterdir()))
    assert not cluster.nodes["c"].task.done()
