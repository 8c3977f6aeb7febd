"""What a node wrote down of the copies on its disk."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Event

import msgspec
import pytest

from penstock.cluster.inventory import CHANGES, NAME, Inventory
from penstock.errors import DiskFull, LogCorrupt, PenstockError, SyncFailed, UnknownFormat
from penstock.storage.checked import read_checked, write_checked
from penstock.storage.files import Files
from penstock.storage.log import Log
from penstock.testing import Fault, FaultyFiles, Operation
from penstock.testing.memory_files import MemoryFiles

NONE = frozenset[str]().__contains__


def two_logs(first: int = 1) -> tuple[Log, Log]:
    ids = iter([bytes([first]) * 16, bytes([first + 1]) * 16])
    return Log.open(MemoryFiles(), new_log_id=lambda: next(ids)), Log.open(MemoryFiles(), new_log_id=lambda: next(ids))


def test_a_copy_that_is_gone_is_refused_and_one_that_never_was_is_not() -> None:
    files = MemoryFiles()
    inventory = Inventory(files)
    inventory.check("p", NONE)
    inventory.add("p", two_logs())
    inventory.check("p", {"p"}.__contains__)
    with pytest.raises(LogCorrupt, match="not there any more"):
        Inventory(files).check("p", {"q"}.__contains__)


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
    Inventory(files).check("p", NONE)
    inventory.add("p", two_logs(5))


def test_what_was_written_down_survives_a_power_loss() -> None:
    files = MemoryFiles()
    Inventory(files).add("p", two_logs())
    for seed in range(30):
        with pytest.raises(LogCorrupt):
            Inventory(MemoryFiles(files.disk.after_power_loss(Random(seed)))).check("p", NONE)


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


# --- changes ----------------------------------------------------------------------------------------------


class Ids:
    """As much of a log as an inventory looks at."""

    def __init__(self, log_id: bytes) -> None:
        self.log_id = log_id


def logs_of(number: int) -> tuple[Log, Log]:
    one, two = Ids(bytes([1]) + number.to_bytes(15, "big")), Ids(bytes([2]) + number.to_bytes(15, "big"))
    return one, two  # type: ignore[return-value]


def listed(files: Files) -> set[str]:
    """By the list alone, as a build reads it that knows of no changes."""
    body = read_checked(files, NAME, b"PNI\x01", "list")
    return set() if body is None else set(msgspec.json.decode(body))


def known(files: Files) -> set[str]:
    return set(Inventory(files)._copies)


def contents(files: Files, name: str) -> bytes:
    file = files.open(name, "read")
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def put(files: Files, name: str, data: bytes) -> None:
    if name in files.names():
        files.remove(name)
    file = files.open(name, "create")
    file.write([data])
    file.close()


def test_many_copies_are_written_down_without_writing_the_list_for_each() -> None:
    writes = 0
    files = MemoryFiles()

    def before(operation: Operation) -> None:
        nonlocal writes
        writes += operation == Operation("write", f"{NAME}.new")

    inventory = Inventory(FaultyFiles(files, before))
    for number in range(3_000):
        inventory.add(f"p{number}", logs_of(number))
    for number in range(1_000):
        inventory.remove(f"p{number}")
    assert writes < 10
    assert known(files) == {f"p{number}" for number in range(1_000, 3_000)}


def test_copies_that_come_at_the_same_time_are_written_together() -> None:
    """The first one is kept at the disk until all others wait behind it."""
    is_at_it, may_go_on, syncs = Event(), Event(), 0

    def before(operation: Operation) -> None:
        nonlocal syncs
        if operation == Operation("sync", CHANGES):
            syncs += 1
            is_at_it.set()
            assert may_go_on.wait(30)

    files = MemoryFiles()
    inventory = Inventory(FaultyFiles(files, before))
    with ThreadPoolExecutor(8) as pool:
        adding = [pool.submit(inventory.add, "p0", logs_of(0))]
        assert is_at_it.wait(30)
        adding += [pool.submit(inventory.add, f"p{number}", logs_of(number)) for number in range(1, 8)]
        while len(inventory._pending) < 8:
            pass
        may_go_on.set()
        for each in adding:
            each.result()
    assert syncs == 2
    assert known(files) == {f"p{number}" for number in range(8)}


def test_a_start_and_a_clean_end_leave_the_list_alone_which_earlier_builds_read() -> None:
    files = MemoryFiles()
    inventory = Inventory(files)
    inventory.add("p", logs_of(1))
    inventory.add("q", logs_of(2))
    inventory.remove("p")
    assert (listed(files), CHANGES in files.names()) == (set(), True)
    inventory.close()
    assert (listed(files), CHANGES in files.names()) == ({"q"}, False)
    Inventory(files).add("r", logs_of(3))
    Inventory(files)
    assert (listed(files), CHANGES in files.names()) == ({"q", "r"}, False)


def test_changes_of_another_list_are_void() -> None:
    """An earlier build has written the list, and did not know of them."""
    files = MemoryFiles()
    inventory = Inventory(files)
    inventory.add("p", logs_of(1))
    write_checked(files, NAME, b"PNI\x01", msgspec.json.encode({"q": ("1", "2")}))
    assert known(files) == {"q"}
    assert CHANGES not in files.names()


def test_changes_that_are_cut_short_are_what_a_crash_has_left_and_damaged_ones_are_refused() -> None:
    files = MemoryFiles()
    inventory = Inventory(files)
    for number in range(3):
        inventory.add(f"p{number}", logs_of(number))
    whole = contents(files, CHANGES)
    third = whole.rfind(b"PNB")
    for end in range(len(whole)):
        put(files, CHANGES, whole[:end])
        if NAME in files.names():
            files.remove(NAME)
        there = known(files)
        assert there == {f"p{number}" for number in range(len(there))}
        assert len(there) == (2 if end >= third else end // (third // 2))
    for at in range(len(whole)):
        put(files, CHANGES, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        if NAME in files.names():
            files.remove(NAME)
        if at < third:
            with pytest.raises((LogCorrupt, UnknownFormat)):
                Inventory(files)
        elif at != third + 3:
            assert known(files) == {"p0", "p1"}


def operations(inventory: Inventory) -> Iterator[tuple[str, set[str]]]:
    """Changes, with what is written down once each has returned. Some rewrite the list."""
    there: set[str] = set()
    for number in range(4):
        inventory.add(f"p{number}", logs_of(number))
        yield "added", there | {f"p{number}"}
        there.add(f"p{number}")
    inventory.remove("p1")
    there.discard("p1")
    yield "removed", set(there)
    inventory.close()
    yield "closed", set(there)
    inventory.add("p5", logs_of(5))
    yield "added", there | {"p5"}


class PowerLoss(Exception):
    pass


def test_what_was_acknowledged_survives_a_power_loss_at_every_operation() -> None:
    for stop in range(1_000):
        files, left = MemoryFiles(), stop

        def before(operation: Operation) -> None:
            nonlocal left
            if not left:
                raise PowerLoss
            left -= 1

        states: list[set[str]] = [set()]
        try:
            for _, there in operations(Inventory(FaultyFiles(files, before))):
                states.append(there)
        except PowerLoss:
            pass
        else:
            break
        # What was being done may be there or not.
        following = [there for _, there in operations(Inventory(MemoryFiles()))][len(states) - 1]
        for seed in range(20):
            survived = known(MemoryFiles(files.disk.after_power_loss(Random(seed))))
            assert survived in (states[-1], following), (stop, seed)
    assert stop > 20


def test_a_full_disk_refuses_a_copy_and_not_the_next_one() -> None:
    files, is_full = MemoryFiles(), False

    def before(operation: Operation) -> Fault | None:
        return Fault(DiskFull("full"), written=7) if is_full and operation.kind == "write" else None

    inventory = Inventory(FaultyFiles(files, before))
    inventory.add("p", logs_of(1))
    is_full = True
    for number in range(3):
        with pytest.raises(DiskFull):
            inventory.add(f"q{number}", logs_of(2))
    is_full = False
    inventory.add("r", logs_of(3))
    inventory.add("s", logs_of(4))
    assert set(inventory._copies) == known(files) == {"p", "r", "s"}


def test_a_full_disk_keeps_no_inventory_from_being_opened_and_closed() -> None:
    files, is_full = MemoryFiles(), False

    def before(operation: Operation) -> Fault | None:
        return Fault(DiskFull("full")) if is_full and operation.kind == "create" else None

    Inventory(FaultyFiles(files, before)).add("p", logs_of(1))
    is_full = True
    inventory = Inventory(FaultyFiles(files, before))
    assert set(inventory._copies) == {"p"}
    for change in (lambda: inventory.add("q", logs_of(2)), lambda: inventory.remove("p"), inventory.close):
        with pytest.raises(DiskFull):
            change()
    is_full = False
    inventory.add("q", logs_of(2))
    inventory.remove("p")
    assert known(files) == {"q"}


def test_nothing_is_written_behind_a_sync_that_failed() -> None:
    files = MemoryFiles()

    def before(operation: Operation) -> Fault | None:
        return Fault(SyncFailed("broken")) if operation == Operation("sync", CHANGES) else None

    inventory = Inventory(FaultyFiles(files, before))
    for _ in range(2):
        with pytest.raises(SyncFailed):
            inventory.add("p", logs_of(1))
    inventory.close()
    assert NAME not in files.names()


def test_an_error_is_heard_by_each_of_those_that_were_to_be_written_together() -> None:
    is_at_it, may_go_on = Event(), Event()

    def before(operation: Operation) -> Fault | None:
        if operation != Operation("write", CHANGES):
            return Fault(DiskFull("full")) if operation.kind == "write" else None
        is_at_it.set()
        assert may_go_on.wait(30)
        return Fault(DiskFull("full"))

    inventory = Inventory(FaultyFiles(MemoryFiles(), before))
    with ThreadPoolExecutor(4) as pool:
        adding = [pool.submit(inventory.add, "p0", logs_of(0))]
        assert is_at_it.wait(30)
        adding += [pool.submit(inventory.add, f"p{number}", logs_of(number)) for number in range(1, 4)]
        while len(inventory._pending) < 4:
            pass
        may_go_on.set()
        errors = [each.exception() for each in adding]
    assert all(isinstance(error, PenstockError) for error in errors)
    assert (inventory._pending, inventory._copies) == ({}, {})
