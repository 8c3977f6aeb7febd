"""What consumers were given: all of it, in time, nothing again that was acknowledged, and never to two at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from history import violation as v
from history.entries import Entry, ahead_us_max, of
from history.messages import Place, Send, sends_of
from history.violation import Violation

_GUESS_US = 200_000


class Delivery(NamedTuple):
    group: str
    place: Place
    value: str
    attempt: int
    lease: int
    deadline: int
    consumer: str
    invoked_at: int
    at: int


class Answer(NamedTuple):
    """Of a consumer. `outcome` is "open" if it never came to an end."""

    op: str
    group: str
    place: Place
    lease: int
    invoked_at: int
    outcome: str
    ended_at: int | None


def deliveries_of(entries: Sequence[Entry]) -> list[Delivery]:
    found: list[Delivery] = []
    invoked: dict[str, int] = {}
    for entry in of(entries, "poll"):
        if entry["type"] == "invoke":
            invoked[entry["process"]] = entry["at"]
        elif entry["type"] == "ok":
            for one in entry["messages"]:
                place = one["topic"], one["partition"], one["offset"]
                found.append(
                    Delivery(
                        entry["group"],
                        place,
                        one["value"],
                        one["attempt"],
                        one["lease"],
                        one["deadline"],
                        entry["process"],
                        invoked[entry["process"]],
                        entry["at"],
                    )
                )
    return found


def answers_of(entries: Sequence[Entry]) -> list[Answer]:
    found: list[Answer] = []
    open_: dict[tuple[str, str, Place, int], int] = {}
    for entry in entries:
        if entry["op"] not in ("ack", "nack"):
            continue
        place = entry["topic"], entry["partition"], entry["offset"]
        key = entry["process"], entry["op"], place, entry["lease"]
        if entry["type"] == "invoke":
            open_[key] = len(found)
            found.append(Answer(entry["op"], entry["group"], place, entry["lease"], entry["at"], "open", None))
        else:
            at = open_.pop(key)
            found[at] = found[at]._replace(outcome=entry["type"], ended_at=entry["at"])
    return found


def check_deliveries(entries: Sequence[Entry], *, late_us: int) -> Iterator[Violation]:
    sends, deliveries, answers = sends_of(entries), deliveries_of(entries), answers_of(entries)
    yield from _not_again(deliveries, answers)
    ordered = {
        entry["group"]: entry["ordering"] for entry in of(entries, "group") if entry.get("ordering", "none") != "none"
    }
    yield from _not_two_at_once(deliveries, answers, ordered)
    yield from _in_turn(sends, deliveries, ordered)
    letters = letters_of(entries)
    yield from _one_letter_each(sends, deliveries, answers, letters)
    yield from _all_in_time(entries, sends, deliveries, letters, late_us)


def _not_again(deliveries: list[Delivery], answers: list[Answer]) -> Iterator[Violation]:
    """Of a poll that began after the acknowledgement was answered: one that began before may have been under way."""
    done: dict[tuple[str, Place], int] = {}
    for answer in answers:
        if answer.op == "ack" and answer.outcome == "ok" and answer.ended_at is not None:
            key = answer.group, answer.place
            done[key] = min(done.get(key, answer.ended_at), answer.ended_at)
    for each in deliveries:
        acked_at = done.get((each.group, each.place))
        if acked_at is not None and each.invoked_at > acked_at:
            yield Violation(
                v.REDELIVERED,
                f"{each.value} to {each.consumer} of {each.group}, attempt {each.attempt}, "
                f"{(each.invoked_at - acked_at) / 1e6:.3f} s later",
            )


def _not_two_at_once(
    deliveries: list[Delivery], answers: list[Answer], ordered: Mapping[str, str]
) -> Iterator[Violation]:
    """The first has it until its deadline, or until its consumer begins to answer for it; in a group with an order,
    also until it begins to nack one before it.

    A client guesses what a node's clock says, and may be wrong by a little: what is within that, the log itself tells.
    """
    answered: dict[tuple[str, Place, int], int] = {}
    nacks: dict[tuple[str, str, int, int], list[Answer]] = {}
    for answer in answers:
        key = answer.group, answer.place, answer.lease
        answered[key] = min(answered.get(key, answer.invoked_at), answer.invoked_at)
        if answer.op == "nack" and answer.group in ordered:
            nacks.setdefault((answer.group, *answer.place[:2], answer.lease), []).append(answer)
    held: dict[tuple[str, Place], Delivery] = {}
    for each in deliveries:
        before = held.get((each.group, each.place))
        if before is not None and before.lease != each.lease:
            until = min(before.deadline, answered.get((before.group, before.place, before.lease), before.deadline))
            for nack in nacks.get((before.group, *before.place[:2], before.lease), ()):
                if nack.place[2] <= before.place[2]:
                    until = min(until, nack.invoked_at)
            if each.at < until - _GUESS_US:
                yield Violation(
                    v.OVERLAP,
                    f"{each.value} to {each.consumer} by lease {each.lease}, while {before.consumer} has it by "
                    f"lease {before.lease} for {(until - each.at) / 1e6:.3f} s more",
                )
        held[each.group, each.place] = each


def _in_turn(sends: dict[str, Send], deliveries: list[Delivery], ordered: Mapping[str, str]) -> Iterator[Violation]:
    """Messages of a partition, or of a key, are first delivered in the order of their offsets.

    Delayed messages take their turn when they are due. A reply that arrives after its deadline says nothing: the
    group may have gone on without that consumer.
    """
    seen: set[tuple[str, Place]] = set()
    latest: dict[tuple[str, str, int, str | None], Delivery] = {}
    for each in deliveries:
        send = sends.get(each.value)
        if each.group not in ordered or send is None or send.deliver_at is not None or each.at > each.deadline:
            continue
        if (each.group, each.place) in seen:
            continue
        seen.add((each.group, each.place))
        key = send.key if ordered[each.group] == "key" else None
        before = latest.get((each.group, *each.place[:2], key))
        if before is not None and before.place[2] > each.place[2]:
            yield Violation(
                v.OUT_OF_TURN,
                f"{each.value} at {':'.join(map(str, each.place))} to {each.consumer} of {each.group}, after "
                f"{before.value} at {before.place[2]} to {before.consumer}",
            )
        else:
            latest[each.group, *each.place[:2], key] = each


Letters = dict[tuple[str, Place], int]


def letters_of(entries: Sequence[Entry]) -> Letters | None:
    """How many there are of each, on the node that has most. None if nobody looked."""
    found: dict[tuple[str, int], dict[str, Counter[tuple[str, Place]]]] = {}
    for replica in of(entries, "replica", "ok"):
        if "letters" in replica:
            counts = Counter(
                (group, (topic, partition, offset)) for group, topic, partition, offset in replica["letters"]
            )
            found.setdefault((replica["topic"], replica["partition"]), {})[replica["process"]] = counts
    if not found and not any(of(entries, "replica")):
        return None
    most: Letters = {}
    for copies in found.values():
        for counts in copies.values():
            for key, count in counts.items():
                most[key] = max(most.get(key, 0), count)
    return most


def _one_letter_each(
    sends: dict[str, Send], deliveries: list[Delivery], answers: list[Answer], letters: Letters | None
) -> Iterator[Violation]:
    """One of each message that nobody has acknowledged; none of those that somebody has; never two."""
    if letters is None:
        return
    acked: dict[tuple[str, Place], str] = {}
    for answer in answers:
        if answer.op == "ack":
            key = answer.group, answer.place
            acked[key] = "ok" if "ok" in (answer.outcome, acked.get(key)) else "perhaps"
    values = {each.place: each.value for each in deliveries}
    for group, place in sorted({(each.group, each.place) for each in deliveries} | letters.keys()):
        count, was_acked = letters.get((group, place), 0), acked.get((group, place))
        lowest, highest = {"ok": (0, 0), "perhaps": (0, 1), None: (1, 1)}[was_acked]
        if not lowest <= count <= highest:
            said = {"ok": "acknowledged", "perhaps": "perhaps acknowledged", None: "never acknowledged"}[was_acked]
            yield Violation(
                v.DEAD_LETTERS,
                f"{count} of {values.get(place, 'what was never seen')} at {':'.join(map(str, place))} "
                f"for {group}, which was {said}",
            )


def _all_in_time(
    entries: Sequence[Entry], sends: dict[str, Send], deliveries: list[Delivery], letters: Letters | None, late_us: int
) -> Iterator[Violation]:
    consumed = groups_by_topic(entries)
    first: dict[tuple[str, str], Delivery] = {}
    # Never early by the broker's clock.
    ahead_us = ahead_us_max(entries)
    for each in deliveries:
        first.setdefault((each.group, each.value), each)
        send = sends.get(each.value)
        if ahead_us is None or send is None or send.deliver_at is None:
            continue
        early_us = send.deliver_at - each.at
        if early_us > ahead_us:
            yield Violation(v.EARLY, f"{each.value} to {each.consumer} of {each.group}, {early_us / 1e6:.3f} s")
    bad = _bad_times(entries)
    for send in sends.values():
        for group in consumed.get(send.topic, ()) if send.outcome == "ok" else ():
            found = first.get((group, send.value))
            if found is None:
                assert send.place is not None
                if not (letters or {}).get((group, send.place)):
                    kind = v.UNDELIVERED if send.deliver_at is None else v.LOST_TIMER
                    yield Violation(kind, f"{send.value} at {':'.join(map(str, send.place))}, to {group}")
            elif send.deliver_at is not None and send.ended_at is not None:
                due = max(send.deliver_at, send.ended_at)
                # While something is wrong it may take longer: until that is over.
                due = next((end for start, end in bad if start <= due + late_us and due < end), due)
                if found.at > due + late_us:
                    yield Violation(v.LATE, f"{send.value} to {group}, {(found.at - due) / 1e6:.3f} s")


def groups_by_topic(entries: Sequence[Entry]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in of(entries, "group"):
        for topic in entry["topics"]:
            found.setdefault(topic, []).append(entry["group"])
    return found


def _bad_times(entries: Sequence[Entry]) -> list[tuple[int, int]]:
    """From the first fault until everything can be written to again."""
    faults = [entry["at"] for entry in of(entries, "fault", "invoke")]
    writable = [entry["at"] for entry in of(entries, "settled", "ok") if entry["what"] == "writable"]
    return [(min(faults), min(writable, default=1 << 62))] if faults else []
