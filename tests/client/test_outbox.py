"""What a producer has been given and not sent yet."""

from __future__ import annotations

from penstock.batch import Batch
from penstock.client.lane import Hold
from penstock.client.outbox import Outbox
from penstock.message import Message


def outbox(partitions: int = 1, messages: int = 3, size: int = 10_000, buffered: int = 10_000) -> Outbox:
    return Outbox(partitions=partitions, batch_messages=messages, batch_bytes=size, buffer_bytes=buffered)


def test_a_parcel_is_filled_until_it_is_full_and_then_sending_starts_once() -> None:
    box = outbox()
    added = [box.add(Message(b"%d" % number), 1, None) for number in range(7)]
    assert [(a.row, a.is_new, a.starts_sending) for a in added if a] == [
        (0, True, False),
        (1, False, False),
        (2, False, True),
        (0, True, False),
        (1, False, False),
        (2, False, False),
        (0, True, False),
    ]
    assert [len(parcel) for parcel in iter(lambda: box.take(0), None)] == [3, 3]
    assert box.take(0) is None, "the last one still waits for more"


def test_a_parcel_whose_time_has_come_is_taken_with_what_has_come_since() -> None:
    box = outbox()
    first = box.add(Message(b"a"), 1, None)
    assert first is not None
    assert box.take(0) is None
    assert box.due(first.parcel)
    box.add(Message(b"b"), 1, None)
    parcel = box.take(0)
    assert parcel is not None
    assert parcel.values == [b"a", b"b"]
    assert not box.due(first.parcel), "it is on its way"
    assert box.take(0) is None
    box.add(Message(b"c"), 1, None)
    assert box.due_all() == [0]
    assert box.due_all() == [], "somebody sends already"


def test_room_is_taken_when_something_comes_and_given_back_when_it_is_settled() -> None:
    box = outbox(buffered=1_000, messages=100)
    while (added := box.add(Message(b"x"), 100, None)) is not None:
        parcel = added.parcel
    assert 1_000 - 148 < box.buffered <= 1_000
    assert box.add_batch(Batch.from_columns([b"x"], now_us=1), 148, 0) is None
    box.settle(parcel)
    assert (box.buffered, box.pending) == (0, set())
    assert box.add_batch(Batch.from_columns([b"x"], now_us=1), 5_000, 0) is not None, "alone it may be larger"


def test_without_keys_one_partition_after_the_other_is_filled() -> None:
    box = outbox(partitions=3, messages=2)
    added = [box.add(Message(b"x"), 1, None) for _ in range(8)]
    partitions = [a.parcel.partition for a in added if a]
    assert partitions[::2] == partitions[1::2]
    assert sorted(partitions[:6]) == [0, 0, 1, 1, 2, 2]


def test_an_idle_partition_can_be_reserved_and_what_comes_meanwhile_waits() -> None:
    box, hold, other = outbox(), Hold(), Hold()
    assert box.reserve(None, 0, hold) is box.lane(0)
    assert box.reserve(None, 0, other) is None, "somebody sends already"
    added = box.add(Message(b"a"), 1, 0)
    assert added is not None
    assert not box.due(added.parcel), "whoever has reserved it goes on with this"
    assert box.release(hold)
    assert box.reserve(None, 0, other) is None, "held, until somebody goes on"
    assert box.pass_on(hold) is box.lane(0)
    assert box.pass_on(hold) is None
    parcel = box.take(0)
    assert parcel is added.parcel
    box.settle(parcel)
    assert box.take(0) is None
    assert box.reserve(None, 0, hold) is box.lane(0)
    assert not box.release(hold)


def test_a_partition_for_which_something_waits_is_not_reserved() -> None:
    box = outbox()
    box.add(Message(b"a"), 1, 0)
    assert box.reserve(None, 0, Hold()) is None
    assert box.reserve(b"key", None, Hold()) is None


def test_only_who_holds_a_partition_lets_go_of_it_and_may_do_so_again() -> None:
    box, first, second, never = outbox(), Hold(), Hold(), Hold()
    lane = box.reserve(None, 0, first)
    assert lane is not None
    assert not box.give_up(never, lambda: 7)
    assert not box.give_up(first, lambda: 7)
    assert (lane.epoch, lane.holder) == (1, None), "nobody knows what became of the last frame"
    assert box.reserve(None, 0, second) is lane
    for _ in range(2):
        assert not box.release(first)
        assert not box.give_up(first, lambda: 7)
    assert (lane.epoch, lane.holder) == (1, second)
    assert box.pass_on(first, never) is None
    assert box.pass_on(second, first) is lane
    assert not box.give_up(second, lambda: 7)
    assert (lane.epoch, lane.holder) == (1, first)
