"""A node whose disk is full: it goes on with what it has, and takes up the rest once there is room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

import penstock
from cluster_nodes import LocalCluster
from penstock.client.cluster_requests import ClusterReport, ElectLeaders
from penstock.client.requests import CreateTopic
from penstock.cluster.inventory import CHANGES
from penstock.errors import DiskFull, LeadershipLost, LeaseError, NotCommitted
from penstock.storage.files import DiskFile, DiskFiles, Mode


class FullDisk:
    """While it is full, no file can be created below that directory, and the list of copies can't grow; nor can a log,
    unless there is room in the files of logs that are open."""

    def __init__(self, below: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        self.has_room_in_logs = True
        # Paths of files, relative to the directory.
        self.refused: set[str] = set()
        self._below = below
        real_open, real_write, real_write_at = DiskFiles.open, DiskFile.write, DiskFile.write_at

        def open_file(files: DiskFiles, name: str, mode: Mode) -> DiskFile:
            if mode == "create":
                self._check(Path(files.path, name))
            return real_open(files, name, mode)

        def write(file: DiskFile, buffers: Sequence[bytes | memoryview]) -> None:
            self._check_grown(file)
            return real_write(file, buffers)

        def write_at(file: DiskFile, position: int, data: bytes | memoryview) -> None:
            self._check_grown(file)
            return real_write_at(file, position, data)

        monkeypatch.setattr(DiskFiles, "open", open_file)
        monkeypatch.setattr(DiskFile, "write", write)
        monkeypatch.setattr(DiskFile, "write_at", write_at)

    def _check_grown(self, file: DiskFile) -> None:
        if file.path.endswith(CHANGES) or (file.path.endswith(".log") and not self.has_room_in_logs):
            self._check(Path(file.path))

    def _check(self, path: Path) -> None:
        if self.is_full and path.is_relative_to(self._below):
            self.refused.add(str(path.relative_to(self._below)))
            raise DiskFull(f"no space left for {path}")


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
    cluster.until(lambda report: CHANGES in disk.refused)
    assert len(list(copies.iterdir())) == 1
    disk.is_full = False
    cluster.until(lambda report: not list(copies.iterdir()))
    assert not cluster.nodes["c"].task.done()


def test_a_leader_without_room_for_acknowledgements_hands_over_and_its_node_goes_on(
    cluster: LocalCluster, disk: FullDisk
) -> None:
    disk.has_room_in_logs = False
    cluster.create("t", 1)
    cluster.call(ElectLeaders("t", 0, "c"))
    cluster.until(lambda report: report.partitions[0].leader == "c")
    with penstock.connect(cluster.address) as q:
        for number in range(20):
            q.publish("t", b"%d" % number)
        with q.consumer("g", "t", prefetch=1) as consumer:
            acked = []
            while len(acked) < 20:
                for message in consumer.poll(max=1, wait="10s"):
                    disk.is_full = len(acked) == 5 or disk.is_full
                    # A failure leaves the outcome open, or reports that nothing was done: then the message comes again.
                    with suppress(NotCommitted, LeadershipLost, LeaseError, DiskFull):
                        message.ack()
                        acked.append(message.value)
        assert len(set(acked)) == 20
        assert any("/deliveries/" in path for path in disk.refused)
        cluster.until(lambda report: report.partitions[0].leader in ("a", "b"))
        assert not cluster.nodes["c"].task.done()

        disk.is_full = False
        q.publish("t", b"last")
        cluster.until(in_sync(t="a b c"))
