from __future__ import annotations

from random import Random
from threading import get_ident

import pytest
from pyroaring import BitMap64

from broker_support import ack_all, group_on, run
from led_broker import Leading, run_led
from penstock.batch import Batch
from penstock.broker.broker import Broker
from penstock.broker.frame_cache import FrameCache
from penstock.broker.reading import Reading
from penstock.broker.recollection import Recollection
from penstock.message import Message
from penstock.storage.log import Log
from penstock.testing import ManualClock, MemoryFiles
from support import frame_of

BOTH = BitMap64([0, 1])


def log_of(*values: bytes) -> Log:
    log = Log.open(MemoryFiles(), clock=ManualClock())
    log.append([frame_of(*values)])
    log.sync()
    return log


def reading_of(log: Log, cache: FrameCache) -> Reading:
    return Reading(log, cache, Recollection(log))


def gathered(reading: Reading) -> list[bytes | None]:
    return [value for frame in reading.gather(BOTH, 1 << 20).frames for value in frame.batch().values()]


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


# --- whose frames -----------------------------------------------------------------------------------------


def test_a_partition_is_never_served_the_frames_of_one_that_had_its_address() -> None:
    """CPython gives the memory of an object that is gone to the next one of its size."""
    cache, logs = FrameCache(), {name: log_of(name + b"1", name + b"2") for name in (b"a", b"b")}
    # In no regular order: two that take turns may have an address each.
    turns = Random(1)
    for _ in range(200):
        name, log = turns.choice(list(logs.items()))
        assert gathered(reading_of(log, cache)) == [name + b"1", name + b"2"]


def test_a_cached_frame_of_another_log_is_not_handed_out() -> None:
    cache = FrameCache()
    mine, other = reading_of(log_of(b"1", b"2"), cache), reading_of(log_of(b"3", b"4"), cache)
    (frame,) = other.gather(BOTH, 1 << 20).frames
    cache.add(mine._owner, frame, frame.facts())
    with pytest.raises(AssertionError, match="of another log"):
        mine.gather(BOTH, 1 << 20)


def test_the_frames_of_a_closed_reading_are_evicted_and_no_more_are_cached() -> None:
    cache = FrameCache()
    reading = reading_of(log_of(b"1", b"2"), cache)
    assert gathered(reading) == [b"1", b"2"]
    assert cache._size
    reading.close()
    assert gathered(reading) == [b"1", b"2"]
    assert (cache._size, cache._frames, cache._starts) == (0, {}, {})


def test_an_owner_without_frames_is_not_kept() -> None:
    cache = FrameCache(bytes_max=1)
    gathered(reading_of(log_of(b"1", b"2"), cache))
    assert cache._starts == {}


def test_a_partition_that_is_lost_leaves_no_frames_behind() -> None:
    async def work(led: Leading) -> None:
        await led.create("t", 1)
        await led.broker.topic("t").publish_batch(Batch.from_messages([Message(b"1"), Message(b"2")], 1), 0)
        group = await group_on(led.broker, "g", "t")
        assert await group.lease("c", 1)
        assert led.broker._frames._size
        led.lose("t", 0)
        assert not led.broker._frames._size

    run_led(work)
