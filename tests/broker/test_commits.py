"""When replicated messages were committed."""

from __future__ import annotations

from penstock.broker.commits import Commit, Commits


def test_a_message_was_committed_with_the_first_step_beyond_it() -> None:
    commits = Commits()
    for offset, time_us in ((5, 50), (9, 90), (9, 95), (12, 120)):
        commits.add(offset, time_us, ("a", "b"))
    assert commits.of(5) == commits.of(8) == Commit(9, 90, ("a", "b"))
    assert commits.of(11) == Commit(12, 120, ("a", "b"))


def test_what_came_before_the_first_step_and_what_is_to_come_is_not_known() -> None:
    commits = Commits()
    assert commits.of(0) is None
    commits.add(5, 50, ())
    assert commits.of(4) is None
    assert commits.of(5) is None


def test_old_steps_are_forgotten() -> None:
    commits = Commits()
    for offset in range(1, 20_001):
        commits.add(offset, offset, ())
    assert commits.of(19_999) == Commit(20_000, 20_000, ())
    assert commits.of(5_000) is None
