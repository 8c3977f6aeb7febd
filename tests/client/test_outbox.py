"""What a producer has been given and not sent yet."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from penstock.batch import Batch
from penstock.client.lane import Hold
from penstock.client.outbox import Outbox
from penstock.limits import KIB, MIB
from penstock.message import Message
from penstock.partitioner import partition_of


def outbox(
    partitions: int = 1, messages: int = 3, size: int = 10_000, buffered: int = 10_000, first: int = 0
) -> Outbox:
    return Outbox(
        partitions=partitions,
        batch_messages=messages,
        batch_bytes=size,
        buffer_bytes=buffered,
        is_led=lambda partition: True,
        first=first,
    )


def test_a_parcel_is_filled_until_it_is_full_and_then_sending_starts_once() -> None:
    box = outbox()
    added = [box.add(Message(b"%d" % number), 1, None) for number in range(7)]
    assert [(a.row, a.parcel.is_closed) for a in added if a] == [
        (0, True),
        (1, True),
        (2, True),
        (0, True),
        (1, True),
        (2, True),
        (0, False),
    ]
    assert (box.begin(0), box.begin(0)) == (True, False)
    assert [len(parcel) for parcel in iter(lambda: box.take(0), None)] == [3, 3]
    assert box.take(0) is None, "the last one still waits for more"


def test_the_event_loop_is_told_of_a_parcel_until_it_knows_and_when_it_is_full() -> None:
    box = outbox(messages=4)
    first = box.add(Message(b"a"), 1, None)
    second = box.add(Message(b"b"), 1, None)
    assert first is not None
    assert second is not None
    assert (first.is_to_note, second.is_to_note) == (True, True)
    assert box.add_plain(b"c", None) is None
    box.noted(first.parcel)
    assert box.add_plain(b"c", None) == (first.parcel, 2)
    assert box.add_plain(b"d", None) is None, "it would be full"
    last = box.add(Message(b"d"), 1, None)
    assert last is not None
    assert last.is_to_note
    box.noted(first.parcel)
    assert box.add_plain(b"e", None) is None


def test_a_parcel_whose_time_has_come_is_taken_with_what_has_come_since() -> None:
    box = outbox()
    first = box.add(Message(b"a"), 1, None)
    assert first is not None
    assert box.take(0) is None
    assert box.due(first.parcel)
    box.add(Message(b"b"), 1, None)
    parcel = box.take(0)
    assert parcel is not None
    assert parcel.rows[::2] == [b"a", b"b"]
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
    assert box.buffered == 0
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


def test_messages_without_a_key_reach_all_partitions_soon_and_evenly() -> None:
    box = outbox(partitions=6, messages=1_000, size=1 << 20, buffered=1 << 30)
    counts: Counter[int] = Counter()
    for number in range(10_000):
        added = box.add_plain(b"x", None) or box.add(Message(b"x"), 1, None)
        assert added is not None
        counts[added[0].partition] += 1
        if number == 999:
            assert len(counts) == 6
    assert max(counts.values()) <= 2 * 10_000 / 6


PLAIN, WITH_HEADERS = (), (("h", b"1"),)


@pytest.mark.parametrize("taken_every", [350, 100_000])
@pytest.mark.parametrize(
    ("size", "batch_bytes", "batch_messages", "headers"),
    [
        (1, MIB, 1_000, PLAIN),
        (100, 5_000, 1_000, PLAIN),
        (100, MIB, 7, PLAIN),
        (1_000, MIB, 10_000, PLAIN),
        (4 * KIB, MIB, 1_000, PLAIN),
        (4 * KIB, MIB, 1_000, WITH_HEADERS),
        (11_000, MIB, 1_000, PLAIN),
        (15_000, MIB, 1_000, PLAIN),
        (20_000, MIB, 1_000, PLAIN),
        (20_000, 10_000, 1_000, PLAIN),
        (300 * KIB, MIB, 1_000, PLAIN),
        (512 * KIB, MIB, 1_000, PLAIN),
        (600 * KIB, MIB, 1_000, WITH_HEADERS),
    ],
)
def test_messages_without_a_key_are_spread_whatever_fills_a_parcel(
    size: int, batch_bytes: int, batch_messages: int, headers: tuple[tuple[str, bytes], ...], taken_every: int
) -> None:
    box = outbox(partitions=6, messages=batch_messages, size=batch_bytes, buffered=1 << 40)
    value = b"x" * size
    message = Message(value, headers=headers)
    counts: Counter[int] = Counter()
    for number in range(10_000):
        added = (not headers and box.add_plain(value, None)) or box.add(message, size, None)
        assert added
        counts[added[0].partition] += 1
        box.noted(added[0])
        if number == 999:
            assert len(counts) == 6
        if number % taken_every == 0:
            # As when their time has come.
            box.due_all()
            for partition in range(6):
                while box.take(partition) is not None:
                    pass
    assert max(counts.values()) <= 2 * 10_000 / 6


def test_messages_without_a_key_are_spread_when_sizes_and_kinds_are_mixed() -> None:
    box = outbox(partitions=6, messages=1_000, size=MIB, buffered=1 << 40)
    random, counts = Random(24), Counter[int]()
    for _ in range(10_000):
        headers = (("h", b"1"),) * random.choice((0, 0, 1))
        added = box.add(Message(b"x", headers=headers), random.choice((1, 100, 4 * KIB, 20_000, 512 * KIB)), None)
        assert added is not None
        counts[added.parcel.partition] += 1
        box.noted(added.parcel)
    assert len(counts) == 6
    assert max(counts.values()) <= 1.5 * 10_000 / 6


def test_messages_and_tables_sent_alternately_reach_all_partitions() -> None:
    box = outbox(partitions=6)
    tables, messages = Counter[int](), Counter[int]()
    for _ in range(12):
        tables[box.next_turn()] += 1
        hold = Hold()
        lane = box.reserve(None, None, hold)
        assert lane is not None
        messages[lane.partition] += 1
        box.release(hold)
    assert set(tables.values()) == set(messages.values()) == {2}


def test_messages_that_wait_behind_others_reach_all_partitions() -> None:
    box = outbox(partitions=6, messages=1_000, size=MIB, buffered=1 << 30)
    holds = [Hold() for _ in range(6)]
    assert len({lane.partition for hold in holds if (lane := box.reserve(None, None, hold))}) == 6
    counts: Counter[int] = Counter()
    for _ in range(1_200):
        assert box.reserve(None, None, Hold()) is None
        added = box.add(Message(b"x"), 1, None)
        assert added is not None
        counts[added.parcel.partition] += 1
    assert set(counts.values()) == {200}


def test_keys_go_to_their_partitions_whoever_has_its_turn() -> None:
    box = outbox(partitions=6, messages=1_000, size=1 << 20, buffered=1 << 30)
    for number in range(1_000):
        for key in (None, b"a", b"b"):
            added = box.add_plain(b"%d" % number, key) or box.add(Message(b"%d" % number, key=key), 1, None)
            assert added is not None
            assert key is None or added[0].partition == partition_of(key, 6)


def test_producers_of_a_message_or_two_begin_anywhere() -> None:
    begun = {
        added.parcel.partition for first in range(12) if (added := outbox(6, first=first).add(Message(b"x"), 1, None))
    }
    assert begun == set(range(6))


def test_a_topic_that_has_fewer_partitions_than_it_had_is_sent_to_those_it_has() -> None:
    box = outbox(partitions=6)
    box.shrink(2)
    chosen = {added.parcel.partition for _ in range(20) if (added := box.add(Message(b"x"), 1, None))}
    assert chosen <= {0, 1}
    box.shrink(0)
    assert box.partitions == 1
