"""The checker of histories is worth something: it finds nothing in a good one, and in each bad one what is bad."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from history import violation as v
from history.checker import check
from history.entries import Entry, read_entries, recording
from history.story import NODES, SECOND, Story, leased, row

VALUES = {1: "p1-0", 2: "p1-1", 3: "p1-2"}


def good(
    *,
    before: Callable[[Story], None] = lambda story: None,
    after: Callable[[Story], None] = lambda story: None,
    values: dict[int, str] = VALUES,
    more_events: tuple[list[Any], ...] = (),
    letters: tuple[int, ...] = (),
    change: Callable[[dict[str, Entry]], None] = lambda replicas: None,
) -> list[Entry]:
    """Three messages, all acknowledged, a fault in the middle. `before` and `after` add to what clients did, `change`
    spoils what is on the disks."""
    story = Story()
    for offset, value in VALUES.items():
        story.send(value, offset)
    story.look(4)
    before(story)
    story.fault()
    events = []
    for offset, value in VALUES.items():
        story.deliver(value, offset, lease=offset)
        story.answer("ack", offset, lease=offset)
        events += [leased(story.now, offset, offset), row(story.now, "A", offset, offset)]
    after(story)
    story.look(4)
    story.settle()
    change(story.replicas(values, [*events, *more_events], list(letters)))
    return story.entries


def kinds(entries: list[Entry], **options: Any) -> set[str]:
    return {violation.kind for violation in check(entries, **options)}


def test_a_good_history_has_no_violation() -> None:
    assert check(good()) == []


def test_a_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    with recording(tmp_path / "history.jsonl") as recorder:
        recorder.note("p1", "send", "invoke", value="p1-0", topic="t")
    assert read_entries(tmp_path / "history.jsonl") == recorder.entries


# --- messages ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lost", "kind"), [(1, v.LOST_PREFIX), (2, v.LOST_MIDDLE), (3, v.LOST_TAIL)])
def test_an_acknowledged_message_that_one_replica_has_not_is_lost(lost: int, kind: str) -> None:
    def lose(replicas: dict[str, Entry]) -> None:
        replicas["b"]["messages"] = [one for one in replicas["b"]["messages"] if one[0] != lost]

    assert kinds(good(change=lose)) == {kind, v.DIVERGED}


def test_an_acknowledged_message_that_nobody_has_is_lost() -> None:
    # At the end of all logs, where nothing differs.
    entries = good(values={1: "p1-0", 2: "p1-1"})
    assert v.LOST_TAIL in kinds(entries)
    assert v.DIVERGED not in kinds(entries)


def test_a_value_that_nobody_sent_is_a_phantom() -> None:
    assert kinds(good(values={**VALUES, 4: "p1-3"})) == {v.PHANTOM}


def test_a_value_that_was_refused_and_is_stored_is_found() -> None:
    refused = good(before=lambda story: story.send("p2-0", -1, "fail"), values={**VALUES, 4: "p2-0"})
    assert kinds(refused) == {v.FAILED_STORED}


def test_a_value_of_which_nobody_knows_may_be_stored_or_not() -> None:
    for values in (VALUES, {**VALUES, 4: "p2-0"}):
        assert check(good(before=lambda story: story.send("p2-0", -1, "info"), values=values)) == []


def test_two_values_at_one_offset_are_found_in_what_clients_were_told() -> None:
    told = good(before=lambda story: story.send("p2-0", 2), values={**VALUES, 4: "p2-0"})
    assert v.TWO_VALUES in kinds(told)

    def read_another(story: Story) -> None:
        story.note("r", "read", "ok", topic="t", partition=0, values=[[1, "p1-0"], [2, "p9-9"]])

    assert kinds(good(after=read_another)) == {v.TWO_VALUES}


def test_a_value_that_somebody_saw_and_that_is_gone_is_found() -> None:
    def read_more(story: Story) -> None:
        story.send("p2-0", -1, "info")
        story.note("r", "read", "ok", topic="t", partition=0, values=[[3, "p1-2"], [4, "p2-0"]])

    assert kinds(good(after=read_more)) == {v.VANISHED}
    assert check(good(after=read_more, values={**VALUES, 4: "p2-0"})) == []


def test_a_value_that_is_stored_twice_is_found() -> None:
    assert kinds(good(values={**VALUES, 4: "p1-2"})) == {v.DUPLICATE}


def test_values_of_one_producer_and_key_out_of_order_are_found() -> None:
    def send(story: Story) -> None:
        story.send("p2-1", -1, "info")
        story.send("p2-0", -1, "info")

    assert kinds(good(before=send, values={**VALUES, 4: "p2-1", 5: "p2-0"})) == {v.ORDER}


def test_another_key_has_an_order_of_its_own() -> None:
    def send(story: Story) -> None:
        story.send("p2-1", -1, "info", key="one")
        story.send("p2-0", -1, "info", key="other")

    assert check(good(before=send, values={**VALUES, 4: "p2-1", 5: "p2-0"})) == []


# --- replicas ------------------------------------------------------------------------------------------------


def test_replicas_that_differ_in_what_happened_to_messages_are_found() -> None:
    def spoil(replicas: dict[str, Entry]) -> None:
        replicas["c"]["deliveries"][2][2] = "another row"

    assert kinds(good(change=spoil)) == {v.DIVERGED}


def test_replicas_that_have_one_value_of_two_epochs_differ() -> None:
    def spoil(replicas: dict[str, Entry]) -> None:
        replicas["c"]["messages"][2][1] = 2

    assert kinds(good(change=spoil)) == {v.DIVERGED}


def test_what_is_not_committed_may_differ() -> None:
    def longer(replicas: dict[str, Entry]) -> None:
        replicas["a"]["messages"].append([4, 1, "nobody's yet"])
        replicas["a"]["ends"][0] = 5

    assert check(good(change=longer)) == []


def test_a_replica_that_ends_below_the_high_watermark_is_found() -> None:
    def shorten(replicas: dict[str, Entry]) -> None:
        replicas["a"]["ends"][1] -= 1

    assert kinds(good(change=shorten)) == {v.BEHIND}


def test_a_high_watermark_that_goes_back_is_found() -> None:
    assert kinds(good(after=lambda story: story.look(3))) == {v.WENT_BACK}
    assert kinds(good(after=lambda story: story.look(9, by="another"))) == {v.WENT_BACK}


def test_two_who_look_need_not_see_the_same() -> None:
    assert check(good(after=lambda story: story.look(3, by="another"))) == []


# --- deliveries ----------------------------------------------------------------------------------------------


def test_a_delivery_after_an_acknowledgement_that_was_answered_is_found() -> None:
    def again(story: Story) -> None:
        story.wait(2 * SECOND)
        story.deliver("p1-0", 1, lease=9, to="c2", attempt=2)

    later = leased(5 * SECOND, 9, 1)
    assert kinds(good(after=again, more_events=(later,))) == {v.REDELIVERED}
    # Nobody got it, but somebody would have.
    assert kinds(good(more_events=(later,))) == {v.REDELIVERED}


def test_a_delivery_that_was_under_way_is_none() -> None:
    def late(story: Story) -> None:
        story.note("c2", "poll", "invoke", group="g")

    def arrives(story: Story) -> None:
        one = {"topic": "t", "partition": 0, "offset": 1, "value": "p1-0", "attempt": 1, "lease": 1, "deadline": 0}
        story.note("c2", "poll", "ok", group="g", messages=[one])

    assert check(good(before=late, after=arrives)) == []


def test_a_message_that_comes_again_before_it_is_acknowledged_is_no_violation() -> None:
    def twice(story: Story) -> None:
        story.send("p2-0", 4)
        story.deliver("p2-0", 4, lease=7)
        story.answer("nack", 4, lease=7)
        story.deliver("p2-0", 4, lease=8, to="c2", attempt=2)
        story.answer("ack", 4, lease=8, by="c2")

    events = (leased(1, 7, 4), row(2, "N", 7, 4), leased(3, 8, 4), row(4, "A", 8, 4))
    assert check(good(after=twice, values={**VALUES, 4: "p2-0"}, more_events=events)) == []


def test_two_who_have_a_message_at_the_same_time_are_found() -> None:
    def both(story: Story) -> None:
        story.send("p2-0", 4)
        story.deliver("p2-0", 4, lease=7, for_us=5 * SECOND)
        story.deliver("p2-0", 4, lease=8, to="c2", attempt=2)
        story.answer("ack", 4, lease=8, by="c2")

    values = {**VALUES, 4: "p2-0"}
    # By what clients saw, and by what is in the log.
    seen = (leased(1, 7, 4, for_us=1), leased(5, 8, 4), row(6, "A", 8, 4))
    assert kinds(good(after=both, values=values, more_events=seen)) == {v.OVERLAP}

    def one_by_one(story: Story) -> None:
        story.send("p2-0", 4)
        story.deliver("p2-0", 4, lease=7, for_us=SECOND)
        story.wait(SECOND)
        story.deliver("p2-0", 4, lease=8, to="c2", attempt=2)
        story.answer("ack", 4, lease=8, by="c2")

    assert check(good(after=one_by_one, values=values, more_events=seen)) == []
    logged = (leased(1, 7, 4), leased(5, 8, 4), row(6, "A", 8, 4))
    assert kinds(good(after=one_by_one, values=values, more_events=logged)) == {v.OVERLAP}


def in_order(ordering: str, key: str, *, deadline_us: int = SECOND) -> list[Entry]:
    """A group with an order receives a later message before an earlier one, which is of this key."""

    def swap(story: Story) -> None:
        story.note("o", "group", "ok", group="o", topics=["t"], ordering=ordering)
        story.send("p2-0", 4, key=key)
        for offset, value in ((1, "p1-0"), (2, "p1-1"), (3, "p1-2"), (4, "p2-0")):
            swapped = {3: (4, "p2-0"), 4: (3, "p1-2")}.get(offset, (offset, value))
            story.note("c9", "poll", "invoke", group="o")
            one = {"topic": "t", "partition": 0, "attempt": 1, "lease": swapped[0], "deadline": story.now + deadline_us}
            story.note("c9", "poll", "ok", group="o", messages=[{**one, "offset": swapped[0], "value": swapped[1]}])

    return good(after=swap, values={**VALUES, 4: "p2-0"})


def test_a_message_that_is_delivered_before_an_earlier_one_of_an_ordered_group_is_found() -> None:
    assert v.OUT_OF_TURN in kinds(in_order("partition", "another"))
    assert v.OUT_OF_TURN in kinds(in_order("key", "k"))
    assert v.OUT_OF_TURN not in kinds(in_order("key", "another"))
    assert v.OUT_OF_TURN not in kinds(in_order("none", "k"))


def test_a_reply_that_arrives_after_its_deadline_says_nothing_about_the_order() -> None:
    assert v.OUT_OF_TURN not in kinds(in_order("partition", "k", deadline_us=0))


def test_an_acknowledgement_that_was_answered_and_is_not_in_the_log_is_found() -> None:
    def forget(replicas: dict[str, Entry]) -> None:
        for node in NODES:
            del replicas[node]["events"][-1]

    assert kinds(good(change=forget)) == {v.ACK_LOST}


def test_a_lease_that_is_not_in_the_log_is_found() -> None:
    def out_of_nowhere(story: Story) -> None:
        story.deliver("p1-2", 3, lease=99, to="c2")

    assert v.LEASE_UNKNOWN in kinds(good(before=out_of_nowhere))


def poison(story: Story) -> None:
    story.send("p2-0", 4)
    story.deliver("p2-0", 4, lease=7)
    story.answer("nack", 4, lease=7)


POISONED: dict[str, Any] = {
    "after": poison,
    "values": {**VALUES, 4: "p2-0"},
    "more_events": (leased(1, 7, 4), row(2, "D", 7, 4)),
}


def test_a_message_that_nobody_acknowledged_has_exactly_one_dead_letter() -> None:
    assert check(good(**POISONED, letters=(4,))) == []
    for letters in ((), (4, 4)):
        assert kinds(good(**POISONED, letters=letters)) == {v.DEAD_LETTERS}


def test_a_message_that_was_acknowledged_has_no_dead_letter() -> None:
    assert kinds(good(letters=(2,))) == {v.DEAD_LETTERS}


def with_delay(found_after_us: int | None) -> list[Entry]:
    """By a second, once all is well."""

    def send_and_deliver(story: Story) -> None:
        story.settle()
        story.send("p2-0", 4, deliver_at=story.now + SECOND)
        if found_after_us is not None:
            story.wait(found_after_us)
            story.deliver("p2-0", 4, lease=7)
            story.answer("ack", 4, lease=7)

    events = () if found_after_us is None else (leased(1, 7, 4), row(2, "A", 7, 4))
    return good(after=send_and_deliver, values={**VALUES, 4: "p2-0"}, more_events=events)


def test_a_delayed_message_that_comes_when_it_is_due_is_no_violation() -> None:
    assert check(with_delay(SECOND), late_us=SECOND) == []


def test_a_delayed_message_that_comes_early_is_found() -> None:
    assert kinds(with_delay(SECOND // 2)) == {v.EARLY}


def test_a_delayed_message_that_comes_late_is_found() -> None:
    assert kinds(with_delay(9 * SECOND), late_us=2 * SECOND) == {v.LATE}


def test_a_delayed_message_that_never_comes_is_found() -> None:
    assert kinds(with_delay(None)) == {v.LOST_TIMER}


def test_a_message_that_never_comes_is_found() -> None:
    assert kinds(good(after=lambda story: story.send("p2-0", 4), values={**VALUES, 4: "p2-0"})) == {v.UNDELIVERED}


# --- the run -------------------------------------------------------------------------------------------------


def test_a_fault_that_did_not_happen_is_found() -> None:
    assert kinds(good(after=lambda story: story.note("f", "fault", "invoke", fault="cut", of="a"))) == {v.NO_FAULT}

    def in_vain(story: Story) -> None:
        story.note("f", "fault", "invoke", fault="cut", of="a")
        story.note("f", "fault", "ok", fault="cut", of="a", evidence=False)

    assert kinds(good(after=in_vain)) == {v.NO_FAULT}
    calm = [entry for entry in good() if entry["op"] != "fault"]
    assert kinds(calm) == {v.NO_FAULT}


def test_a_run_in_which_little_happened_is_found() -> None:
    assert check(good(), sends_min=3, acks_min=3) == []
    assert kinds(good(), sends_min=4) == {v.NO_LOAD}
    assert kinds(good(), acks_min=4) == {v.NO_LOAD}


def test_a_process_that_ended_by_itself_is_found_unless_it_was_expected() -> None:
    assert kinds(good(after=lambda story: story.note("a", "death", "ok", code=1))) == {v.DIED}
    assert check(good(after=lambda story: story.note("a", "death", "ok", code=1, is_expected=True))) == []


def test_a_cluster_that_is_not_well_again_is_found() -> None:
    never = [entry for entry in good() if entry.get("what") != "drained"]
    assert kinds(never) == {v.NOT_HEALED}
    late = good()
    next(entry for entry in late if entry.get("what") == "writable")["took_us"] = 31 * SECOND
    assert kinds(late) == {v.NOT_HEALED}


def with_backlog(found_after_us: int, *, is_acked: bool = False) -> list[Entry]:
    """Left over when the cluster is healed: a message that is delivered, or acknowledged, that much later."""

    def heal_and_go_on(story: Story) -> None:
        story.send("p2-0", 4)
        if is_acked:
            story.deliver("p2-0", 4, lease=7, for_us=99 * SECOND)
        story.settle()
        story.wait(found_after_us)
        if not is_acked:
            story.deliver("p2-0", 4, lease=7)
        story.answer("ack", 4, lease=7)
        story.wait(31 * SECOND)

    return good(
        after=heal_and_go_on,
        values={**VALUES, 4: "p2-0"},
        more_events=(leased(1, 7, 4, for_us=99 * SECOND), row(2, "A", 7, 4)),
    )


@pytest.mark.parametrize("is_acked", [False, True])
def test_a_group_that_makes_no_progress_within_30_s_of_healing_is_found(is_acked: bool) -> None:
    assert check(with_backlog(28 * SECOND, is_acked=is_acked)) == []
    assert kinds(with_backlog(31 * SECOND, is_acked=is_acked)) == {v.STUCK}


def test_a_group_that_never_goes_on_after_healing_is_found() -> None:
    def heal_and_wait(story: Story) -> None:
        story.send("p2-0", 4)
        story.settle()
        story.wait(31 * SECOND)

    assert kinds(good(after=heal_and_wait, values={**VALUES, 4: "p2-0"})) == {v.STUCK, v.UNDELIVERED}


def test_one_group_that_goes_on_does_not_hide_another_that_is_stuck() -> None:
    def stuck(story: Story) -> None:
        story.note("h", "group", "ok", group="h", topics=["t"])
        story.settle()
        story.wait(31 * SECOND)
        for offset, value in VALUES.items():
            story.note("c9", "poll", "invoke", group="h")
            one = {"topic": "t", "partition": 0, "offset": offset, "value": value, "attempt": 1, "lease": offset}
            story.note("c9", "poll", "ok", group="h", messages=[{**one, "deadline": story.now + SECOND}])

    assert v.STUCK in kinds(good(after=stuck))


def test_a_message_that_is_stored_after_healing_has_30_s_from_then_on() -> None:
    def send_late(found_after_us: int) -> list[Entry]:
        def heal_and_send(story: Story) -> None:
            story.settle()
            story.wait(40 * SECOND)
            story.send("p2-0", 4)
            story.wait(found_after_us)
            story.deliver("p2-0", 4, lease=7)
            story.answer("ack", 4, lease=7)

        events = (leased(1, 7, 4), row(2, "A", 7, 4))
        return good(after=heal_and_send, values={**VALUES, 4: "p2-0"}, more_events=events)

    assert check(send_late(28 * SECOND)) == []
    assert kinds(send_late(31 * SECOND)) == {v.STUCK}


def test_a_group_without_a_backlog_need_not_do_anything() -> None:
    def idle(story: Story) -> None:
        story.settle()
        story.wait(99 * SECOND)

    assert check(good(after=idle)) == []


def test_every_kind_of_violation_has_a_history_that_has_it() -> None:
    """This file speaks of each."""
    named = Path(__file__).read_text()
    missing = [name for name in vars(v) if name.isupper() and f"v.{name}" not in named]
    assert missing == []
