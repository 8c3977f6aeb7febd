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


def test_on_which_nodes_it_was_is_told_as_it_was_then() -> None:
    commits = Commits()
    for offset in range(1, 30_001):
        commits.add(offset, offset, ("a", "b") if offset < 25_000 else ("a",) if offset < 29_000 else ("a", "c"))
    assert commits.of(24_998) == Commit(24_999, 24_999, ("a", "b"))
    assert commits.of(24_999) == Commit(25_000, 25_000, ("a",))
    assert commits.of(28_998) == Commit(28_999, 28_999, ("a",))
    assert commits.of(28_999) == Commit(29_000, 29_000, ("a", "c"))
    assert commits.last == 30_000


def test_what_is_cut_off_is_forgotten_and_others_come_to_its_offsets() -> None:
    commits = Commits()
    for offset in (1, 5, 9):
        commits.add(offset, offset * 10, ("a", "b") if offset < 9 else ("a",))
    commits.cut(7)
    assert commits.of(4) == Commit(5, 50, ("a", "b"))
    assert commits.of(5) is None
    commits.add(8, 99, ("c",))
    assert commits.of(5) == commits.of(7) == Commit(8, 99, ("c",))
    commits.cut(0)
    assert commits.last == 0
    assert commits.of(4) is None


def test_after_a_gap_nothing_is_said_of_what_was_before() -> None:
    commits = Commits()
    for offset in (1, 5):
        commits.add(offset, offset, ("a",))
    commits.clear()
    commits.add(9, 90, ("a",))
    commits.add(12, 120, ("a",))
    assert commits.of(4) is commits.of(8) is None
    assert commits.of(9) == Commit(12, 120, ("a",))
