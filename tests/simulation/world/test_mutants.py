"""What the simulation is worth: builds that are broken on purpose, and how many seeds it takes to notice each.

`pytest --scale 2` tries all of them; otherwise only those are tried that the first seed notices.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from simulation.world.mutants import names
from simulation.world.test_world import simulate

SEEDS_MAX = 2_000
# Of those that are tried in each run of the tests.
FEW = 1


class Hunt(NamedTuple):
    """With which operations and faults, and how many seeds it took; None if it was not noticed yet."""

    operations: str
    faults: str = ""
    seconds: int = 10
    seeds: int | None = None


HUNTS = {
    "syncs_nothing": Hunt("batches", "lose_power,lose_power_everywhere", seeds=1),
    "reuses_the_owners_of_cached_frames": Hunt("leases,elect", seeds=1),
    "lets_a_join_overtake_a_leave": Hunt("hurry", "pause,cut_from_etcd,isolate"),
    "hands_out_leases_that_no_follower_knows": Hunt("leases,elect", "kill,lose_power", seeds=22),
    "forgets_what_producers_sent": Hunt("identified", seeds=1),
    "serves_before_recovery": Hunt("redrive,elect", seeds=2),
    "elects_whoever_is_there": Hunt("batches", "kill,lose_power,isolate", 20, 16),
    "answers_before_the_commit": Hunt("seek,batches", "kill,lose_power"),
    "extends_for_clients_only": Hunt("leases", seeds=1),
    "inherits_what_a_deleted_group_has_done": Hunt("delete_group", seeds=27),
    "drops_the_end_of_a_replay_that_is_moved": Hunt("replay", seeds=2),
    "forgets_acknowledgements_of_an_idle_consumer": Hunt("linger", seeds=3),
    "deletes_a_schedule_without_its_occurrence": Hunt("recur", seeds=2),
    "does_not_look_for_an_occurrence_before_it_publishes": Hunt("recur,elect", "kill,lose_power,restart"),
    "knows_letters_by_their_offsets": Hunt("redrive"),
    "leaves_dead_letters_behind": Hunt("redrive,join,rebalance", seeds=2),
    "keeps_the_copies_of_followers_whole": Hunt("retain,elect", seeds=4),
    "truncates_to_the_high_watermark": Hunt("batches,elect", "kill,lose_power"),
    "serves_before_its_epoch_has_begun": Hunt("elect,redrive", "kill,lose_power,isolate", seeds=1),
    "takes_fetches_and_replies_of_any_epoch": Hunt("elect,batches", "isolate,cut_between_nodes,pause"),
    "changes_the_isr_without_waiting_for_etcd": Hunt("batches", "cut_from_etcd,lose_commits,isolate"),
    "counts_the_pending_isr_only": Hunt("batches", "cut_from_etcd,lose_commits,isolate,kill"),
    "takes_an_unknown_outcome_for_a_win": Hunt("batches", "lose_commits,kill"),
    "waits_for_an_unknown_outcome": Hunt("batches", "lose_commits,kill"),
    "acknowledges_below_min_isr": Hunt("batches", "lose_power,isolate"),
    "compares_lineages_only_once": Hunt("elect,batches", "isolate,kill"),
    "goes_on_leading_after_a_restart": Hunt("elect,batches", "kill,restart,lose_power"),
    "forgets_who_was_to_be_a_replica": Hunt("reassign"),
    "tells_where_a_log_starts_with_data_only": Hunt("retain,elect"),
    "deletes_before_its_followers": Hunt("retain,elect,roll"),
}


@pytest.mark.parametrize("name", names())
def test_a_broken_build_is_noticed(name: str, scale: float) -> None:
    hunt = HUNTS[name]
    if scale <= 1 and (hunt.seeds is None or hunt.seeds > FEW):
        pytest.skip("takes long: --scale 2 tries it")
    given = ["--seconds", hunt.seconds, "--mutant", name, "--until-failure", "--operations", hunt.operations]
    ended = simulate(0, SEEDS_MAX, *given, *(["--faults", hunt.faults] if hunt.faults else []))
    told = re.search(r"failed after (\d+) seeds", ended.stdout)
    assert told is not None, ended.stdout + ended.stderr
    print(f"{name}: {told[1]} seeds")
