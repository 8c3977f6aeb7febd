"""Messages of a partition that others copy: how many there are, without the frames by which its leaders have begun."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from penstock.broker.bell import Bell
from penstock.broker.disk import Disk
from penstock.broker.frame_cache import FrameCache
from penstock.broker.partition import Partition, open_logs
from penstock.broker.recollection import PRODUCER_EXPIRY_US
from penstock.environment import random_id
from penstock.limits import DEFAULT_LIMITS
from penstock.storage.cache import SegmentCache
from penstock.storage.log import Log
from penstock.storage.replicated import append_replicated, copies
from penstock.testing import ManualClock, MemoryFiles
from support import frame_of

LONG_US = 10 * PRODUCER_EXPIRY_US


def logs(clock: ManualClock) -> tuple[Log, Log]:
    return open_logs(MemoryFiles(), clock=clock, cache=SegmentCache(), new_id=random_id)


def counts(clock: ManualClock, messages: Log, deliveries: Log) -> list[int]:
    """Of each offset, by a partition that is opened now."""

    async def main() -> list[int]:
        with ThreadPoolExecutor(1) as executor:
            partition = Partition(
                messages,
                deliveries,
                clock=clock,
                disk=Disk(executor),
                loop=asyncio.get_running_loop(),
                new_id=random_id,
                limits=DEFAULT_LIMITS,
                bell=Bell(),
                frames=FrameCache(),
                failed=lambda error: None,
                wrote=lambda log: None,
            )
            start, end = messages.start_offset, messages.end_offset
            each = [partition.reading.count(offset, offset + 1) for offset in range(start, end)]
            assert partition.reading.count(start, end) == sum(each)
            return each

    return asyncio.run(main())


def led_thrice(clock: ManualClock, log: Log) -> None:
    """Offsets 0, 3 and 4 are without messages."""
    log.append_epoch_start(1)
    log.append([frame_of(b"a", b"b")])
    clock.advance_us(LONG_US)
    log.append_epoch_start(2)
    log.append_epoch_start(5)
    log.append([frame_of(b"c")])
    log.sync()
    clock.advance_us(LONG_US)


def test_frames_by_which_leaders_began_are_no_messages_however_old_they_are() -> None:
    clock = ManualClock()
    messages, deliveries = logs(clock)
    led_thrice(clock, messages)
    assert counts(clock, messages, deliveries) == [0, 1, 1, 0, 0, 1]


def test_a_copy_that_begins_in_the_middle_of_an_epoch_begins_with_a_message() -> None:
    clock = ManualClock()
    leader, _ = logs(clock)
    led_thrice(clock, leader)
    messages, deliveries = logs(clock)
    messages.reset(1)
    messages.follow()
    while messages.end_offset < leader.end_offset:
        run = copies(leader, messages.end_offset, bytes_max=1 << 20)
        append_replicated(messages, bytes(run.data), source_id=leader.log_id)
    messages.sync()
    assert messages.lineage[0].epoch == 1
    assert counts(clock, messages, deliveries) == [1, 1, 0, 0, 1]
