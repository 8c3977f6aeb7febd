"""How long publishing stops, in the time of the simulation, when nothing else goes wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.cluster.core import election
from simulation.cluster.etcd import TTL
from simulation.cluster.loop import MS, SECOND
from simulation.cluster.world import World

SEEDS = range(40)


def longest_gap(seed: int, happens: Callable[[World], None]) -> int:
    """Between two acknowledgements (`all`) of the first partition, from when it happens on."""
    world = World(seed)
    world.faults.end()
    world.pace_ms = 10
    world.loop.run_until(2 * SECOND)
    producer = world.producers[0]
    producer.longest_gap = 0
    happens(world)
    world.loop.run_until(8 * SECOND)
    assert world.etcd.records[0][1].epoch > 1, "nothing has happened"
    assert producer.acked_at > 7 * SECOND
    return producer.longest_gap


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


def with_three_replicas() -> list[int]:
    return [seed for seed in SEEDS if len(World(seed).etcd.records[0][1].replicas) >= 3]


@pytest.mark.parametrize(
    ("happens", "at_most"),
    [(drain, 500 * MS), (kill_the_leader, TTL + 2 * SECOND), (restart_the_leader, 2 * SECOND)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_publishing_goes_on_soon(happens: Callable[[World], None], at_most: int) -> None:
    gaps = {seed: longest_gap(seed, happens) for seed in with_three_replicas()}
    print(f"{sorted(gaps.values())[len(gaps) // 2] // MS} ms at the median, {max(gaps.values()) // MS} ms at most")
    assert len(gaps) > 10
    assert max(gaps.values()) <= at_most, gaps
