"""A delayed message keeps its place in the log, and retention takes what is around it: replay sees that it is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from archive.support import archive_topic
from penstock.client.requests import ArchiveInfo, FindArchive, PartitionInfo
from penstock.errors import MessagesMissing, TopicNotFound
from penstock.testing import VirtualQueue

HOUR_US = 3_600_000_000


@pytest.fixture
def q() -> Iterator[VirtualQueue]:
    with VirtualQueue() as q:
        q.create_topic("t", 1, retention={"hours": 1})
        yield q


def publish(q: VirtualQueue, count: int) -> None:
    for number in range(count):
        q.publish("t", f"value {number}")


def offsets(q: VirtualQueue, **how: Any) -> list[int]:
    return [message.offset for message in q.reader("t", **how)]


def thinned(q: VirtualQueue) -> None:
    """Retention takes all that is there but what is delayed; one more message comes behind it."""
    q.clock.advance_us(5 * HOUR_US)
    q.publish("t", "new")


def missing(q: VirtualQueue, **how: Any) -> tuple[int, int]:
    with pytest.raises(MessagesMissing) as caught:
        offsets(q, **how)
    return caught.value.details["first"], caught.value.details["end"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_whole_replay_of_a_log_with_a_hole_says_which_offsets_are_gone(q: VirtualQueue, is_restarted: bool) -> None:
    q.publish("t", "later", delay="30d")
    publish(q, 20)
    began_us = q.clock.now_us()
    thinned(q)
    if is_restarted:
        q.restart()
    part = q.topic("t").partitions[0]
    assert (part.start_offset, part.whole_from, part.end_offset) == (0, 21, 22)
    assert offsets(q) == [0, 21], "a plain reader reads what there is"
    for how in ({}, {"from_offset": {0: 5}}, {"from_time": began_us - HOUR_US}):
        first = 5 if "from_offset" in how else 0
        assert missing(q, whole=True, **how) == (first, 21)
    assert offsets(q, from_offset={0: 21}, whole=True) == [21]


def test_what_was_gone_before_it_was_archived_is_missing_between_archive_and_log(
    q: VirtualQueue, tmp_path: Path
) -> None:
    publish(q, 10)
    archive_topic(q, "t", tmp_path)
    q.publish("t", "later", delay="30d")
    publish(q, 20)
    thinned(q)
    assert missing(q, archive=tmp_path) == (10, 31)
    assert missing(q, archive=tmp_path, from_time=q.clock.now_us() - 6 * HOUR_US) == (10, 31)
    assert offsets(q, archive=tmp_path, to_offset={0: 10}) == list(range(10))


def test_what_was_archived_in_time_is_not_missing(q: VirtualQueue, tmp_path: Path) -> None:
    publish(q, 10)
    q.publish("t", "later", delay="30d")
    publish(q, 20)
    archive_topic(q, "t", tmp_path)
    thinned(q)
    assert q.topic("t").partitions[0].whole_from == 31
    assert offsets(q, archive=tmp_path) == list(range(32))


def begun(q: VirtualQueue, archive: Path) -> tuple[int, Iterator[int]]:
    """The first offset that is read, out of the archive, and the rest."""
    rest = (message.offset for message in q.reader("t", archive=archive))
    return next(rest), rest


@pytest.mark.parametrize("is_archived", [False, True])
def test_a_hole_that_retention_makes_while_the_archive_is_read_is_seen(
    q: VirtualQueue, tmp_path: Path, is_archived: bool
) -> None:
    publish(q, 5)
    archive_topic(q, "t", tmp_path)
    q.publish("t", "later", delay="30d")
    publish(q, 5)
    first, rest = begun(q, tmp_path)
    if is_archived:
        archive_topic(q, "t", tmp_path, 1)
    q.clock.advance_us(5 * HOUR_US)
    if is_archived:
        assert [first, *rest] == list(range(11)), "the archive has it by now"
        return
    with pytest.raises(MessagesMissing, match="offsets 6 to 11 of t partition 0 are missing"):
        list(rest)


def test_compaction_leaves_no_hole(q: VirtualQueue) -> None:
    q.create_topic("c", 1, cleanup="compact")
    for number in range(20):
        q.publish("c", f"{number}", key="one")
        q.clock.advance_us(HOUR_US * 3)
    found = [message.offset for message in q.reader("c", whole=True)]
    assert 0 < len(found) < 20
    assert q.topic("c").partitions[0].whole_from == 0


def test_messages_of_another_topic_of_the_same_name_are_not_read_on(q: VirtualQueue, tmp_path: Path) -> None:
    publish(q, 5)
    archive_topic(q, "t", tmp_path)
    publish(q, 5)
    first, rest = begun(q, tmp_path)
    q.delete_topic("t")
    q.create_topic("t", 1)
    publish(q, 10)
    with pytest.raises(TopicNotFound, match="another one of that name was made"):
        list(rest)
    assert first == 0
    assert offsets(q, whole=True) == list(range(10)), "whoever begins again reads the new one"


def test_a_topic_that_is_made_again_while_its_beginning_is_looked_for_is_not_read(
    q: VirtualQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(q, 10)
    archive_topic(q, "t", tmp_path)
    answers = iter(["first", "second"])
    _answering(q, monkeypatch, lambda info: ArchiveInfo(next(answers), info.place, info.whole_from))
    with pytest.raises(TopicNotFound, match="another one of that name was made"):
        offsets(q, archive=tmp_path)


def test_an_older_broker_says_where_a_log_starts_and_no_more(
    q: VirtualQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert PartitionInfo(number=0, start_offset=7, end_offset=9, bytes=0).whole_from == 7
    publish(q, 3)
    _answering(q, monkeypatch, lambda info: ArchiveInfo(info.topic_id, info.place))
    assert offsets(q, whole=True) == [0, 1, 2]


def _answering(q: VirtualQueue, monkeypatch: pytest.MonkeyPatch, changed: Callable[[ArchiveInfo], ArchiveInfo]) -> None:
    ask = q._transport.call

    async def call(request: Any) -> Any:
        answer = await ask(request)
        return changed(answer) if isinstance(request, FindArchive) else answer

    monkeypatch.setattr(q._transport, "call", call)
