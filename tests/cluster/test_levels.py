"""The feature level: raised once all members support it, and a build that is too old stays out."""

from __future__ import annotations

import msgspec
import pytest

from etcd_support import run
from lone_node import LoneNode
from penstock.cluster import levels
from penstock.cluster.core.election import first
from penstock.cluster.core.events import Registered
from penstock.cluster.etcd.store import Put
from penstock.cluster.levels import LEVEL, Finalized
from penstock.cluster.registration import Broker, Joined
from penstock.errors import InvalidSetting

PARTITION = "cd" * 16


def put(lone: LoneNode, key: str, value: msgspec.Struct) -> None:
    lone.etcd.commit({}, [Put(key, msgspec.json.encode(value))], [])


def finalized(lone: LoneNode) -> int:
    items = lone.etcd.read(lone.node.keys.level).items
    return msgspec.json.decode(items[lone.node.keys.level].value, type=Finalized).level if items else 1


async def rounds(lone: LoneNode) -> None:
    for _ in range(3):
        await lone.node.view.refresh()
        await lone.node.controller.round()


def test_the_level_is_raised_when_the_last_node_supports_it() -> None:
    async def main() -> None:
        lone = LoneNode()
        await lone.open()
        keys = lone.node.keys
        old = Broker("db", "b1", "127.0.0.1:2")
        put(lone, keys.broker("b"), old)
        await lone.join()
        await rounds(lone)
        assert finalized(lone) == 1
        put(lone, keys.broker("b"), msgspec.structs.replace(old, level=LEVEL + 5))
        await rounds(lone)
        assert finalized(lone) == LEVEL
        await lone.close()

    run(main)


def test_a_node_that_is_down_counts_by_the_build_it_had_while_it_has_replicas() -> None:
    async def main() -> None:
        lone = LoneNode()
        await lone.open()
        keys = lone.node.keys
        live = {"a": Registered("da", "a1"), "b": Registered("db", "b1")}
        lone.put(PARTITION, first("t", 0, ("a", "b"), 1, live))
        put(lone, keys.nodes + "b", Joined())
        # One that has nothing any more does not.
        put(lone, keys.nodes + "c", Joined())
        await lone.join()
        await rounds(lone)
        assert finalized(lone) == 1
        put(lone, keys.nodes + "b", Joined(LEVEL))
        await rounds(lone)
        assert finalized(lone) == LEVEL
        await lone.close()

    run(main)


def test_a_build_that_is_older_than_the_cluster_does_not_start() -> None:
    async def main() -> None:
        lone = LoneNode()
        await lone.open()
        put(lone, lone.node.keys.level, Finalized(LEVEL + 1))
        await lone.close()
        with pytest.raises(InvalidSetting, match=f"at feature level {LEVEL + 1}, and this build supports levels up to"):
            await lone.open()
        assert not lone.etcd.read(lone.node.keys.claims).items

    run(main)


def test_a_level_that_is_raised_while_an_older_build_starts_keeps_it_out() -> None:
    async def main() -> None:
        lone = LoneNode()
        await lone.open()
        commit = lone.etcd.commit

        def raised_first(guards, puts, deletes):  # type: ignore[no-untyped-def]
            """The controller of newer nodes is faster, by a moment that this node does not know of."""
            if any(put.key == lone.node.keys.broker("a") for put in puts):
                lone.etcd.commit = commit  # type: ignore[method-assign]
                put(lone, lone.node.keys.level, Finalized(LEVEL + 1))
            return commit(guards, puts, deletes)

        lone.etcd.commit = raised_first  # type: ignore[method-assign]
        with pytest.raises(InvalidSetting, match="at feature level"):
            await lone.join()
        assert not lone.etcd.read(lone.node.keys.brokers).items
        await lone.close()

    run(main)


def test_a_node_that_joins_while_the_level_is_raised_is_not_overlooked() -> None:
    async def main() -> None:
        lone = LoneNode()
        await lone.open()
        await lone.join()
        put(lone, lone.node.keys.level, Finalized(1))
        await lone.node.view.refresh()
        guards, keep = lone.node.levels.joining()
        # It joins after the controller has looked.
        joins = Put(lone.node.keys.broker("b"), msgspec.json.encode(Broker("d", "b1", "127.0.0.1:2")))
        lone.etcd.commit(guards, [keep, joins], [])
        await lone.node.levels.raise_level()
        assert finalized(lone) == 1
        await lone.close()

    run(main)


def test_an_old_node_of_a_newer_cluster_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        lone = LoneNode()
        await lone.open()
        await lone.join()
        await rounds(lone)
        put(lone, lone.node.keys.broker("old"), Broker("d", "i", "127.0.0.1:2"))
        await rounds(lone)
        assert finalized(lone) == LEVEL, "a level is never lowered"
        await lone.close()

    run(main)
    told = [record.getMessage() for record in caplog.records if "does not support feature level" in record.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("node old runs a build")


def test_levels_are_documented_one_by_one() -> None:
    assert levels.__doc__ is not None
    assert all(f"    {level}   " in levels.__doc__ for level in range(1, LEVEL + 1))
