"""Order by key and by partition, and what a poison message does to it."""

from __future__ import annotations

import numpy as np
import pytest
from pyroaring import BitMap64

from broker_support import ack_all, clock_of, group_on, rows, run, values
from penstock.batch import Batch
from penstock.broker.broker import Broker
from penstock.broker.group import Group, Handed
from penstock.broker.key_hash import hash_of, key_hashes
from penstock.broker.key_order import KeyOrder
from penstock.broker.lanes import Lanes
from penstock.broker.settings import GroupSettings
from penstock.errors import LeaseError, NotFound
from penstock.message import Message, Priority
from penstock.testing import MemoryDisk, MemoryFiles

SECOND = 1_000_000
KEYED = GroupSettings(ordering="key", max_retries=1, backoff_jitter=0)


async def keyed(broker: Broker, words: str, settings: GroupSettings = KEYED) -> Group:
    """`words` like "a1 a2 b1": the letter is the key, - is none."""
    topic = await broker.create_topic("t", 1)
    for word in words.split():
        await topic.publish(Message(word.encode(), key=None if word[0] == "-" else word[:1].encode()))
    return await group_on(broker, "g", "t", settings)


async def give_back(group: Group, handed: list[Handed], value: bytes, **how: object) -> None:
    for receipt, offset, found in rows(handed):
        if found == value:
            await group.nack(receipt._replace(offsets=offset), **how)  # type: ignore[arg-type]


def test_a_busy_key_is_passed_over_and_others_flow() -> None:
    async def work(broker: Broker) -> None:
        group = await keyed(broker, "a1 a2 b1 a3 c1")
        first = await group.lease("x", 1)
        assert values(first) == [b"a1"]
        second = await group.lease("y", 10)
        assert values(second) == [b"b1", b"c1"]
        assert await group.lease("z", 10) == []
        await ack_all(group, first)
        assert values(await group.lease("z", 10)) == [b"a2", b"a3"]

    run(work)


def test_messages_without_a_key_wait_for_nobody() -> None:
    async def work(broker: Broker) -> None:
        group = await keyed(broker, "-1 -2 -3")
        assert [values(await group.lease(c, 1)) for c in ("x", "y", "z")] == [[b"-1"], [b"-2"], [b"-3"]]

    run(work)


def test_a_hot_key_with_a_long_backlog_does_not_hide_what_is_behind_it() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        await topic.publish_batch(Batch.from_columns([b"hot"] * 5000, keys=[b"a"] * 5000, now_us=1))
        await topic.publish(Message(b"cold", key=b"b"))
        group = await group_on(broker, "g", "t", KEYED)
        await group.lease("x", 1)
        assert values(await group.lease("y", 3)) == [b"cold"]

    run(work)


def test_a_nack_takes_back_what_came_after_it_of_the_same_key() -> None:
    async def work(broker: Broker) -> None:
        group = await keyed(broker, "a1 a2 b1 a3")
        handed = await group.lease("x", 10)
        await give_back(group, handed, b"a1", reason="later")
        for receipt, offset, value in rows(handed):
            if value in (b"a2", b"a3"):
                with pytest.raises(LeaseError):
                    await group.ack(receipt._replace(offsets=offset))
            if value == b"b1":
                await group.ack(receipt._replace(offsets=offset))
        assert await group.lease("x", 10) == []
        clock_of(broker).advance_us(SECOND)
        again = await group.lease("x", 10)
        assert values(again) == [b"a1", b"a2", b"a3"]
        assert [group.attempt(again[0].receipt, o) for o in (0, 1, 3)] == [2, 1, 1]

    run(work)


def test_a_poison_key_is_parked_alone_and_goes_on_when_released() -> None:
    async def work(broker: Broker) -> None:
        group = await keyed(broker, "a1 a2 b1")
        for _ in range(2):
            handed = await group.lease("x", 10)
            await give_back(group, handed, b"a1", reason="poison", delay_us=0)
            for receipt, offset, value in rows(handed):
                if value == b"b1":
                    await group.ack(receipt._replace(offsets=offset))
        await broker.settle()
        (parked,) = group.parked()
        assert (parked.key, parked.parked.offset, parked.parked.reason) == (b"a", 0, "poison")
        await broker.topic("t").publish(Message(b"b2", key=b"b"))
        assert values(await group.lease("x", 10)) == [b"b2"]
        with pytest.raises(NotFound):
            await group.release_key(b"never")
        assert await group.release_key(b"a") == 1
        assert (values(await group.lease("x", 10)), group.parked()) == ([b"a2"], [])

    run(work)


@pytest.mark.parametrize(
    ("on_poison", "left"), [("skip", [b"a2", b"b1"]), ("block", []), ("park", [b"b1"])], ids=["skip", "block", "park"]
)
def test_what_a_rejected_message_holds_up(on_poison: str, left: list[bytes]) -> None:
    async def work(broker: Broker) -> None:
        group = await keyed(broker, "a1 a2 b1", KEYED.changed(on_poison=on_poison))
        (handed,) = await group.lease("x", 1)
        await group.reject(handed.receipt, "no good")
        assert values(await group.lease("x", 10)) == left
        if on_poison == "block":
            assert [parked.key for parked in group.parked()] == [None]
            await group.release_key(None)
            assert values(await group.lease("x", 10)) == [b"a2", b"b1"]

    run(work)


def test_parked_keys_and_busy_keys_are_known_after_a_crash() -> None:
    disk = MemoryDisk()
    crashed: list[MemoryDisk] = []

    async def before(broker: Broker) -> None:
        group = await keyed(broker, "a1 a2 b1 b2 c1 c2")
        (first,) = await group.lease("x", 1)
        await group.reject(first.receipt, "poison")
        (second,) = await group.lease("x", 1)
        assert values([second]) == [b"b1"]
        (third,) = await group.lease("x", 1)
        await group.nack(third.receipt, delay_us=5 * SECOND)
        await broker.settle()
        crashed.append(disk.after_kill())

    async def after(broker: Broker) -> None:
        group = broker.group("g", "t")
        assert [parked.key for parked in group.parked()] == [b"a"]
        assert await group.lease("y", 10) == []
        clock_of(broker).advance_us(5 * SECOND)
        assert values(await group.lease("y", 10)) == [b"c1", b"c2"]

    run(before, MemoryFiles(disk))
    run(after, MemoryFiles(crashed[0]))


def test_strict_order_gives_out_one_lease_at_a_time_and_stops_at_what_fails() -> None:
    async def work(broker: Broker) -> None:
        settings = GroupSettings(ordering="partition", max_retries=1, backoff_jitter=0)
        group = await keyed(broker, "a1 b1 c1", settings)
        handed = await group.lease("x", 2)
        assert values(handed) == [b"a1", b"b1"]
        assert await group.lease("y", 2) == []
        await give_back(group, handed, b"a1")
        assert await group.lease("y", 2) == []
        clock_of(broker).advance_us(SECOND)
        handed = await group.lease("y", 3)
        assert values(handed) == [b"a1", b"b1", b"c1"]
        await give_back(group, handed, b"a1")
        clock_of(broker).advance_us(60 * SECOND)
        assert await group.lease("y", 3) == []
        assert [parked.key for parked in group.parked()] == [None]
        await group.release_key(None)
        assert values(await group.lease("y", 3)) == [b"b1", b"c1"]

    run(work)


@pytest.mark.parametrize("ordering", ["key", "partition"])
def test_what_a_lease_held_that_ran_out_comes_at_once_and_ahead_of_what_is_behind_it(ordering: str) -> None:
    async def work(broker: Broker) -> None:
        group = await keyed(broker, "a1 a2 a3 a4", KEYED.changed(ordering=ordering))
        assert values(await group.lease("x", 2)) == [b"a1", b"a2"]
        assert await group.lease("y", 10) == []
        clock_of(broker).advance_us(group.settings.visibility_us)
        for word in (b"a1", b"a2", b"a3", b"a4"):
            handed = await group.lease("y", 1)
            assert values(handed) == [word]
            assert await group.lease("z", 10) == []
            await ack_all(group, handed)

    run(work)


def test_other_settings_take_over_the_leases_that_are_out() -> None:
    async def work(broker: Broker) -> None:
        group = await keyed(broker, "a1 a2 b1", GroupSettings())
        handed = await group.lease("x", 1)
        await broker.change_group("g", ordering="key")
        assert values(await group.lease("y", 10)) == [b"b1"]
        await ack_all(group, handed)
        assert values(await group.lease("y", 10)) == [b"a2"]
        group.topic.partitions[0].groups.state("g").check()

    run(work)


def test_keys_are_hashed_together_as_they_are_one_by_one() -> None:
    keys = [None, b"", b"a", b"ab" * 31, b"x" * 64, b"y" * 65, b"z" * 500, "ключ".encode()]
    batch = Batch.from_columns([b"v"] * len(keys), keys=keys, now_us=1)
    hashes = key_hashes(batch).tolist()
    assert hashes == [0, *(hash_of(key) for key in keys[1:] if key is not None)]
    assert key_hashes(batch.slice(2, 6)).tolist() == hashes[2:6]
    assert np.unique(hashes).size == len(keys)


def test_groups_with_different_orders_do_not_mind_each_other() -> None:
    async def work(broker: Broker) -> None:
        strict = await keyed(broker, "a1 a2", GroupSettings(ordering="partition"))
        loose = await group_on(broker, "loose", "t", GroupSettings())
        assert values(await strict.lease("x", 1)) == [b"a1"]
        assert values(await loose.lease("x", 10)) == [b"a1", b"a2"]

    run(work)


def test_the_keys_of_what_may_come_along_are_known_for_each_lane() -> None:
    """So nobody has to read them again."""
    order = KeyOrder(lambda offsets: np.full(len(offsets), 7, np.uint64), Lanes(BitMap64([1, 2]), BitMap64()))
    order.leased(1, BitMap64([0]), np.array([7], np.uint64))
    for lane, offsets in ((Priority.HIGH, [1, 2]), (Priority.NORMAL, [3, 4])):
        order.block(lane, np.array(offsets), np.full(2, 7, np.uint64))
    order.left(1, BitMap64([0]))
    assert order.more(Priority.HIGH, BitMap64([1]), 9) == BitMap64([2])
    assert order.more(Priority.NORMAL, BitMap64([3]), 9) == BitMap64([4])
    assert order.known(Priority.HIGH, np.array([1, 2])).tolist() == [7, 7]
    assert order.known(Priority.NORMAL, np.array([2, 3, 4])).tolist() == [0, 7, 7]
