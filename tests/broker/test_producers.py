from __future__ import annotations

import pytest

from penstock.broker.producers import BATCHES_REMEMBERED, Producers
from penstock.errors import ProducerFenced, SequenceGap, SequenceTooOld
from penstock.frame import Producer


def send(
    producers: Producers[str], sequence: int, count: int = 1, *, epoch: int = 0, id: int = 7, checksum: int = 1
) -> str | None:
    producer = Producer(id, epoch, sequence)
    found = producers.find(producer, count, checksum)
    where = None if found is None else found[0] + (f"+{found[1]}" if found[1] else "")
    if where is None:
        producers.add(producer, count, f"{epoch}:{sequence}", checksum)
    return where


def test_a_batch_that_comes_again_is_where_it_was() -> None:
    producers: Producers[str] = Producers()
    assert [send(producers, n) for n in (0, 1, 2)] == [None] * 3
    assert [send(producers, n) for n in (1, 2, 0, 2)] == ["0:1", "0:2", "0:0", "0:2"]
    assert send(producers, 3) is None


def test_other_messages_under_a_sequence_number_that_is_taken_are_no_duplicate() -> None:
    producers: Producers[str] = Producers()
    send(producers, 0, 10)
    found = [producers.find(Producer(7, 0, 0), 10, checksum) for checksum in (1, 2)]
    assert found == [("0:0", 0, True), ("0:0", 0, False)]
    # A part has a checksum of its own, and after a rewrite none is known: the log has to say.
    assert producers.find(Producer(7, 0, 2), 3, 1) == ("0:0", 2, False)
    producers.recall(Producer(8, 0, 0), 10, "rewritten", None)
    assert producers.find(Producer(8, 0, 0), 10, 1) == ("rewritten", 0, False)


def test_sequences_count_messages() -> None:
    producers: Producers[str] = Producers()
    assert send(producers, 0, 10) is None
    assert send(producers, 10, 5) is None
    with pytest.raises(SequenceGap) as caught:
        send(producers, 16)
    assert caught.value.details["due"] == 15


def test_the_place_of_a_part_is_found_and_what_reaches_beyond_the_end_is_refused() -> None:
    producers: Producers[str] = Producers()
    send(producers, 0, 10)
    assert [send(producers, 0, 5), send(producers, 7, 3)] == ["0:0", "0:0+7"]
    with pytest.raises(SequenceTooOld):
        send(producers, 5, 10)


def test_what_was_sent_too_long_ago_is_refused_not_stored_again() -> None:
    producers: Producers[str] = Producers()
    for n in range(BATCHES_REMEMBERED + 1):
        send(producers, n)
    with pytest.raises(SequenceTooOld):
        send(producers, 0)
    assert send(producers, 1) == "0:1"


def test_a_newer_epoch_takes_over_and_the_older_one_is_fenced() -> None:
    producers: Producers[str] = Producers()
    send(producers, 0)
    assert send(producers, 0, epoch=1) is None
    with pytest.raises(ProducerFenced):
        send(producers, 1, epoch=0)
    assert send(producers, 1, epoch=1) is None


def test_producers_do_not_influence_one_another() -> None:
    producers: Producers[str] = Producers()
    assert send(producers, 0, id=1) is None
    assert send(producers, 0, id=2) is None
    assert send(producers, 1, id=1) is None


def test_a_batch_that_was_not_stored_can_be_sent_again() -> None:
    producers: Producers[str] = Producers()
    for n in range(4):
        send(producers, n)
    producers.forget(Producer(7, 0, 2))
    producers.forget(Producer(7, 0, 3))
    assert send(producers, 1) == "0:1"
    assert send(producers, 2) is None
    assert send(producers, 3) is None


def test_the_producer_not_heard_of_for_longest_is_forgotten_first() -> None:
    producers: Producers[str] = Producers(producers_max=2)
    for id in (1, 2, 3):
        send(producers, 0, id=id)
    assert len(producers) == 2
    assert send(producers, 5, id=1) is None, "it starts where it says"
