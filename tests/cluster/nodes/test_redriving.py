"""Dead letters whose keys belong to partitions that other nodes lead: one copy each, whatever happens on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import penstock
from cluster_nodes import LocalCluster
from penstock.broker.dead_letters import DeadLetters
from penstock.client.blocking import Client
from penstock.client.cluster_requests import Reassign
from penstock.errors import ConnectionLost, InvalidInput, Unsupported
from penstock.frame import Frame
from penstock.local import keeper
from penstock.partitioner import partition_of
from penstock.server.forwarding.copies import RoutedCopies
from penstock.server.forwarding.way import Way

NODES = ("a", "b", "c")
# By the number of the partition that each belongs to, of three.
KEYS = {number: next(f"k{at}" for at in range(99) if partition_of(b"k%d" % at, 3) == number) for number in range(3)}
LED = dict(enumerate(NODES))
COPIES = sorted(KEYS.items())


def give_up(cluster: LocalCluster, q: Client) -> list[str]:
    """Messages of all keys, by a group that is gone then, in a topic that had one partition; each of the three that it
    has now is led by another node. The ids of the letters."""
    cluster.create("t", 1)
    for key in KEYS.values():
        q.publish("t", key, key=key)
    given_up = 0
    with q.consumer("g", "t", start="earliest") as consumer:
        while given_up < 3:
            for message in consumer.poll(3, wait="100ms"):
                message.reject("bad")
                given_up += 1
    letters: list[str] = []
    while len(letters) < 3:
        # Their topic is made with the first one, and led by somebody soon.
        letters = [letter.id for letter in q.dead_letters.list("t")]
    q.delete_group("g")
    q.change_topic("t", partitions=3)
    for number, node in enumerate(NODES):
        cluster.call(Reassign("t", number, (node, *(other for other in NODES if other != node))))
    cluster.until(lambda report: {each.number: each.leader for each in report.partitions if each.topic == "t"} == LED)
    cluster.until(lambda report: {each.leader for each in report.partitions if each.topic == "t.dlq"} == {"a"})
    return letters


def stored(q: Client) -> list[tuple[int, str]]:
    """Without those that were there before the topic grew, in their first partition."""
    found = [(one.partition, (one.value or b"").decode()) for one in q.reader("t")]
    first = [(0, key) for key in KEYS.values()]
    assert [one for one in found if one[0] == 0][:3] == first
    for one in first:
        found.remove(one)
    return sorted(found)


def test_letters_are_copied_to_the_leaders_of_their_keys(cluster: LocalCluster) -> None:
    with penstock.connect(cluster.address) as q:
        letters = give_up(cluster, q)
        dry = q.dead_letters.redrive("t", dry_run=True)
        assert (sorted(dry.copied), stored(q)) == (letters, [])
        done = q.dead_letters.redrive("t")
        assert (sorted(done.copied), done.in_place, done.already) == (letters, (), ())
        assert stored(q) == COPIES
        assert q.dead_letters.list("t") == []
        assert q.dead_letters.redrive("t") == type(done)((), (), (), ())
        assert stored(q) == COPIES


def _with_lost_answers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The first answer that is about a copy is lost, though it was stored."""
    publish = Way.publish_frame
    lost: list[str] = []

    async def lose_one(way: Way, topic: str, partition: int, frame: Frame, acks: str = "all") -> Any:
        answer = await publish(way, topic, partition, frame, acks)
        if not lost:
            lost.append(topic)
            raise ConnectionLost("the answer is lost")
        return answer

    monkeypatch.setattr(Way, "publish_frame", lose_one)
    return lost


def test_a_copy_whose_answer_is_lost_is_made_once(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.connect(cluster.address) as q:
        letters = give_up(cluster, q)
        lost = _with_lost_answers(monkeypatch)
        assert sorted(q.dead_letters.redrive("t").copied) == letters
        assert lost == ["t"]
        assert (stored(q), q.dead_letters.list("t")) == (COPIES, [])


def test_a_letter_whose_copy_is_not_acknowledged_is_not_settled(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise InvalidInput("not now")

    with penstock.connect(cluster.address) as q:
        letters = give_up(cluster, q)
        with monkeypatch.context() as patch:
            patch.setattr(RoutedCopies, "publish", refuse)
            with pytest.raises(InvalidInput, match="not now"):
                q.dead_letters.redrive("t")
        assert [letter.id for letter in q.dead_letters.list("t")] == letters
        assert stored(q) == []
        assert sorted(q.dead_letters.redrive("t").copied) == letters
        assert stored(q) == COPIES


def copy_all_and_settle_none(q: Client, letters: list[str]) -> None:
    """As if whoever leads the letters had died each time, just before it wrote down that one is copied."""

    async def refuse(*_: object) -> None:
        raise InvalidInput("died")

    async def do_nothing(*_: object) -> None:
        """Maintenance may run at any time, and must not meet the fault that is meant for the redrive."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeadLetters, "settle_copied", do_nothing)
        patch.setattr(DeadLetters, "settle_copied_elsewhere", do_nothing)
        patch.setattr(DeadLetters, "_settle", refuse)
        for letter in letters:
            with pytest.raises(InvalidInput, match="died"):
                q.dead_letters.redrive("t", ids=letter)
    assert stored(q) == COPIES


def test_the_next_leader_of_the_letters_finds_the_copies_and_makes_none(cluster: LocalCluster) -> None:
    with penstock.connect(cluster.address) as q:
        letters = give_up(cluster, q)
        copy_all_and_settle_none(q, letters)
        cluster.stop("a")
        again = q.dead_letters.redrive("t")
        assert (sorted(again.already), again.copied, again.in_place) == (letters, (), ())
        assert (stored(q), q.dead_letters.list("t")) == (COPIES, [])


def test_maintenance_settles_letters_whose_copies_other_nodes_have(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with penstock.connect(cluster.address) as q:
        letters = give_up(cluster, q)
        copy_all_and_settle_none(q, letters)
        unreachable = _unreachable(RoutedCopies.are_there)
        monkeypatch.setattr(RoutedCopies, "are_there", unreachable)
        # At every other tick.
        monkeypatch.setattr(keeper, "TICKS_TO_MAINTENANCE", 2)
        while q.dead_letters.list("t"):
            pass
        assert stored(q) == COPIES
        # Those that could not be asked for at first were asked for again, and nothing has failed.
        assert q.publish("t", "goes on", partition=0).partition == 0


def _unreachable(ask: Callable[..., Any]) -> Callable[..., Any]:
    """The first questions that are asked fail."""
    left = 3

    async def fail(*given: Any) -> bool:
        nonlocal left
        left -= 1
        if left >= 0:
            raise Unsupported("of a version that does not know what is asked")
        found: bool = await ask(*given)
        return found

    return fail
