"""A leader, as transcripts: what it is told, and what it has done about it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.cluster.core.effects import Ask, Begin, Committed, Follow, Hold, Propose, Reread, Rest, Serve, Trim, Wake
from penstock.cluster.core.events import (
    Begun,
    Contact,
    Expired,
    ProposalEnded,
    RecordSeen,
    Registered,
    Tick,
    Trimmed,
)
from penstock.cluster.core.leader import Leader
from penstock.cluster.core.membership import still_in_sync
from penstock.cluster.core.messages import Data, Diverged, Foreign, Reply, StartAt, Withdraw
from penstock.cluster.core.record import Member
from replica_support import SECOND_US, Play, fetch, new_leader, open_leader, record


def replies(effects: list[object]) -> list[Reply]:
    return [effect for effect in effects if isinstance(effect, Reply)]


def trims(effects: list[object]) -> list[Trim]:
    return [effect for effect in effects if isinstance(effect, Trim)]


def proposed(effects: list[object]) -> list[Propose]:
    return [effect for effect in effects if isinstance(effect, Propose)]


def test_a_leader_serves_once_the_beginning_of_its_epoch_is_on_all_disks_of_the_isr() -> None:
    a = Play("a", [(4, 0)], [(4, 0)], (10, 4))
    assert a.ticks() == []
    assert a.does(RecordSeen(7, record())) == [Begin(5)]
    assert a.does(Begun(5, (10, 4))) == []
    assert a.writes(0, 11) == []
    assert a.writes(1, 5) == []
    assert a.does(fetch("b", 1, (11, 5))) == []
    assert a.does(fetch("c", 1, (11, 5))) == [
        Serve(a.now_us + 5 * SECOND_US),
        Committed(0, 11),
        Committed(1, 5),
    ]


def test_what_followers_have_of_earlier_epochs_is_not_committed_before_something_of_this_one_is() -> None:
    a = new_leader(record())
    a.does(fetch("b", 1, (10, 4), (4, 4)))
    assert not any(isinstance(effect, Committed) for effect in a.does(fetch("c", 1, (10, 4), (4, 4))))
    assert a.replica.committed == (0, 0)


def test_the_high_watermark_is_what_the_slowest_has_on_disk() -> None:
    a = open_leader(record())
    a.writes(0, 20, durable=15)
    assert a.does(fetch("b", 2, (20, 5)))[-1:] == []
    assert a.does(fetch("c", 2, (18, 5))) == [
        Reply("c", "c1", 5, 2, (Data(18, 20), None), (11, 5), (0, 0)),
        Committed(0, 15),
    ]
    assert a.writes(0, 20) == [Committed(0, 18)]


def test_a_fetch_of_a_later_epoch_ends_the_wait_of_the_one_before_so_that_its_refusal_is_the_last_reply() -> None:
    a = open_leader(record())
    assert replies(a.does(fetch("b", 2, (11, 5), epoch=6))) == [Reply("b", "b1", 5, 2, is_fenced=True)]
    told = replies(a.writes(0, 12, durable=11))
    assert [reply.to for reply in told] == ["c"]


def test_a_fetch_with_nothing_to_tell_is_held_until_there_is() -> None:
    a = open_leader(record())
    assert replies(a.ticks()) == []
    told = a.writes(0, 12, durable=11)
    assert told == [
        Reply("b", "b1", 5, 1, (Data(11, 12), None), (11, 5), (0, 0)),
        Reply("c", "c1", 5, 1, (Data(11, 12), None), (11, 5), (0, 0)),
    ]
    assert a.writes(0, 13, durable=11) == []


def test_both_logs_travel_together() -> None:
    a = open_leader(record())
    a.writes(0, 12)
    a.writes(1, 9)
    assert replies(a.does(fetch("b", 2, (11, 5))))[0].parts == (Data(11, 12), Data(5, 9))


def test_a_fetch_of_another_epoch_is_fenced() -> None:
    a = open_leader(record())
    fenced = Reply("b", "b1", 5, 9, is_fenced=True)
    assert a.does(fetch("b", 9, (11, 5), epoch=4)) == [fenced, Reread()]
    assert a.does(fetch("b", 9, (11, 5), epoch=6)) == [fenced, Reread()]


def test_a_fetch_of_a_process_or_a_disk_that_is_not_registered_is_fenced() -> None:
    a = open_leader(record())
    for changes in ({"incarnation": "b0"}, {"disk": "other"}):
        assert replies(a.does(fetch("b", 9, (11, 5), **changes)))[0].is_fenced


def test_a_fetch_of_somebody_who_is_no_replica_is_fenced() -> None:
    assert replies(open_leader(record()).does(fetch("x", 1, (0, 0))))[0].is_fenced


def test_a_late_fetch_changes_nothing() -> None:
    a = open_leader(record())
    a.writes(0, 12)
    a.does(fetch("b", 3, (12, 5)))
    assert a.does(fetch("b", 2, (11, 5))) == []
    assert a.does(fetch("c", 2, (12, 5))) == [Committed(0, 12)]


def test_a_follower_that_has_gone_another_way_is_told_where_they_part() -> None:
    a = Play("a", [(1, 0), (3, 6)], [(1, 0)], (10, 4))
    a.ticks()
    a.does(RecordSeen(7, record()))
    a.does(Begun(5, (10, 4)))
    assert replies(a.does(fetch("b", 1, (9, 4), (2, 1))))[0].parts == (Diverged(1, 6), None)
    assert replies(a.does(fetch("b", 2, (12, 4), (3, 1))))[0].parts == (Diverged(3, 10), None)
    assert replies(a.does(fetch("b", 3, (9, 7), (3, 4))))[0].parts == (None, Diverged(1, 4))


def test_a_follower_of_another_epoch_of_the_same_number_is_told_so() -> None:
    a = Play("a", [(1, 0, 11), (4, 6, 44)], [(1, 0, 11)], (10, 4))
    a.ticks()
    a.does(RecordSeen(7, record()))
    a.does(Begun(5, (10, 4), 55))
    assert replies(a.does(fetch("b", 1, (9, 4), (4, 1), ids=(99, 11))))[0].parts == (Foreign(), None)
    assert replies(a.does(fetch("b", 2, (11, 5), (5, 5), ids=(55, 99))))[0].parts == (None, Foreign())
    # The same epoch, one that is not known to be another, and one that this leader does not have.
    assert replies(a.does(fetch("b", 3, (9, 4), (4, 1), ids=(44, 11))))[0].parts == (Data(9, 11), Data(4, 5))
    assert replies(a.does(fetch("b", 4, (9, 4), (4, 1), ids=(0, 0))))[0].parts == (Data(9, 11), Data(4, 5))
    assert replies(a.does(fetch("b", 5, (9, 4), (3, 1), ids=(99, 11))))[0].parts == (Diverged(1, 6), None)


def test_a_follower_whose_log_ends_before_the_leaders_begins_starts_anew() -> None:
    a = open_leader(record())
    assert a.does(Trimmed(0, 8)) == []
    assert replies(a.does(fetch("b", 2, (7, 5), (4, 5))))[0].parts == (StartAt(8), None)
    assert replies(a.does(fetch("b", 3, (9, 5), (3, 5))))[0].parts == (StartAt(8), None)
    assert replies(a.does(fetch("b", 4, (8, 5), (0, 5))))[0].parts == (Data(8, 11), None)


def test_followers_of_a_partition_that_nobody_writes_to_are_told_where_its_logs_are_to_begin() -> None:
    a = open_leader(record())
    effects = a.does(Expired(0, 8))
    assert [(each.to, each.parts, each.starts) for each in replies(effects)] == [
        ("b", (None, None), (8, 0)),
        ("c", (None, None), (8, 0)),
    ]
    # Told once; and nothing more is asked of a follower that has done it.
    assert replies(a.does(fetch("b", 2, (11, 5), starts=(8, 0)))) == []
    assert replies(a.does(Expired(0, 8))) == []


def test_a_leader_deletes_when_all_of_the_isr_have() -> None:
    a = open_leader(record())
    assert trims(a.does(Expired(0, 8))) == []
    assert trims(a.does(fetch("b", 2, (11, 5), starts=(8, 0)))) == []
    assert a.replica.site.starts == (0, 0)
    assert trims(a.does(fetch("c", 2, (11, 5), starts=(8, 0)))) == [Trim(0, 8)]
    assert trims(a.does(fetch("c", 3, (11, 5), starts=(8, 0)))) == []
    a.does(Trimmed(0, 8))
    assert a.replica.site.starts == (8, 0)


def test_a_leader_deletes_as_far_as_the_slowest_of_the_isr_has() -> None:
    a = open_leader(record())
    a.does(Expired(1, 3))
    a.does(fetch("b", 2, (11, 5), starts=(0, 3)))
    a.does(Expired(1, 4))
    a.does(fetch("b", 3, (11, 5), starts=(0, 4)))
    assert trims(a.does(fetch("c", 2, (11, 5), starts=(0, 3)))) == [Trim(1, 3)]


def test_a_follower_of_a_build_that_does_not_say_where_its_logs_begin_holds_up_nothing() -> None:
    a = open_leader(record(isr="a b"))
    a.does(fetch("b", 2, (11, 5), starts=None))
    effects = a.does(Expired(0, 8))
    assert trims(effects) == [Trim(0, 8)]
    # It would not stop asking.
    assert replies(effects) == []


def test_a_new_leader_does_not_serve_before_the_isr_has_deleted_what_it_has() -> None:
    a = Play("a", [(4, 0)], [(4, 0)], (10, 4))
    a.does(Trimmed(0, 6))
    a.ticks()
    a.does(RecordSeen(7, record(isr="a b")))
    a.does(Begun(5, (10, 4)))
    a.writes(0, 11)
    a.writes(1, 5)
    (told,) = replies(a.does(fetch("b", 1, (11, 5))))
    assert (told.parts, told.starts) == ((None, None), (6, 0))
    assert not a.replica.role.is_open
    a.does(fetch("b", 2, (11, 5), starts=(6, 0)))
    assert a.replica.role.is_open


def test_a_follower_joins_the_isr_when_it_has_deleted_what_the_leader_has() -> None:
    a = open_leader(record(isr="a b"))
    a.does(Expired(0, 8))
    a.does(fetch("b", 2, (11, 5), starts=(8, 0)))
    a.does(Trimmed(0, 8))
    effects = a.does(fetch("c", 1, (11, 5)))
    assert proposed(effects) == []
    effects = a.does(fetch("c", 2, (11, 5), starts=(8, 0)))
    assert [effect.record for effect in proposed(effects)] == [record()]


def test_a_follower_that_has_what_the_leader_is_just_deleting_does_not_join_the_isr() -> None:
    a = open_leader(record(isr="a b"))
    a.does(Expired(0, 8))
    assert trims(a.does(fetch("b", 2, (11, 5), starts=(8, 0)))) == [Trim(0, 8)]
    assert proposed(a.does(fetch("c", 1, (11, 5)))) == []


def test_an_empty_follower_goes_on_where_it_begins() -> None:
    a = open_leader(record())
    assert replies(a.does(fetch("b", 2, (6, 5), (0, 5))))[0].parts == (Data(6, 11), None)
    assert replies(a.does(fetch("b", 3, (12, 5), (0, 5))))[0].parts == (StartAt(0), None)


def test_a_fetch_that_comes_before_the_epoch_has_begun_is_looked_at_then() -> None:
    a = Play("a", [(4, 0)], [(4, 0)], (10, 4))
    a.ticks()
    a.does(RecordSeen(7, record()))
    assert a.does(fetch("b", 1, (12, 4), (4, 4))) == []
    assert replies(a.does(Begun(5, (10, 4))))[0].parts == (Diverged(4, 10), None)


def test_a_follower_that_lags_leaves_the_isr() -> None:
    a = open_leader(record())
    a.writes(0, 12)
    a.waits(3)
    a.does(fetch("b", 2, (12, 5)))
    assert proposed(a.ticks()) == []
    a.waits(1.5)
    a.does(fetch("b", 3, (12, 5)))
    assert proposed(a.ticks()) == [Propose(7, record(isr="a b"))]


def test_a_follower_that_waits_and_is_heard_of_is_caught_up() -> None:
    a = open_leader(record())
    for _ in range(10):
        a.waits(1)
        assert proposed(a.ticks(contacts=a.hears("b c"))) == []


def test_a_follower_whose_session_is_gone_leaves_the_isr_at_once() -> None:
    a = open_leader(record())
    assert proposed(a.ticks(live="a b")) == [Propose(7, record(isr="a b"))]


def test_the_isr_never_shrinks_below_what_can_commit() -> None:
    a = open_leader(record(isr="a b"))
    assert proposed(a.ticks(live="a")) == []


def test_a_leader_knows_how_many_of_an_isr_that_can_not_shrink_are_still_in_sync() -> None:
    a = open_leader(record(isr="a b"))
    role = a.replica.role
    assert isinstance(role, Leader)
    assert len(still_in_sync(a.now_us, role)) == 2
    a.ticks(live="a")
    assert len(still_in_sync(a.now_us, role)) == 1
    a.ticks(live="a b c")
    assert len(still_in_sync(a.now_us, role)) == 2
    a.writes(0, 12)
    a.waits(4.5)
    assert len(still_in_sync(a.now_us, role)) == 1, "it lags"
    a.does(fetch("b", 2, (12, 5)))
    assert len(still_in_sync(a.now_us, role)) == 2


def test_a_follower_joins_once_it_has_all_that_is_committed_and_the_beginning_of_the_epoch() -> None:
    a = open_leader(record(isr="a b"))
    a.writes(0, 12)
    a.does(fetch("b", 2, (12, 5)))
    assert a.replica.committed == (12, 5)
    assert proposed(a.does(fetch("c", 1, (10, 4), (4, 4)))) == []
    assert proposed(a.does(fetch("c", 2, (11, 5)))) == []
    assert proposed(a.does(fetch("c", 3, (12, 5)))) == [Propose(7, record(isr="a b c"))]


def test_a_follower_that_joins_on_another_disk_takes_the_place_of_the_old_one() -> None:
    a = open_leader(record(isr="a b"))
    live = {**Play("x").replica.site.tick.live, "a": Registered("da", "a1"), "b": Registered("new", "b2")}
    a.does(Tick(a.now_us + SECOND_US, live, {}))
    joined = proposed(a.does(fetch("b", 1, (11, 5), disk="new", incarnation="b2")))
    assert joined[0].record.isr == (Member("a", "da"), Member("b", "new"))


def test_while_a_change_of_the_isr_is_pending_both_count() -> None:
    a = open_leader(record(isr="a b"))
    a.does(fetch("c", 1, (11, 5)))
    a.writes(0, 12)
    assert a.does(fetch("b", 2, (12, 5))) == []
    assert a.does(fetch("c", 2, (12, 5))) == [Committed(0, 12)]
    b_leaves = open_leader(record())
    b_leaves.ticks(live="a c")
    b_leaves.writes(0, 12)
    assert b_leaves.does(fetch("c", 2, (12, 5))) == []
    assert b_leaves.does(RecordSeen(8, record(isr="a c")))[0] == Committed(0, 12)


def test_an_unknown_outcome_is_asked_again_and_counts_as_pending_until_then() -> None:
    a = open_leader(record(isr="a b"))
    a.does(fetch("c", 1, (11, 5)))
    a.writes(0, 12)
    a.does(fetch("b", 2, (12, 5)))
    assert a.does(ProposalEnded()) == [Reread(), Wake(a.now_us + SECOND_US // 10)]
    assert a.does(RecordSeen(7, record(isr="a b"))) == []
    a.waits(0.1)
    assert proposed(a.ticks()) == [Propose(7, record(isr="a b c"))]
    assert a.replica.committed == (11, 5)
    assert Committed(0, 12) in a.does(RecordSeen(9, record(isr="a b", successor="x")))


def test_who_was_proposed_by_a_proposal_that_was_lost_and_is_dead_now_holds_nothing_up() -> None:
    a = open_leader(record(isr="a b"))
    assert proposed(a.does(fetch("c", 1, (11, 5)))) == [Propose(7, record(isr="a b c"))]
    a.does(ProposalEnded())
    a.does(RecordSeen(7, record(isr="a b")))
    a.ticks(live="a b")
    a.writes(0, 12)
    a.does(fetch("b", 2, (12, 5)))
    assert a.replica.committed == (11, 5), "the proposal may be on its way to etcd yet"
    a.waits(0.1)
    assert proposed(a.ticks(live="a b")) == [Propose(7, record(isr="a b"))], "the record as it is"
    assert Committed(0, 12) in a.does(RecordSeen(8, record(isr="a b")))
    assert a.does(ProposalEnded()) == []
    assert proposed(a.ticks(live="a b")) == []


def test_while_in_doubt_it_proposes_now_and_then() -> None:
    a = open_leader(record(isr="a b"))
    a.does(fetch("c", 1, (11, 5)))
    a.does(ProposalEnded())
    assert proposed(a.ticks()) == []
    assert proposed(a.does(fetch("c", 2, (11, 5)))) == []
    a.waits(0.1)
    assert proposed(a.ticks()) == [Propose(7, record(isr="a b c"))]


def test_one_proposal_is_made_at_a_time() -> None:
    a = open_leader(record(isr="a b"))
    assert len(proposed(a.does(fetch("c", 1, (11, 5))))) == 1
    assert proposed(a.ticks()) == []


def test_below_min_isr_nothing_is_committed() -> None:
    a = new_leader(record(isr="a"))
    assert a.replica.committed == (0, 0)
    assert proposed(a.does(fetch("b", 1, (11, 5)))) == [Propose(7, record(isr="a b"))]
    assert Committed(0, 11) in a.does(RecordSeen(8, record(isr="a b")))


def test_a_leader_without_etcd_serves_while_all_voters_answer() -> None:
    a = open_leader(record())
    a.waits(4)
    answered = a.hears("b c")
    assert Serve(a.now_us + 5 * SECOND_US) in a.ticks(session=-1, contacts=answered)
    a.waits(4)
    assert not served(a.ticks(session=-1, contacts=answered | a.hears("b")))


@pytest.mark.parametrize("min_isr", [1, 2])
def test_a_leader_without_etcd_does_not_rest_on_some_of_the_voters(min_isr: int) -> None:
    """The missing one may lead, and the operator may have replaced the other replicas."""
    a = open_leader(record(min_isr=min_isr))
    for _ in range(5):
        a.waits(1)
        a.ticks(session=-1, contacts=a.hears("b c"))
    for _ in range(5):
        a.waits(1)
        a.ticks(session=-1, contacts=a.hears("c"))
    assert a.replica.role.until_us <= a.now_us  # type: ignore[union-attr]


def test_a_leader_without_etcd_and_without_voters_serves_while_a_follower_answers() -> None:
    a = open_leader(record(isr="a", min_isr=1))
    a.does(fetch("b", 1, (11, 5)))
    a.waits(4)
    assert served(a.ticks(session=-1, live="a", contacts=a.hears("b")))
    assert not served(a.ticks(session=-1, live="a"))


def test_a_leader_without_etcd_stops_as_soon_as_a_voter_withdraws_though_its_node_goes_on_answering() -> None:
    a = open_leader(record())
    a.waits(4)
    assert served(a.ticks(session=-1, contacts=a.hears("b c")))
    assert a.does(Withdraw("b", "db", "b1", 5, 1)) == [Hold()]
    for _ in range(10):
        a.waits(1)
        assert not served(a.ticks(session=-1, contacts=a.hears("b c")))
    a.does(fetch("b", 2, (11, 5)))
    assert served(a.ticks(session=-1, contacts=a.hears("b c"))), "it follows again, at this epoch"


def test_a_fetch_that_was_withdrawn_counts_no_more_if_it_arrives_late() -> None:
    a = new_leader(record())
    for name in "bc":
        a.does(Withdraw(name, f"d{name}", f"{name}1", 5, 2))
        a.does(fetch(name, 1, (11, 5)))
        a.does(fetch(name, 2, (11, 5)))
    assert not served(a.ticks(session=-1, contacts=a.hears("b c")))


def test_a_fetch_of_a_restarted_follower_that_was_withdrawn_counts_no_more_if_it_arrives_late() -> None:
    a = open_leader(record())
    a.waits(6)
    a.does(Withdraw("b", "db", "b2", 5, 1))
    live = {**a.replica.site.tick.live, "b": Registered("db", "b2")}
    contacts = {"b": Contact(a.now_us, a.now_us, a.now_us)}
    assert not served(a.does(Tick(0, live, contacts)))
    contacts["c"] = Contact(0, a.now_us, a.now_us)
    a.does(fetch("b", 1, (11, 5), incarnation="b2"))
    assert not served(a.does(Tick(0, live, contacts)))
    a.does(fetch("b", 2, (11, 5), incarnation="b2"))
    assert served(a.does(Tick(0, live, contacts)))


def test_a_withdrawal_from_another_epoch_says_nothing_about_this_one() -> None:
    a = open_leader(record())
    assert a.does(Withdraw("b", "db", "b1", 4, 9)) == []
    a.waits(1)
    a.does(fetch("b", 2, (11, 5)))
    assert served(a.ticks(session=-1, contacts=a.hears("b c")))


def test_a_fetch_from_before_the_epoch_began_can_be_withdrawn() -> None:
    a = Play("a", [(4, 0)], [(4, 0)], (10, 4))
    a.ticks()
    a.does(RecordSeen(7, record()))
    a.does(fetch("b", 1, (10, 4), (4, 4)))
    a.does(Withdraw("b", "db", "b1", 5, 1))
    assert replies(a.does(Begun(5, (10, 4)))) == []


def test_a_leader_whose_session_is_valid_serves_whoever_withdraws() -> None:
    a = open_leader(record())
    assert a.does(Withdraw("b", "db", "b1", 5, 1)) == []
    assert a.does(Withdraw("c", "dc", "c1", 5, 1)) == []
    a.waits(1)
    assert served(a.ticks())


def test_a_packet_that_answers_nothing_recent_does_not_let_a_leader_serve() -> None:
    """It waited in a socket while this process was stopped."""
    a = open_leader(record())
    a.ticks(session=-1, contacts=a.hears("b c"))
    before_us = a.now_us
    a.waits(30)
    assert not served(a.ticks(session=-1, contacts=dict.fromkeys("bc", Contact(0, a.now_us, before_us))))
    a.does(fetch("b", 2, (11, 5)))
    assert not served(a.ticks(session=-1, contacts=dict.fromkeys("bc", Contact(0, a.now_us, before_us))))
    assert served(a.ticks(session=-1, contacts=a.hears("b c")))


def test_fetches_of_an_earlier_stream_are_void() -> None:
    """The follower may have left while it was not connected."""
    a = open_leader(record())
    a.waits(6)
    again = dict.fromkeys("bc", Contact(a.now_us, a.now_us, a.now_us))
    assert not served(a.ticks(session=-1, contacts=again))
    a.does(fetch("b", 2, (11, 5)))
    assert not served(a.ticks(session=-1, contacts=again))
    a.does(fetch("c", 2, (11, 5)))
    assert served(a.ticks(session=-1, contacts=again))


def served(effects: list[object]) -> bool:
    return any(isinstance(effect, Serve) for effect in effects)


def test_a_leader_that_nobody_hears_stops_serving_also_if_all_replicas_are_needed_to_commit() -> None:
    """By a record that may be old: those who have left it may have got others to join them."""
    a = open_leader(record(isr="a b", replicas=("a", "b")))
    a.waits(4)
    assert not served(a.ticks(session=-1))
    assert served(a.ticks(session=-1, contacts=a.hears("b")))


def test_a_leader_whose_followers_are_dead_serves_while_its_session_lasts() -> None:
    a = open_leader(record(isr="a b", replicas=("a", "b")))
    for _ in range(10):
        a.waits(1)
        assert served(a.ticks(live="a"))


def test_a_leader_with_the_only_copy_stops_when_its_session_is_over() -> None:
    """Its topic may have been deleted, and created again elsewhere."""
    a = open_leader(record(isr="a", replicas=("a",), min_isr=1))
    for _ in range(10):
        a.waits(1)
        assert served(a.ticks())
    a.waits(5)
    assert not served(a.ticks(session=-1))


def test_an_epoch_that_could_not_begin_in_both_logs_is_known_in_the_one() -> None:
    a = Play("a", [(4, 0)], [(4, 0)], (10, 4))
    a.ticks()
    a.does(RecordSeen(7, record()))
    a.does(RecordSeen(8, record("b", 6)))
    assert a.does(Begun(5, (10, None))) == []
    assert a.writes(0, 11) == [Ask("b", fetch("a", 1, (11, 4), (5, 4), epoch=6))]


def test_a_node_that_is_replaced_at_once_asks_the_next_leader_when_it_knows_what_it_has_begun_with() -> None:
    """Otherwise it asks for what comes at the offset of the frame that is on its way to its own log."""
    a = Play("a", [(4, 0)], [(4, 0)], (10, 4))
    a.ticks()
    assert a.does(RecordSeen(7, record())) == [Begin(5)]
    assert a.does(RecordSeen(8, record("b", 6))) == [Follow("b", 6)]
    assert a.does(Begun(5, (10, 4))) == []
    assert a.writes(0, 11) == []
    assert a.writes(1, 5) == [Ask("b", fetch("a", 1, (11, 5), (5, 5), epoch=6))]


def test_a_node_that_is_replaced_before_it_has_begun_asks_the_next_leader_all_the_same() -> None:
    a = Play("a", [(4, 0)], [(4, 0)], (10, 4))
    a.ticks()
    a.does(RecordSeen(7, record()))
    assert a.does(RecordSeen(8, record("b", 6))) == [Follow("b", 6)]
    assert a.does(Begun(5, (None, None))) == [Ask("b", fetch("a", 1, (10, 4), (4, 4), epoch=6))]


def test_a_leader_whose_epoch_is_over_follows() -> None:
    a = open_leader(record())
    a.writes(0, 13, durable=12)
    assert a.does(RecordSeen(8, record("b", 6))) == [Follow("b", 6)]
    asked = a.writes(0, 13)
    assert asked[0].fetch.ends == (13, 5)  # type: ignore[union-attr]
    assert replies(a.does(fetch("c", 2, (11, 5), epoch=6)))[0].is_fenced


def test_an_older_record_is_not_news() -> None:
    a = open_leader(record())
    assert a.does(RecordSeen(7, record("b", 6))) == []
    assert a.does(RecordSeen(3, None)) == []


def test_a_process_that_was_started_again_does_not_go_on_leading() -> None:
    a = Play("a", [(4, 0)], [(4, 0)], (10, 4))
    again = replace(record(), incarnation="a0")
    assert a.does(RecordSeen(7, again)) == [Rest(True, 7)]
    assert a.does(RecordSeen(8, record(epoch=6))) == [Begin(6)]


def test_a_deleted_partition_is_nobodys() -> None:
    assert open_leader(record()).does(RecordSeen(8, None)) == [Rest(False, 8)]


def test_a_leader_hands_over_when_all_have_all_and_those_who_wait_for_that_are_told_before() -> None:
    a = open_leader(record())
    a.writes(0, 12)
    asked = record(successor="b")
    assert a.does(RecordSeen(8, asked)) == [Hold(), Wake(a.now_us + 100_000), Wake(a.now_us + 400_000)]
    assert a.does(fetch("b", 2, (12, 5))) == []
    elected = record("b", 6)
    assert a.does(fetch("c", 2, (12, 5))) == [Committed(0, 12), Propose(8, elected)]
    assert a.does(RecordSeen(9, elected))[0] == Follow("b", 6)


def test_a_leader_waits_only_for_a_moment_for_others_than_its_successor() -> None:
    a = open_leader(record())
    a.writes(0, 12)
    a.does(RecordSeen(8, record(successor="b")))
    a.does(fetch("b", 2, (12, 5)))
    a.waits(0.09)
    assert proposed(a.ticks()) == []
    a.waits(0.01)
    assert proposed(a.ticks()) == [Propose(8, record("b", 6))]


def test_a_hand_over_that_takes_too_long_is_given_up() -> None:
    a = open_leader(record())
    a.writes(0, 12)
    a.does(RecordSeen(8, record(successor="b")))
    a.waits(0.41)
    given_up = a.ticks()
    assert any(isinstance(effect, Serve) for effect in given_up)
    assert proposed(given_up) == [Propose(8, record())]


def test_nobody_takes_over_who_is_not_in_sync() -> None:
    a = open_leader(record(isr="a b"))
    assert a.does(RecordSeen(8, record(isr="a b", successor="c"))) == [Propose(8, record(isr="a b"))]


def test_a_move_ends_once_all_of_the_target_are_in_sync() -> None:
    moving = record(target=("b", "d"))
    a = open_leader(moving)
    a.ticks(live="a b c d")
    joined = replace(moving, isr=(*moving.isr, Member("d", "dd")))
    assert proposed(a.does(fetch("d", 1, (11, 5)))) == [Propose(7, joined)]
    a.does(RecordSeen(8, joined))
    ended = proposed(a.does(ProposalEnded()))[0].record
    assert (ended.replicas, ended.target, ended.leader, ended.epoch) == (("b", "d"), (), "b", 6)
    assert ended.isr == (Member("b", "db"), Member("d", "dd"))


def test_a_move_that_keeps_the_leader_is_a_new_epoch_too() -> None:
    moving = record(target=("a", "b"))
    a = new_leader(moving)
    a.does(fetch("b", 1, (11, 5)))
    a.does(fetch("c", 1, (11, 5)))
    ended = proposed(a.ticks())[0].record
    assert (ended.replicas, ended.leader, ended.incarnation, ended.epoch) == (("a", "b"), "a", "a1", 6)
    assert a.does(RecordSeen(8, ended)) == [Begin(6)]
