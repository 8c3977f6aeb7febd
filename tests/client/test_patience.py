"""Asking again, and what is said when it does not help."""

from __future__ import annotations

import asyncio

import pytest

from penstock.client.patience import patiently
from penstock.errors import (
    ConnectionLost,
    InvalidInput,
    LeadershipLost,
    NotCommitted,
    NotEnoughReplicas,
    NotLeader,
    PenstockError,
)

UNSENT = ConnectionLost("refused", was_sent=False)


def raised_by(*errors: PenstockError, retry_s: float = 0.5) -> PenstockError:
    """The last of them without end."""
    left = list(errors)

    async def ask() -> None:
        raise (left.pop(0) if len(left) > 1 else left[0]).again()

    with pytest.raises(PenstockError) as caught:
        asyncio.run(patiently(retry_s, ask))
    return caught.value


@pytest.mark.parametrize("doubt", [NotCommitted("late"), LeadershipLost("gone"), ConnectionLost("no answer")])
def test_that_nobody_knows_of_an_attempt_is_what_is_told_in_the_end(doubt: PenstockError) -> None:
    assert raised_by(NotLeader("nobody yet"), doubt, NotEnoughReplicas("too few")).message == doubt.message


def test_what_was_surely_not_carried_out_is_told_as_that() -> None:
    assert isinstance(raised_by(UNSENT, NotEnoughReplicas("too few")), NotEnoughReplicas)
    assert isinstance(raised_by(NotCommitted("late"), InvalidInput("wrong")), InvalidInput)


def test_no_attempt_is_begun_that_may_well_last_longer_than_it_is_to() -> None:
    asked = 0

    async def ask() -> None:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.09)
        raise NotLeader("nobody yet")

    with pytest.raises(NotLeader):
        asyncio.run(patiently(0.1, ask))
    assert asked == 1
