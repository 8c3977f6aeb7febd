"""What is known of where things are never goes back, whoever tells of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.client.placement import NodeInfo, Placed, Placement, TopicPlacement
from penstock.errors import TopicNotFound
from penstock.net.routing.atlas import Atlas
from penstock.net.routing.nodes import Nodes
from penstock.net.routing.pace import Attempts, Pace


def placed(number: int, leader: str, epoch: int) -> Placed:
    return Placed(number, leader, epoch, (), ())


def placement(revision: int, *partitions: Placed, id: str = "1") -> Placement:
    return Placement(revision, (NodeInfo("a", "a:1"),), (TopicPlacement("t", id, partitions),))


def atlas_of(*told: Placement) -> Atlas:
    def make(node: NodeInfo) -> None:
        raise AssertionError("nobody is to be asked")

    atlas = Atlas(Nodes([NodeInfo("", "a:1")], make, Pace()))  # type: ignore[arg-type]
    for one in told:
        atlas._learn(("t",), one)
    return atlas


@pytest.mark.parametrize(
    ("told", "leader"),
    [
        ([placement(5, placed(0, "a", 1)), placement(6, placed(0, "b", 2))], "b"),
        ([placement(6, placed(0, "b", 2)), placement(5, placed(0, "a", 1))], "b"),
        # Of the same epoch, what is known later counts: it may have lost its leader, or got it back.
        ([placement(5, placed(0, "a", 1)), placement(6, placed(0, "", 1))], ""),
        ([placement(6, placed(0, "", 1)), placement(5, placed(0, "a", 1))], ""),
        # A later leader is one, also if whoever tells of it knows less of other things.
        ([placement(6, placed(0, "a", 1)), placement(5, placed(0, "b", 2))], "b"),
        # Another topic of the same name begins with the first epoch again.
        ([placement(5, placed(0, "a", 9)), placement(6, placed(0, "b", 1), id="2")], "b"),
        ([placement(6, placed(0, "b", 1), id="2"), placement(5, placed(0, "a", 9))], "b"),
    ],
)
def test_later_leaders_count_and_not_later_answers(told: list[Placement], leader: str) -> None:
    assert atlas_of(*told).leader_of("t", 0) == leader


def test_a_topic_that_is_gone_is_forgotten_unless_whoever_says_so_is_behind() -> None:
    gone = Placement(5, (), ())
    atlas = atlas_of(placement(6, placed(0, "a", 1)), gone)
    assert atlas.numbers("t") == [0]
    atlas._learn(("t",), Placement(6, (), ()))
    with pytest.raises(TopicNotFound):
        atlas.numbers("t")


def test_what_nobody_leads_is_known_to_be_lacking() -> None:
    atlas = atlas_of(placement(5, placed(0, "a", 1), placed(1, "", 1)))
    assert atlas.leaders(["t", "unknown"]) == {"a"}
    assert atlas.lacks(["t"])
    assert atlas.lacks(["unknown"])
    atlas._learn(("t",), placement(6, placed(0, "a", 1), placed(1, "b", 2)))
    assert not atlas.lacks(["t"])
    assert atlas.has_moved("t", placed(1, "", 1))
    assert not atlas.has_moved("t", placed(0, "a", 1))


def test_a_partition_that_nobody_has_placed_yet_is_there_all_the_same() -> None:
    atlas = atlas_of(placement(5, placed(2, "a", 1)))
    assert atlas.numbers("t") == [0, 1, 2]
    atlas.note("t", 5)
    assert atlas.numbers("t") == [0, 1, 2, 3, 4]
    assert atlas_of(placement(5)).numbers("t") == [0]


class SlowNodes:
    """Answers when it is told to, with what was so when it was asked."""

    def __init__(self) -> None:
        self.now = placement(5, placed(0, "a", 1))
        self.may_answer = asyncio.Event()

    async def look(self, request: Any, suits: Any) -> Placement:
        answer = self.now
        await self.may_answer.wait()
        return answer

    def learn(self, revision: int, nodes: Any) -> None:
        pass


def test_who_has_heard_something_meanwhile_is_not_content_with_an_earlier_question() -> None:
    async def run() -> None:
        nodes = SlowNodes()
        atlas = Atlas(nodes)  # type: ignore[arg-type]
        others = asyncio.ensure_future(atlas.refresh())
        await asyncio.sleep(0)
        nodes.now = placement(6, placed(0, "b", 2))
        mine = asyncio.ensure_future(atlas.refresh_patiently(Attempts(Pace()), anew=True))
        await asyncio.sleep(0)
        nodes.may_answer.set()
        await asyncio.gather(others, mine)
        assert atlas.leader_of("t", 0) == "b"

    asyncio.run(run())
