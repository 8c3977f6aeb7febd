"""A leader that is cut off from all but its clients, while others take its place: for how long it goes on serving.

Nothing that it says is wrong, so no look at what was committed sees it; and it lasts longer than the trouble of a seed.
"""

from __future__ import annotations

import pytest

from penstock.cluster.core import election
from penstock.cluster.core.leader import Leader
from simulation.cluster.etcd import NAME as ETCD
from simulation.cluster.etcd import TTL
from simulation.cluster.loop import MS, SECOND
from simulation.cluster.world import World

SEEDS = range(40)


def of_two(seed: int) -> World:
    """Its first partition has two replicas, and both are needed; there are others who could be one."""
    world = World(seed)
    world.faults.end()
    live = {name: node.registered for name, node in world.nodes.items()}
    world.etcd.records = {
        number: (1, election.first("t", number, world.names[:2], 2, live)) for number in world.etcd.records
    }
    world.loop.run_until(1 * SECOND)
    return world


def commits(world: World, name: str) -> bool:
    role = world.nodes[name].hosted[0].replica.role
    return isinstance(role, Leader) and role.is_open


@pytest.mark.parametrize("seed", SEEDS)
def test_it_stops_before_others_have_committed_for_long(seed: int) -> None:
    world = of_two(seed)
    old, heir, third = world.names[:3]
    assert commits(world, old)
    assert world.nodes[old].hosted[0].is_serving
    world.network.blocked |= world.network.pairs({old}, {ETCD, *world.names} - {old})
    world.loop.run_until(world.loop.now + TTL + SECOND)
    revision, record = world.etcd.records[0]
    assert record.leader == heir
    assert not commits(world, heir), "it needs one more"
    moved = election.reassign(record, [heir, third], world.etcd.live)
    assert moved is not None
    world.etcd.swap(0, revision, moved)

    def is_done() -> bool:
        return commits(world, heir) or commits(world, third)

    world.loop.run_until(world.loop.now + 10 * SECOND, is_done)

    assert is_done()
    assert not world.nodes[old].hosted[0].is_serving
    world.loop.run_until(world.loop.now + 5 * SECOND)
    assert world.etcd.records[0][1].replicas == (heir, third)
    assert not world.nodes[old].hosted[0].is_serving


def test_a_follower_that_dies_keeps_nobody_from_reading() -> None:
    world = of_two(0)
    leader, follower = world.names[:2]
    world.nodes[follower].crash()
    for _ in range(100):
        world.loop.run_until(world.loop.now + 100 * MS)
        assert world.nodes[leader].hosted[0].is_serving
