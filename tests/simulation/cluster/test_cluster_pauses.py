"""How long nobody leads, in the time of the simulation, when nothing else goes wrong.

The TTL is a part of it wherever the leader was the controller too, and its session has to run out first.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.cluster.core import election
from simulation.cluster.etcd import TTL
from simulation.cluster.loop import MS, SECOND
from simulation.cluster.world import World

SEEDS = range(20)


def longest_pause(seed: int, happens: Callable[[World], None]) -> int:
    """During which no leader of the first partition takes messages, from when it happens on."""
    world = World(seed)
    world.faults.end()
    world.loop.run_until(1 * SECOND)
    assert is_served(world)
    happens(world)
    longest, since = 0, world.loop.now
    while world.loop.now < 6 * SECOND:
        world.loop.run_until(world.loop.now + 5 * MS)
        if is_served(world):
            longest, since = max(longest, world.loop.now - since), world.loop.now
    assert world.etcd.records[0][1].epoch > 1, "nothing has happened"
    assert since == world.loop.now
    return longest


def is_served(world: World) -> bool:
    hosted = [node.hosted[0] for node in world.nodes.values() if node.is_up]
    return any(one.is_serving and not one.is_held for one in hosted)


def drain(world: World) -> None:
    revision, record = world.etcd.records[0]
    asked = election.drain(record, str(record.leader), world.etcd.live)
    assert asked is not None
    world.etcd.swap(0, revision, asked)


def kill_the_leader(world: World) -> None:
    world.nodes[str(world.etcd.records[0][1].leader)].crash()


def restart_the_leader(world: World) -> None:
    node = world.nodes[str(world.etcd.records[0][1].leader)]
    node.crash()
    node.start()


@pytest.mark.parametrize(
    ("happens", "at_most"),
    [(drain, 500 * MS), (kill_the_leader, TTL + 2 * SECOND), (restart_the_leader, TTL + 2 * SECOND)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_somebody_leads_again_soon(happens: Callable[[World], None], at_most: int) -> None:
    seeds = [seed for seed in SEEDS if len(World(seed).etcd.records[0][1].replicas) >= 3]
    pauses = {seed: longest_pause(seed, happens) for seed in seeds}
    print(
        f"{sorted(pauses.values())[len(pauses) // 2] // MS} ms at the median, {max(pauses.values()) // MS} ms at most"
    )
    assert len(pauses) > 8
    assert max(pauses.values()) <= at_most, pauses
