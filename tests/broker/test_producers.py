from __future__ import annotations

import pytest

from penstock.broker.producers import BATCHES_REMEMBERED, IDLE_S, Producers, ProducerShares
from penstock.errors import Overloaded, ProducerFenced, SequenceGap, SequenceTooOld
from penstock.frame import Producer


def send(
    producers: Producers[str],
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    id: int = 7,
    checksum: int = 1,
    owner: str = "",
) -> str | None:
    producer = Producer(id, epoch, sequence)
    found = producers.find(producer, count, checksum)
    where = None if found is None else found[0] + (f"+{found[1]}" if found[1] else "")
    if where is None:
        producers.admit(producer, owner)
        producers.add(producer, count, f"{epoch}:{sequence}", checksum, owner)
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
    producers: Producers[str] = Producers(ProducerShares(2))
    for id in (1, 2, 3):
        send(producers, 0, id=id)
    assert len(producers) == 2
    assert send(producers, 5, id=1) is None, "it starts where it says"


def test_a_principal_with_too_many_producers_forgets_its_own_oldest_and_no_other() -> None:
    shares = ProducerShares(total_max=10, share_max=3)
    orders, bills = Producers[str](shares), Producers[str](shares)
    send(orders, 0, id=1, owner="victim")
    for id in range(2, 12):
        send(orders, 0, id=id, owner="flood")
        send(bills, 0, id=id, owner="flood")
    assert (len(orders), len(bills), shares.total) == (2, 2, 4)
    assert send(orders, 0, id=1, owner="victim") == "0:0", "recognised"
    assert send(bills, 0, id=11, owner="flood") == "0:0"


def test_a_new_producer_is_refused_rather_than_one_of_another_principal_forgotten() -> None:
    now = [0.0]
    shares = ProducerShares(total_max=4, share_max=2, now=lambda: now[0])
    producers = Producers[str](shares)
    for id in (1, 2, 3, 4):
        send(producers, 0, id=id, owner=f"team {id % 2}")
    with pytest.raises(Overloaded) as refused:
        send(producers, 0, id=5, owner="late")
    assert refused.value.retriable
    assert len(producers) == shares.total == 4
    assert send(producers, 1, id=1, owner="team 1") is None, "one that is known goes on"
    send(producers, 0, id=6, owner="team 0")
    assert shares.total == 4
    now[0] += IDLE_S
    assert send(producers, 0, id=5, owner="late") is None
    assert shares.total == 4


def test_a_new_producer_takes_the_place_of_one_that_was_only_found_in_the_log() -> None:
    """After a restart, all that the logs have may be of one principal."""
    shares = ProducerShares(total_max=3, share_max=2)
    found = Producers[str]()
    for id in (1, 2, 3):
        found.recall(Producer(id, 0, 0), 1, "0:0", 1)
    found.join(shares)
    assert send(found, 0, id=4, owner="late") is None
    assert (shares.total, len(found)) == (3, 3)
    assert send(found, 0, id=3, owner="other") == "0:0", "the first that was found is forgotten first"


def test_producers_found_in_the_log_count_in_total_and_then_for_who_publishes() -> None:
    shares = ProducerShares(total_max=6, share_max=2)
    found = Producers[str]()
    for id in range(1, 6):
        found.recall(Producer(id, 0, 0), 1, "0:0", 1)
    found.join(shares)
    assert shares.total == 5
    for id in (1, 2, 3):
        assert send(found, 1, id=id, owner="team") is None
    assert (shares.total, len(found)) == (4, 4), "beyond its share"
    found.recall(Producer(5, 0, 5), 1, "0:5", 1)
    assert shares.total == 4
    found.leave()
    assert (shares.total, len(found)) == (0, 0)
