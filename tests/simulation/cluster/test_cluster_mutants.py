"""The simulation is worth something: builds with one rule broken are caught, each by a seed that the real one passes.

Only what a user could notice counts here: the looks at the inside that find bugs sooner are off (`is_strict`).
"""

from __future__ import annotations

import pytest

from simulation.cluster.checker import Violation
from simulation.cluster.mutants import GO_ON_SERVING, MUTANTS, broken
from simulation.cluster.seeds import run_seed

# For each: the first seeds that catch it, of those from 0 on. An assertion of the code itself does not count.
CAUGHT_BY: dict[str, tuple[int, ...]] = {
    "truncates_to_the_high_watermark": (40, 82),
    "takes_fetches_and_replies_of_any_epoch": (973, 1707),
    "changes_the_isr_without_waiting_for_etcd": (50, 62),
    "counts_the_pending_isr_only": (62, 77),
    "takes_an_unknown_outcome_for_a_win": (30, 59),
    "waits_for_an_unknown_outcome": (1920, 4015),
    "acknowledges_below_min_isr": (1, 3),
    "acknowledges_before_the_fsync": (0, 3),
    "knows_a_disk_by_its_node": (2, 10),
    "elects_whoever_is_there": (0, 7),
    "serves_before_its_epoch_has_begun": (3, 10),
    "leases_without_waiting_for_the_commit": (1, 6),
    "compares_lineages_only_once": (3, 62),
    "goes_on_leading_after_a_restart": (4, 5),
    "forgets_who_was_to_be_a_replica": (2102, 2787),
    "tells_where_a_log_starts_with_data_only": (28, 40),
    "deletes_before_its_followers": (38, 507),
}


def test_every_mutant_is_tried() -> None:
    assert {*CAUGHT_BY, *GO_ON_SERVING} == set(MUTANTS)


@pytest.mark.parametrize(("name", "seed"), [(name, seed) for name, seeds in CAUGHT_BY.items() for seed in seeds])
def test_a_broken_build_is_caught(name: str, seed: int) -> None:
    run_seed(seed, is_strict=False)
    with broken(name), pytest.raises(Violation):
        run_seed(seed, is_strict=False)
    run_seed(seed, is_strict=False)
