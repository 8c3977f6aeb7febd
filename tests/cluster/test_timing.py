"""How long is too long, for sessions of any length."""

from __future__ import annotations

import pytest

from penstock.cluster.core.timing import Timing
from penstock.cluster.following import HEARTBEAT_S
from penstock.cluster.node import TICK_S

SECOND_US = 1_000_000


@pytest.mark.parametrize("ttl_s", [2, 3, 6, 600])
def test_who_follows_and_has_nothing_to_copy_is_heard_of_before_it_counts_as_lost(ttl_s: int) -> None:
    timing = Timing.of_session(ttl_s * SECOND_US)
    assert timing.lag_us > (HEARTBEAT_S + TICK_S) * SECOND_US


@pytest.mark.parametrize("ttl_s", [2, 3, 6, 600])
def test_a_leader_trusts_a_sign_until_the_next_one_and_for_less_than_the_session_lasts(ttl_s: int) -> None:
    """The answer to a heartbeat is returned by the next one, and has to last until the one after that."""
    assert 2 * HEARTBEAT_S * SECOND_US < Timing.of_session(ttl_s * SECOND_US).trust_us < ttl_s * SECOND_US


def test_of_a_session_as_it_is_by_default_they_are_those_by_default() -> None:
    assert Timing.of_session(6 * SECOND_US) == Timing()
