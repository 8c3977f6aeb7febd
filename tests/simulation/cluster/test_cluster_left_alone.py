"""A leader that is cut off while others take its place: for how long it goes on serving its clients.

It lasts longer than the trouble of a seed; and of what such a leader says, little can be told to be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from penstock.cluster.core import election
from penstock.cluster.core.leader import Leader
from simulation.cluster.checker import Violation
from simulation.cluster.etcd import NAME as ETCD
from simulation.cluster.etcd import TTL
from simulation.cluster.loop import MS, SECOND
from simulation.cluster.mutants import GO_ON_SERVING, broken
from simulation.cluster.world import World

SEEDS = range(40)
# Clusters of five nodes.
LARGE = tuple(seed for seed in SEEDS if len(World(seed).names) == 5)


def of(seed: int, replicas: int, min_isr: int) -> World:
    """Its partitions have so many replicas, led by the first node; there are others who could be one."""
    world = World(seed)
    world.faults.end()
    live = {name: node.registered for name, node in world.nodes.items()}
    world.etcd.records = {
        number: (1, election.first("t", number, world.names[:replicas], min_isr, live)) for number in world.etcd.records
    }
    world.loop.run_until(1 * SECOND)
    assert world.nodes[world.names[0]].hosted[0].is_serving
    return world


def of_two(seed: int) -> World:
    """Both are needed."""
    return of(seed, 2, 2)


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


def has_replaced(world: World, old: str) -> bool:
    return any(commits(world, name) for name in world.names if name != old)


def still_serves_its_followers_nodes(seed: int) -> bool:
    """Cut off from etcd alone: its followers follow another leader, and their nodes still send heartbeats to it."""
    world = of(seed, 3, 2)
    old = world.names[0]
    world.network.blocked |= world.network.pairs({old}, {ETCD})
    world.loop.run_until(world.loop.now + 10 * SECOND, lambda: has_replaced(world, old))
    assert has_replaced(world, old)
    # They have told it so, or will as soon as the packet arrives.
    world.loop.run_until(world.loop.now + 100 * MS)
    return any(serves_within(world, old, 5 * SECOND))


def still_serves_after_they_were_not_connected(seed: int) -> bool:
    """The same, but its followers could not tell it: they left while the network was cut."""
    world = of(seed, 3, 2)
    old = world.names[0]
    others = world.network.pairs({old}, {*world.names} - {old})
    world.network.blocked |= world.network.pairs({old}, {ETCD}) | others
    world.loop.run_until(world.loop.now + 10 * SECOND, lambda: has_replaced(world, old))
    assert has_replaced(world, old)
    world.network.blocked -= others
    world.loop.run_until(world.loop.now + world.timing.trust_us)
    return any(serves_within(world, old, 5 * SECOND))


def still_serves_with_some_of_its_followers(seed: int) -> bool:
    """Cut off together with one of two followers; the other one leads, and an operator replaces the two."""
    world = of(LARGE[seed % len(LARGE)], 3, 2)
    old, heir, loyal, *others = world.names
    world.network.blocked |= world.network.pairs({old, loyal}, {ETCD, heir, *others})
    world.loop.run_until(world.loop.now + TTL + SECOND)
    revision, record = world.etcd.records[0]
    assert record.leader == heir
    moved = election.reassign(record, [heir, *others], world.etcd.live)
    assert moved is not None
    world.etcd.swap(0, revision, moved)
    world.loop.run_until(world.loop.now + 10 * SECOND, lambda: commits(world, heir))
    assert commits(world, heir)
    world.loop.run_until(world.loop.now + world.timing.trust_us)
    return any(serves_within(world, old, 5 * SECOND))


def still_serves_alone(seed: int) -> bool:
    """With the only replica, after etcd has let go of its session: its topic may be another one by now."""
    world = of(seed, 1, 1)
    old = world.names[0]
    world.network.blocked |= world.network.pairs({old}, {ETCD})
    world.loop.run_until(world.loop.now + 10 * SECOND, lambda: old not in world.etcd.live)
    assert old not in world.etcd.live
    return any(serves_within(world, old, 5 * SECOND))


def serves_within(world: World, name: str, time: int) -> Iterator[bool]:
    """Whether it serves, from time to time."""
    end = world.loop.now + time
    while world.loop.now < end:
        hosted = world.nodes[name].hosted[0]
        yield hosted.is_serving and not hosted.is_held
        world.loop.run_until(world.loop.now + 50 * MS)


def serves_when_it_goes_on(seed: int) -> bool:
    """Stopped until its session is long over; what it hears then was on its way before: the answer to a keepalive, and
    fetches."""
    world = of_two(seed)
    old = world.names[0]
    node = world.nodes[old]
    node._keep()
    node.paused_until = world.loop.now + TTL + 2 * SECOND
    # A fetch is repeated after 600 ms.
    world.loop.run_until(world.loop.now + 700 * MS)
    world.network.blocked |= world.network.pairs({old}, {ETCD, *world.names} - {old})
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
def test_it_stops_as_soon_as_its_followers_follow_another_though_their_nodes_still_speak_to_it(seed: int) -> None:
    assert not still_serves_its_followers_nodes(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_it_stops_though_its_followers_left_while_they_could_not_tell_it(seed: int) -> None:
    assert not still_serves_after_they_were_not_connected(seed)


@pytest.mark.parametrize("seed", range(10))
def test_it_stops_though_some_of_its_followers_are_still_with_it(seed: int) -> None:
    assert not still_serves_with_some_of_its_followers(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_with_the_only_replica_stops_before_its_session_is_over(seed: int) -> None:
    assert not still_serves_alone(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_that_was_stopped_does_not_serve_by_what_was_sent_before(seed: int) -> None:
    assert not serves_when_it_goes_on(seed)


@pytest.mark.parametrize("name", GO_ON_SERVING)
def test_a_broken_build_goes_on_serving(name: str) -> None:
    looks = (
        still_serves,
        still_serves_its_followers_nodes,
        still_serves_after_they_were_not_connected,
        still_serves_with_some_of_its_followers,
        still_serves_alone,
        serves_when_it_goes_on,
    )
    with broken(name):
        assert any(goes_on(look, seed) for seed in SEEDS[:4] for look in looks)


def goes_on(look: Callable[[int], bool], seed: int) -> bool:
    try:
        return look(seed)
    except Violation:
        # A client has noticed.
        return True


def test_a_leader_goes_on_while_etcd_is_away_and_its_followers_are_there() -> None:
    world = of(0, 3, 2)
    leader = world.names[0]
    world.network.blocked |= world.network.pairs({*world.names}, {ETCD})
    assert all(serves_within(world, leader, 20 * SECOND))


def test_a_follower_that_dies_keeps_nobody_from_reading() -> None:
    world = of_two(0)
    leader, follower = world.names[:2]
    world.nodes[follower].crash()
    for _ in range(100):
        world.loop.run_until(world.loop.now + 100 * MS)
        assert world.nodes[leader].hosted[0].is_serving
