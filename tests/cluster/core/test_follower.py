"""A follower, as transcripts: what it is told, and what it has done about it."""

from __future__ import annotations

from penstock.cluster.core.effects import Ask, Begin, Cut, Follow, Reread, Reset, Rest, Store, Trim, Wake
from penstock.cluster.core.events import RecordSeen, Stored, Trimmed, Unanswered, WasCut
from penstock.cluster.core.extent import Both
from penstock.cluster.core.messages import Data, Diverged, Fetch, Foreign, Part, Reply, StartAt
from replica_support import SECOND_US, Entry, Play, fetch, record


def follower(*epochs: Entry, end: int = 10) -> Play:
    """The node "b", which has asked "a" once."""
    play = Play("b", list(epochs) or [(4, 0)], [(4, 0)], (end, 4))
    play.does(RecordSeen(7, record()))
    return play


def reply(request: int, messages: Part = None, deliveries: Part = None, starts: Both = (0, 0)) -> Reply:
    return Reply("b", "b1", 5, request, (messages, deliveries), (11, 5), starts)


def asked(effects: list[object]) -> list[Fetch]:
    return [effect.fetch for effect in effects if isinstance(effect, Ask)]


def test_it_asks_its_leader_for_what_comes_after_its_own() -> None:
    b = Play("b", [(4, 0)], [(4, 0)], (10, 4))
    assert b.does(RecordSeen(7, record())) == [Follow("a", 5), Ask("a", fetch("b", 1, (10, 4), (4, 4)))]


def test_its_next_fetch_says_that_what_it_stored_is_on_disk() -> None:
    b = follower()
    data = Data(10, 13, ((4, 10), (5, 12))), Data(4, 5, ((5, 4),))
    assert b.does(reply(1, *data)) == [Store(0, data[0]), Store(1, data[1])]
    assert b.does(Stored(0, 13, data[0].epochs)) == []
    assert b.does(Stored(1, 5, data[1].epochs)) == [Ask("a", fetch("b", 2, (13, 5), (5, 5)))]
    assert b.replica.committed == (11, 5)


def test_it_cuts_and_asks_again_until_they_agree() -> None:
    b = follower((1, 0), (2, 4), (4, 7))
    assert b.does(reply(1, Diverged(3, 9))) == [Cut(0, 7)]
    assert asked(b.does(WasCut(0, 0, 7))) == [fetch("b", 2, (7, 4), (2, 4))]
    assert b.does(reply(2, Diverged(1, 3))) == [Cut(0, 3)]
    assert asked(b.does(WasCut(0, 0, 3))) == [fetch("b", 3, (3, 4), (1, 4))]


def test_it_cuts_to_where_the_leaders_part_of_its_epoch_ends() -> None:
    b = follower((4, 0))
    assert b.does(reply(1, Diverged(4, 8))) == [Cut(0, 8)]


def test_it_never_cuts_to_the_high_watermark() -> None:
    b = follower(end=20)
    b.does(reply(1))
    assert b.replica.committed == (11, 5)
    effects = b.does(RecordSeen(8, record("c", 6)))
    assert effects == [Follow("c", 6), Ask("c", fetch("b", 3, (20, 4), (4, 4), epoch=6))]


def test_it_begins_anew_where_the_leaders_log_begins() -> None:
    b = follower()
    assert b.does(reply(1, StartAt(50))) == [Reset(0, 50)]
    assert asked(b.does(WasCut(0, 50, 50))) == [fetch("b", 2, (50, 4), (0, 4), starts=(50, 0))]


def test_it_never_goes_back_to_before_its_start() -> None:
    for part in (StartAt(3), Diverged(3, 4)):
        b = follower()
        b.does(reply(1, starts=(6, 0)))
        b.does(Trimmed(0, 6))
        assert b.does(reply(2, part)) == [Reread(), Wake(b.now_us + SECOND_US // 10)]


def test_after_an_unclean_election_it_goes_back_as_far_as_it_must() -> None:
    b = follower()
    b.does(reply(1, starts=(6, 0)))
    b.does(Trimmed(0, 6))
    b.does(RecordSeen(8, record("c", 6, unclean=(6,))))
    assert b.does(Reply("b", "b1", 6, 3, (StartAt(3), None))) == [Reset(0, 3)]
    assert asked(b.does(WasCut(0, 3, 3))) == [fetch("b", 4, (3, 4), (0, 4), epoch=6, starts=(3, 0))]


def test_cut_to_its_start_it_is_empty_and_goes_on_from_there() -> None:
    b = follower((3, 0), (4, 6))
    b.does(reply(1, starts=(8, 0)))
    b.does(Trimmed(0, 8))
    assert b.does(reply(2, Diverged(3, 9))) == [Reset(0, 8)]
    assert asked(b.does(WasCut(0, 8, 8))) == [fetch("b", 3, (8, 4), (0, 4), starts=(8, 0))]


def test_it_deletes_what_the_leader_has_deleted() -> None:
    b = follower((1, 0), (4, 5))
    assert b.does(reply(1, starts=(7, 2))) == [Trim(0, 7), Trim(1, 2)]
    assert b.does(Trimmed(0, 7)) == []
    assert asked(b.does(Trimmed(1, 2))) == [fetch("b", 2, (10, 4), (4, 4), starts=(7, 2))]

    assert asked(b.does(reply(2, starts=(7, 2)))) == [fetch("b", 3, (10, 4), (4, 4), starts=(7, 2))]


def test_a_follower_that_has_not_deleted_yet_says_so_to_the_next_leader() -> None:
    b = follower()
    b.does(reply(1, starts=(7, 0)))
    assert b.does(RecordSeen(8, record("c", 6))) == [Follow("c", 6)]
    assert asked(b.does(Trimmed(0, 7))) == [fetch("b", 2, (10, 4), (4, 4), epoch=6, starts=(7, 0))]


def test_what_is_not_there_yet_is_deleted_when_it_is() -> None:
    b = follower(end=4)
    data = Data(4, 9, ((4, 4),))
    assert b.does(reply(1, data, starts=(7, 0))) == [Store(0, data)]
    assert asked(b.does(Stored(0, 9, data.epochs))) == [fetch("b", 2, (9, 4), (4, 4))]
    assert b.does(reply(2, starts=(7, 0))) == [Trim(0, 7)]


def test_it_makes_room_before_it_stores_more() -> None:
    data = Data(10, 13, ((4, 10), (5, 12)))
    assert follower().does(reply(1, data, None, (10, 0))) == [Trim(0, 10), Store(0, data)]


def test_what_it_is_to_cut_is_not_trimmed() -> None:
    assert follower((1, 0), (4, 7)).does(reply(1, Diverged(3, 9), None, (3, 0))) == [Cut(0, 7)]


def test_a_late_reply_is_not_taken() -> None:
    b = follower()
    assert asked(b.does(Unanswered())) == [fetch("b", 2, (10, 4), (4, 4))]
    assert b.does(reply(1, Data(10, 11))) == []
    assert b.does(Reply("b", "b0", 5, 2, (Data(10, 11), None))) == []
    assert b.does(reply(2, Data(10, 11))) == [Store(0, Data(10, 11))]


def test_frames_that_do_not_go_on_where_its_log_ends_are_not_taken() -> None:
    b = follower()
    assert b.does(reply(1, Data(11, 12))) == [Ask("a", fetch("b", 2, (10, 4), (4, 4)))]


def test_fenced_it_looks_at_the_record_and_asks_again_a_little_later() -> None:
    b = follower()
    fenced = Reply("b", "b1", 6, 1, is_fenced=True)
    assert b.does(fenced) == [Reread(), Wake(b.now_us + SECOND_US // 10)]
    assert b.does(Unanswered()) == []
    assert b.ticks() == []
    b.waits(0.1)
    assert asked(b.ticks()) == [fetch("b", 2, (10, 4), (4, 4))]


def test_it_asks_a_new_leader_only_when_what_the_old_one_sent_is_on_disk() -> None:
    b = follower()
    b.does(reply(1, Data(10, 12)))
    assert b.does(RecordSeen(8, record("c", 6))) == [Follow("c", 6)]
    assert b.does(Stored(0, 12, ((5, 10),))) == [Ask("c", fetch("b", 2, (12, 4), (5, 4), epoch=6))]


def test_a_record_older_than_its_log_is_an_old_read() -> None:
    b = Play("b", [(4, 0), (6, 9)], [(4, 0)], (10, 4))
    assert b.does(RecordSeen(7, record())) == [Rest(True, 7), Reread()]
    assert asked(b.does(RecordSeen(8, record("c", 6)))) == [fetch("b", 1, (10, 4), (6, 4), epoch=6)]


def test_somebody_who_asks_a_follower_is_fenced() -> None:
    b = follower()
    assert b.does(fetch("c", 1, (0, 0))) == [Reply("c", "c1", 0, 1, is_fenced=True)]
    assert b.does(fetch("c", 1, (0, 0), epoch=6)) == [Reply("c", "c1", 0, 1, is_fenced=True), Reread()]


def test_who_is_no_replica_any_more_rests() -> None:
    b = follower()
    assert b.does(RecordSeen(8, record(replicas=("a", "c"), isr="a c"))) == [Rest(False, 8)]
    assert b.does(Unanswered()) == []


# --- an etcd that was set back ---------------------------------------------------------------------------------

RESTORED = 1 << 20


def of_before(leader: str = "a") -> Play:
    """The node "b" has what an etcd that was set back has forgotten; its leader was elected since."""
    play = Play("b", [(1, 0), (4, 6)], [(4, 0)], (10, 4))
    play.does(RecordSeen(7, record(leader, RESTORED + 1)))
    return play


def restored_reply(messages: Part = None, deliveries: Part = None) -> Reply:
    return Reply("b", "b1", RESTORED + 1, 1, (messages, deliveries), (6, 4))


def test_it_cuts_nothing_off_for_a_leader_that_was_elected_since_etcd_was_set_back() -> None:
    for part in (Diverged(1, 6), StartAt(3), StartAt(50)):
        for parts in ((part, None), (None, part)):
            b = of_before()
            assert b.does(restored_reply(*parts)) == [Rest(True, 7)]
            assert b.replica.is_quarantined
            assert b.replica.site.committed == (0, 0), "what that leader has committed is not of this copy"
            # Nor later, for whoever leads then.
            assert b.does(RecordSeen(8, record("c", RESTORED + 2))) == [Rest(True, 8)]


def test_it_cuts_nothing_off_for_a_leader_with_another_epoch_of_the_same_number() -> None:
    """An etcd that was set back unnoticed: the epochs are of one generation."""
    for parts in ((Foreign(), None), (None, Foreign())):
        b = follower((1, 0, 11), (4, 6, 44))
        assert b.does(reply(1, *parts)) == [Rest(True, 7)]
        assert b.replica.is_quarantined


def test_its_fetch_tells_the_ids_of_its_last_epochs() -> None:
    b = Play("b", [(1, 0, 11), (4, 6, 44)], [(1, 0, 11)], (10, 4))
    (first,) = asked(b.does(RecordSeen(7, record())))
    assert first.ids == (44, 11)
    b.does(reply(1, Data(10, 13, ((4, 10), (5, 12)), (44, 55))))
    (second,) = asked(b.does(Stored(0, 13, ((5, 12, 55),))))
    assert second.ids == (55, 11)
    b.does(reply(2, Diverged(4, 12)))
    (third,) = asked(b.does(WasCut(0, 0, 12)))
    assert third.ids == (44, 11)


def test_it_leads_with_all_of_it_if_an_operator_says_so() -> None:
    b = of_before()
    b.does(restored_reply(Diverged(1, 6)))
    assert b.does(RecordSeen(8, record("b", RESTORED + 2, isr="b", unclean=(RESTORED + 2,)))) == [Begin(RESTORED + 2)]
    assert not b.replica.is_quarantined


def test_it_follows_a_leader_that_has_all_that_it_has() -> None:
    b = of_before()
    assert b.does(restored_reply(Data(10, 12, ((RESTORED + 1, 10),)))) == [
        Store(0, Data(10, 12, ((RESTORED + 1, 10),)))
    ]


def test_an_empty_copy_begins_where_its_leader_does_though_etcd_was_set_back() -> None:
    b = Play("b")
    b.does(RecordSeen(7, record("a", RESTORED + 1)))
    assert b.does(restored_reply(StartAt(50))) == [Reset(0, 50)]


def test_it_cuts_nothing_off_for_a_leader_whose_log_parts_from_its_own_within_an_epoch() -> None:
    """An epoch of before may have been used twice: by a node that did not know yet that etcd was set back."""
    b = of_before()
    b.does(restored_reply(Data(10, 12, ((RESTORED + 1, 10),))))
    assert b.does(Stored(0, 10, (), is_diverged=True)) == [Rest(True, 7)]
    assert b.replica.is_quarantined
