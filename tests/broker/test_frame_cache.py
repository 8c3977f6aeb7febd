from __future__ import annotations

from threading import get_ident

import pytest

from broker_support import ack_all, group_on, run
from penstock.batch import Batch
from penstock.broker.broker import Broker
from penstock.broker.frame_cache import FrameCache
from penstock.message import Message
from support import frame_of


def test_a_merged_frame_takes_the_place_of_the_one_that_starts_where_it_does() -> None:
    cache = FrameCache()
    old, merged = frame_of(b"1", b"2"), frame_of(b"1", b"2", b"3")
    cache.add(1, old, old.facts())
    cache.add(1, merged, merged.facts())
    for offset in range(3):
        kept = cache.find(1, offset)
        assert kept is not None
        assert kept.frame is merged
    assert cache._size == len(merged.data)
    cache.forget(1)
    assert (cache.find(1, 0), cache._size) == (None, 0)


def test_the_frames_of_a_deleted_topic_are_forgotten_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others read and add frames there at the same time."""
    threads: list[int] = []
    forget = FrameCache.forget

    def noted(cache: FrameCache, owner: int) -> None:
        threads.append(get_ident())
        forget(cache, owner)

    monkeypatch.setattr(FrameCache, "forget", noted)

    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        await topic.publish_batch(Batch.from_messages([Message(b"1"), Message(b"2")], 0))
        group = await group_on(broker, "g", "t")
        await ack_all(group, await group.lease("c", 1))
        assert broker._frames._size
        await broker.delete_topic("t")
        assert not broker._frames._size

    run(work)
    assert set(threads) == {get_ident()}
