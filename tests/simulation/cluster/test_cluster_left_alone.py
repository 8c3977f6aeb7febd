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
from simulation.cluster.mutants import GO_ON_SERVING, broken
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


def still_serves(seed: int) -> bool:
    """Cut off, after another node has committed; or 5 s later."""
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
    if world.nodes[old].hosted[0].is_serving:
        return True
    world.loop.run_until(world.loop.now + 5 * SECOND)
    assert world.etcd.records[0][1].replicas == (heir, third)
    return world.nodes[old].hosted[0].is_serving


def serves_when_it_goes_on(seed: int) -> bool:
    """Stopped while a keepalive is under way, until its session is long over; what it hears then is that one's answer.

    Fetches that were under way, too, would be heard then, and count for the while that followers are trusted.
    """
    world = of_two(seed)
    old = world.names[0]
    node = world.nodes[old]
    world.network.blocked |= world.network.pairs({old}, {*world.names} - {old})
    world.loop.run_until(world.loop.now + 100 * MS)
    assert node.hosted[0].is_serving
    node._keep()
    node.paused_until = world.loop.now + TTL + 2 * SECOND
    world.loop.run_until(world.loop.now + 100 * MS)
    world.network.blocked |= world.network.pairs({old}, {ETCD})
    world.etcd.watchers.pop(old)
    world.loop.run_until(node.paused_until)
    assert world.etcd.records[0][1].leader == world.names[1]

    def is_serving() -> bool:
        return node.hosted[0].is_serving

    world.loop.run_until(world.loop.now + 3 * SECOND, is_serving)
    return is_serving()


@pytest.mark.parametrize("seed", SEEDS)
def test_it_stops_before_others_have_committed_for_long(seed: int) -> None:
    assert not still_serves(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_that_was_stopped_does_not_serve_by_an_old_answer(seed: int) -> None:
    assert not serves_when_it_goes_on(seed)


@pytest.mark.parametrize("name", GO_ON_SERVING)
def test_a_broken_build_goes_on_serving(name: str) -> None:
    with broken(name):
        assert any(look(seed) for seed in SEEDS[:4] for look in (still_serves, serves_when_it_goes_on))


def test_a_follower_that_dies_keeps_nobody_from_reading() -> None:
    world = of_two(0)
    leader, follower = world.names[:2]
    world.nodes[follower].crash()
    for _ in range(100):
        world.loop.run_until(world.loop.now + 100 * MS)
        assert world.nodes[leader].hosted[0].is_serving
