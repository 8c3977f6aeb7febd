"""Groups that move to a mirror which has not everything: nothing is passed over unless somebody says so."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from broker_process import PENSTOCK, broker_process
from penstock.client.blocking import Client
from penstock.errors import MirrorConflict
from penstock.spark.builtin.mirror_groups import move, moves, translate
from penstock.spark.builtin.mirror_runs import Run
from penstock.spark.builtin.mirror_table import TABLE, Course, Table, Way
from penstock.testing import VirtualQueue


@pytest.fixture
def near() -> Iterator[VirtualQueue]:
    """With a topic of ten messages, and a group that has done two of them."""
    with VirtualQueue() as q:
        q.create_topic("jobs", 1)
        q.create_group("billing")
        for number in range(10):
            q.publish("jobs", f"{number}")
        q.seek("billing", "jobs", 2, partition=0)
        yield q


@pytest.fixture
def far() -> Iterator[Client]:
    with VirtualQueue() as q:
        q.create_topic("jobs", 1)
        q.create_topic(TABLE, 1, cleanup="compact", retention=None)
        yield q


def mirrored(near: Client, far: Client, *offsets: int) -> None:
    """As a mirror leaves it that had only these."""
    way = Way("jobs", far.topic("jobs").id, near.topic("jobs").id, 0)
    runs = [Run(offset, far.publish("jobs", f"{offset}").offset, 1) for offset in offsets]
    table = Table(far)
    table.put_courses({way: Course("jobs", "mirror", 0)})
    table.grow({way: runs}, {way: 0})


@pytest.mark.parametrize(
    ("offsets", "missing"),
    [(range(10), 0), (range(2, 10), 0), (range(7, 10), 5), ((2, 3, 6, 8), 3), ((0, 1, 2, 3), 0), ((), 8)],
    ids=["all", "all it needs", "began later", "losses", "not that far yet", "nothing yet"],
)
def test_what_a_group_would_never_get_is_counted_and_it_is_not_moved(
    near: Client, far: Client, offsets: tuple[int, ...], missing: int
) -> None:
    mirrored(near, far, *offsets)
    (found,) = moves(near, far, "billing")
    assert (found.floor, found.missing) == (2, missing)
    if missing:
        with pytest.raises(MirrorConflict, match=rf"^{missing} messages of partition 0 of jobs .*--allow-missing"):
            move(near, far, "billing", [found])
        assert "billing" not in {each.name for each in far.groups()}
    move(near, far, "billing", [found], allow_missing=bool(missing))
    with far.consumer("billing", "jobs", until_idle="1ms") as consumer:
        got = [int(message.value or b"") for message in consumer if message.ack() is None]
    assert got == [offset for offset in offsets if offset >= 2]


def test_the_command_moves_only_what_it_was_told_to(tmp_path: Path) -> None:
    with (
        broker_process(tmp_path / "near") as source,
        broker_process(tmp_path / "far") as target,
        penstock.connect(source.address) as near,
        penstock.connect(target.address) as far,
    ):
        for q in (near, far):
            q.create_topic("jobs", 1)
        near.create_group("billing")
        for number in range(4):
            near.publish("jobs", f"{number}")
        near.seek("billing", "jobs", "earliest")
        far.create_topic(TABLE, 1, cleanup="compact", retention=None)
        mirrored(near, far, 2, 3)
        command = [PENSTOCK, "pipeline", "mirror-groups", "--groups", "billing"]
        command += ["--from", source.address, "--to", target.address]
        refused = subprocess.run(command, capture_output=True, text=True)
        assert refused.returncode
        assert "2 messages of partition 0 of jobs" in refused.stderr
        assert "[mirror_conflict]" in refused.stderr
        assert not far.groups()
        subprocess.run([*command, "--allow-missing", "--dry-run"], check=True, capture_output=True)
        assert not far.groups()
        subprocess.run([*command, "--allow-missing"], check=True, capture_output=True)
        assert far.lag("billing") == {"jobs": [2]}


def test_what_it_has_done_or_the_source_has_not_either_is_not_missing(near: VirtualQueue, far: Client) -> None:
    mirrored(near, far, 2, 3, 8, 9)
    with near.consumer("billing", "jobs", until_idle="1ms") as consumer:
        for message in consumer:
            if message.value in (b"4", b"5", b"6"):
                message.ack()
            else:
                message.nack(delay="1h")
    assert [(each.floor, each.missing) for each in moves(near, far, "billing")] == [(2, 1)]
    near.change_topic("jobs", retention={"hours": 3})
    near.clock.advance("12h")
    assert near.topic("jobs").partitions[0].start_offset == 10
    assert [each.missing for each in moves(near, far, "billing")] == [0]


def test_what_comes_again_behind_one_that_waits_is_counted(near: Client, far: Client) -> None:
    mirrored(near, far, *range(8))
    with near.consumer("billing", "jobs", until_idle="1ms") as consumer:
        for message in consumer:
            if message.value == b"3":
                message.nack(delay="1h")
            else:
                message.ack()
    (found,) = moves(near, far, "billing")
    # 4 to 7 are there, 8 and 9 will be.
    assert (found.floor, found.to, found.again, found.behind, found.missing) == (3, 3, 6, 0, 0)


def test_an_offset_that_was_left_out_is_told_as_that(near: Client, far: Client) -> None:
    mirrored(near, far, 2, 3, 6)
    for offset, expected in {
        0: (0, True, True),
        3: (1, True, False),
        5: (2, True, True),
        6: (2, True, False),
        9: (3, False, False),
    }.items():
        assert translate(far, "jobs", 0, offset)[4:] == expected
