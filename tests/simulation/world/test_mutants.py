"""What the simulation is worth: builds that are broken on purpose, each caught by a seed that the real one passes.

The search begins at a recorded seed. `pytest --scale 2` counts how many seeds from 0 on it takes to catch each.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from simulation.world.__main__ import DIED
from simulation.world.mutants import names
from simulation.world.test_world import simulate

SEEDS_MAX = 2_000
# A change of the program changes what happens in a seed: these many from the recorded one on are tried.
NEAR = 40


class Hunt(NamedTuple):
    """With which operations and faults, and a seed that catches it; None if none is known yet."""

    operations: str
    faults: str = ""
    seconds: int = 10
    seed: int | None = None


HUNTS = {
    "syncs_nothing": Hunt("batches", "lose_power,lose_power_everywhere", seed=0),
    "reuses_the_owners_of_cached_frames": Hunt("leases,elect", seed=0),
    "lets_a_join_overtake_a_leave": Hunt("hurry", "pause,cut_from_etcd,isolate"),
    "hands_out_leases_that_no_follower_knows": Hunt("leases,elect", "kill,lose_power"),
    "forgets_what_producers_sent": Hunt("identified", seed=0),
    "serves_before_recovery": Hunt("redrive,elect", seed=1),
    "elects_whoever_is_there": Hunt("batches", "kill,lose_power,isolate", 20, 15),
    "answers_before_the_commit": Hunt("seek,batches", "kill,lose_power"),
    "extends_for_clients_only": Hunt("leases", seed=0),
    "inherits_what_a_deleted_group_has_done": Hunt("delete_group"),
    "drops_the_end_of_a_replay_that_is_moved": Hunt("replay", seed=1),
    "forgets_acknowledgements_of_an_idle_consumer": Hunt("linger", seed=10),
    "deletes_a_schedule_without_its_occurrence": Hunt("recur", seed=4),
    "does_not_look_for_an_occurrence_before_it_publishes": Hunt("recur,elect", "kill,lose_power,restart"),
    "knows_letters_by_their_offsets": Hunt("redrive", seed=1),
    "leaves_dead_letters_behind": Hunt("redrive,join,rebalance", seed=1),
    "keeps_the_copies_of_followers_whole": Hunt("retain,elect", seed=3),
    "truncates_to_the_high_watermark": Hunt("batches,elect", "kill,lose_power", seed=12),
    "serves_before_its_epoch_has_begun": Hunt("elect,redrive", "kill,lose_power,isolate", seed=0),
    "takes_fetches_and_replies_of_any_epoch": Hunt("elect,batches", "isolate,cut_between_nodes,pause"),
    "changes_the_isr_without_waiting_for_etcd": Hunt("batches", "cut_from_etcd,lose_commits,isolate"),
    "counts_the_pending_isr_only": Hunt("batches", "cut_from_etcd,lose_commits,isolate,kill"),
    "takes_an_unknown_outcome_for_a_win": Hunt("batches", "lose_commits,kill"),
    "waits_for_an_unknown_outcome": Hunt("batches", "lose_commits,kill"),
    "acknowledges_below_min_isr": Hunt("batches", "lose_power,isolate", seed=2),
    "compares_lineages_only_once": Hunt("elect,batches", "isolate,kill"),
    "goes_on_leading_after_a_restart": Hunt("elect,batches", "kill,restart,lose_power", seed=2),
    "forgets_who_was_to_be_a_replica": Hunt("reassign"),
    "tells_where_a_log_starts_with_data_only": Hunt("retain,elect"),
    "deletes_before_its_followers": Hunt("retain,elect,roll"),
    "counts_a_session_from_the_answer": Hunt("cut_off", "compact_etcd", 40),
    "needs_no_follower_while_etcd_is_away": Hunt("cut_off", "compact_etcd", 40, seed=0),
    "rests_on_some_of_the_voters": Hunt("cut_off", "compact_etcd", 40),
    "trusts_itself_where_all_are_needed": Hunt("cut_off", "compact_etcd", 40, seed=0),
    "trusts_itself_with_the_only_replica": Hunt("cut_off", "compact_etcd", 40, seed=1),
    "keeps_the_fetches_of_followers_that_left": Hunt("cut_off", "compact_etcd", 40, seed=0),
    "keeps_the_fetches_of_an_earlier_stream": Hunt("cut_off", "compact_etcd", 40),
    "counts_a_fetch_from_its_arrival": Hunt("cut_off", "compact_etcd", 40, seed=4),
}


@pytest.mark.parametrize("name", names())
def test_a_broken_build_is_caught(name: str, scale: float) -> None:
    hunt = HUNTS[name]
    if scale > 1:
        seeds = 0, SEEDS_MAX
    elif hunt.seed is not None:
        seeds = hunt.seed, hunt.seed + NEAR
    else:
        pytest.skip("no seed is known that catches it: --scale 2 looks for one")
    given = ["--seconds", hunt.seconds, "--mutant", name, "--until-failure", "--operations", hunt.operations]
    ended = simulate(*seeds, *given, *(["--faults", hunt.faults] if hunt.faults else []))
    found = re.search(r"failed after (\d+) seeds", ended.stdout)
    assert found is not None, ended.stdout + ended.stderr
    assert DIED not in ended.stdout, ended.stdout
    print(f"{name}: {found[1]} seeds")
