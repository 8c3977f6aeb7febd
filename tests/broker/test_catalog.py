from __future__ import annotations

from itertools import count
from random import Random

import msgspec
import pytest

from penstock.broker.catalog import _MAGIC, NAME, Catalog, _read
from penstock.broker.names import check_name
from penstock.broker.settings import TopicSettings, make_settings
from penstock.errors import (
    AlreadyExists,
    DiskFull,
    InvalidName,
    InvalidSetting,
    LogCorrupt,
    TopicNotFound,
    UnknownFormat,
)
from penstock.storage.checked import write_checked
from penstock.storage.files import Files
from penstock.testing import Fault, FaultyFiles, ManualClock, MemoryDisk, MemoryFiles, Operation

HOSTILE = [
    "",
    ".",
    "..",
    ".hidden",
    "../../etc/passwd",
    "a/b",
    "a\\b",
    "a b",
    "a\n",
    "\n",
    "a\0b",
    "naïve",
    "\u202eevil",
    "💥",
    "__internal",
    "x" * 201,
    "a;drop",
    "$(id)",
    "%2e%2e",
    "a:b",
    "*",
    "-" * 300,
    None,
    7,
    b"bytes",
]


def open_catalog(files: Files) -> Catalog:
    numbers = count()
    return Catalog.open(files, clock=ManualClock(), new_id=lambda: next(numbers).to_bytes(16, "big"))


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused_and_change_nothing(name: object) -> None:
    disk = MemoryDisk()
    catalog = open_catalog(MemoryFiles(disk))
    before = bytes(disk.names["catalog"].current)
    with pytest.raises(InvalidName):
        catalog.create_topic(name)  # type: ignore[arg-type]
    with pytest.raises(InvalidName):
        catalog.topic(name)  # type: ignore[arg-type]
    assert bytes(disk.names["catalog"].current) == before


@pytest.mark.parametrize("name", ["a", "orders", "Orders.v2", "a-b_c.d", "-", "_private", "x" * 200, "0", "a..b"])
def test_plain_names_are_taken(name: str) -> None:
    assert check_name("topic", name) == name


def test_topics_survive_a_restart_as_they_were() -> None:
    disk = MemoryDisk()
    catalog = open_catalog(MemoryFiles(disk))
    settings = make_settings(retention_age_us=5, cleanup="compact")
    created = [catalog.create_topic("b", 3, settings), catalog.create_topic("a")]
    again = open_catalog(MemoryFiles(disk.after_kill()))
    assert again.topics == sorted(created, key=lambda topic: topic.name)
    assert again.topic("b").settings == settings
    assert len(set(again.topic("a").partitions)) == 6


def test_a_topic_exists_once() -> None:
    catalog = open_catalog(MemoryFiles())
    catalog.create_topic("a")
    with pytest.raises(AlreadyExists):
        catalog.create_topic("a")


def test_partitions_grow_and_do_not_shrink() -> None:
    catalog = open_catalog(MemoryFiles())
    before = catalog.create_topic("a", 2)
    after = catalog.change_topic("a", added=catalog.new_partitions("a", 4))
    assert after.partitions[:2] == before.partitions
    assert len(set(after.partitions)) == 4
    with pytest.raises(InvalidSetting):
        catalog.new_partitions("a", 3)


@pytest.mark.parametrize("partitions", [0, -1, 1001, 2.5, "3", True, None])
def test_a_number_of_partitions_out_of_range_is_refused(partitions: object) -> None:
    with pytest.raises(InvalidSetting):
        open_catalog(MemoryFiles()).create_topic("a", partitions)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "values",
    [
        {"retention_age_us": 0},
        {"retention_bytes": -5},
        {"cleanup": "shred"},
        {"colour": "red"},
        {"max_delay_us": "long"},
        {"tombstone_age_us": None},
    ],
)
def test_settings_that_do_not_exist_or_are_out_of_range_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(InvalidSetting):
        make_settings(**values)
    with pytest.raises(InvalidSetting):
        TopicSettings().changed(**values)


def test_a_deleted_topic_is_gone_and_its_directories_are_listed_until_they_are() -> None:
    disk = MemoryDisk()
    catalog = open_catalog(MemoryFiles(disk))
    record = catalog.create_topic("a", 2)
    catalog.delete_topic("a")
    with pytest.raises(TopicNotFound):
        catalog.topic("a")
    disk = disk.after_kill()
    again = open_catalog(MemoryFiles(disk))
    assert again.removing == record.partitions
    for partition in record.partitions:
        again.removed(partition)
    assert open_catalog(MemoryFiles(disk.after_kill())).removing == ()


def test_a_missing_or_damaged_catalog_is_refused_when_there_is_data() -> None:
    disk = MemoryDisk()
    catalog = open_catalog(MemoryFiles(disk))
    catalog.create_topic("a")
    MemoryFiles(disk).directory("partition")
    data = bytes(disk.names["catalog"].current)
    for position in range(4, len(data)):
        disk.names["catalog"].current[:] = data
        disk.names["catalog"].current[position] ^= 1
        with pytest.raises(LogCorrupt):
            open_catalog(MemoryFiles(disk))
    disk.names["catalog"].current[:] = data
    disk.names["catalog"].current[3] = 2
    with pytest.raises(UnknownFormat):
        open_catalog(MemoryFiles(disk))
    del disk.names["catalog"]
    with pytest.raises(LogCorrupt):
        open_catalog(MemoryFiles(disk))


def test_a_change_that_can_not_be_written_does_not_happen() -> None:
    state = {"full": False}

    def before(operation: Operation) -> Fault | None:
        return Fault(DiskFull("no space left"), written=3) if state["full"] and operation.kind == "write" else None

    disk = MemoryDisk()
    catalog = open_catalog(FaultyFiles(MemoryFiles(disk), before))
    catalog.create_topic("a")
    state["full"] = True
    for change in (lambda: catalog.create_topic("b"), lambda: catalog.delete_topic("a")):
        with pytest.raises(DiskFull):
            change()
    assert [topic.name for topic in catalog.topics] == ["a"]
    state["full"] = False
    catalog.create_topic("b")
    assert [topic.name for topic in open_catalog(MemoryFiles(disk.after_kill())).topics] == ["a", "b"]


def test_a_power_loss_leaves_the_topics_of_before_or_after_each_change() -> None:
    told: list[tuple[list[str], MemoryDisk]] = []
    names: list[str] = []

    def before(operation: Operation) -> None:
        told.append((list(names), disk.copy()))

    disk = MemoryDisk()
    catalog = open_catalog(FaultyFiles(MemoryFiles(disk), before))
    for name in "abc":
        catalog.create_topic(name)
        names.append(name)
    for name in "ab":
        names.remove(name)
        catalog.delete_topic(name)
    random = Random(1)
    for known, moment in told:
        for _ in range(20):
            found = {topic.name for topic in open_catalog(MemoryFiles(moment.after_power_loss(random))).topics}
            # One more than was told, if it was being made or unmade.
            assert set(known) <= found
            assert len(found) <= len(known) + 1


def test_a_catalog_of_an_older_version_gets_a_secret_that_stays_though_the_disk_is_full_at_first() -> None:
    disk = MemoryDisk()
    open_catalog(MemoryFiles(disk)).create_topic("t", 1)
    contents = _read(MemoryFiles(disk))
    assert contents is not None
    write_checked(MemoryFiles(disk), NAME, _MAGIC, msgspec.json.encode(msgspec.structs.replace(contents, secret="")))
    is_full = True

    def before(operation: Operation) -> Fault | None:
        return Fault(DiskFull("no space left")) if is_full and operation.kind == "write" else None

    catalog = open_catalog(FaultyFiles(MemoryFiles(disk), before))
    assert catalog.secret
    is_full = False
    catalog.create_topic("u", 1)
    again = open_catalog(MemoryFiles(disk))
    assert again.secret == catalog.secret
    assert [topic.name for topic in again.topics] == ["t", "u"]
