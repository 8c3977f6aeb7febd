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


def test_what_was_committed_nobody_knows_when_is_not_said_to_have_been_later() -> None:
    commits = Commits()
    commits.add(1, 10, ("a",))
    commits.skip(5)
    commits.skip(4)
    commits.skip(9)
    commits.add(12, 120, ("a", "b"))
    assert commits.of(1) is commits.of(4) is commits.of(5) is commits.of(8) is None
    assert commits.of(9) == commits.of(11) == Commit(12, 120, ("a", "b"))
    commits.skip(20)
    assert commits.of(12) is None
    assert commits.last == 20


def test_others_come_to_the_same_offsets() -> None:
    commits = Commits()
    for offset in (1, 5, 9):
        commits.add(offset, offset, ("a",))
    commits.clear()
    assert commits.last == 0
    commits.add(6, 90, ("b",))
    commits.add(8, 120, ("b",))
    assert commits.of(4) is commits.of(5) is None
    assert commits.of(6) == commits.of(7) == Commit(8, 120, ("b",))


def test_skipped_steps_do_not_keep_old_ones() -> None:
    commits = Commits()
    for offset in range(1, 60_001, 2):
        commits.skip(offset)
        commits.add(offset + 1, offset, ("a",))
    assert commits.of(59_999) == Commit(60_000, 59_999, ("a",))
    assert commits.of(1_000) is None
    assert len(commits._offsets) <= 20_000
