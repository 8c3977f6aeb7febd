"""Clusters under faults of all kinds, by seeds: what was promised holds in each of them, and the faults did happen.

Replay one seed: python -m tests.simulation.cluster SEED, or pytest tests/simulation/cluster --seed SEED
"""

from __future__ import annotations

from collections import Counter

import pytest

from simulation.cluster.checker import Violation
from simulation.cluster.seeds import run_seed
from simulation.cluster.world import UNCLEAN, World, lies

SEEDS = 3_000
# Those that once found a bug of the core, or of what is around it here.
FOUND = (9996, 11964, 12133, 23028, 310121, 332771)
# How often things happen, at least, for each seed.
OFTEN = {
    "crash": 1.0, "leader crash": 0.3, "crash of all": 0.8, "wipe": 0.2, "pause": 1.0, "network cut": 2.0,
    "lost message": 5.0, "slow disk": 0.5, "etcd away": 0.5, "unknown": 0.5, "session lost": 0.1, "election": 1.0,
    "epochs": 1.0, "served": 2.0, "shrunk": 0.5, "grown": 0.5, "cut": 0.2, "reset": 0.1, "trim": 0.5, "fenced": 5.0,
    "hold": 0.3, "handed over": 0.2, "moved": 0.2, "copy deleted": 0.1, "lease expired": 0.3, "acknowledged": 10.0,
    "leased": 3.0, "read": 5.0, "lease revoked": 0.1, "there and back": 0.1, "joiner dies": 0.005,
}  # fmt: skip
# The same, for seeds with lies.
LIES = {"stale": 1.0, "lost watch": 1.0, "lost answer": 1.0, "unknown": 1.0, "false keepalive": 0.1}


def run_all(seeds: list[int], least: dict[str, float]) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        counts += run_seed(seed)
    print(f"{len(seeds)} seeds: {dict(sorted(counts.items()))}")
    if len(seeds) < 400:
        return
    for kind, often in least.items():
        assert counts[kind] >= often * len(seeds), f"{kind}: only {counts[kind]} in {len(seeds)} seeds"


def test_promises_hold_under_faults(request: pytest.FixtureRequest, scale: float) -> None:
    only = request.config.getoption("--seed")
    if only is not None:
        run_seed(only)
    else:
        run_all([seed for seed in range(int(SEEDS * scale)) if not lies(seed)], OFTEN)


def test_promises_hold_though_etcd_lies(scale: float) -> None:
    run_all([seed for seed in range(int(SEEDS * scale)) if lies(seed)], LIES)


@pytest.mark.parametrize("seed", FOUND)
def test_seeds_that_once_found_a_bug_find_none(seed: int) -> None:
    run_seed(seed)


def test_a_seed_does_the_same_each_time() -> None:
    assert run_seed(11) == run_seed(11)
    assert run_seed(11) != run_seed(12)


def test_a_failure_says_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "_is_writable", lambda self: False)
    with pytest.raises(
        Violation, match=r"seed 3: not writable again[^$]*replay: python -m tests.simulation.cluster 3$"
    ):
        run_seed(3)


def test_after_an_unclean_election_replicas_agree_and_the_record_says_so(scale: float) -> None:
    counts: Counter[str] = Counter()
    for seed in range(UNCLEAN, UNCLEAN + int(100 * scale)):
        world = World(seed)
        counts += world.run()
        unclean = sum(len(record.unclean) for _, record in world.etcd.records.values())
        assert unclean == world.counts["unclean"], f"seed {seed}"
    assert counts["unclean"] >= 50 * scale
