"""What a replica that follows knows by the time that it leads is what it would have found by reading everything."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from penstock.batch import Batch
from penstock.broker import recollection as module
from penstock.broker.frame_cache import FrameCache
from penstock.broker.reading import Reading
from penstock.broker.recollection import PRODUCER_EXPIRY_US, Recollection
from penstock.frame import Frame, Producer
from penstock.limits import MIB
from penstock.message import Message
from penstock.storage.log import Log, LogSettings
from penstock.storage.merge import merge_small_frames
from penstock.testing import ManualClock, MemoryFiles
from support import open_log

SECOND = 1_000_000


class Followed:
    """A log that is written, cut off, merged and deleted from, as that of a replica."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.log = open_log(MemoryFiles(), clock=self.clock, settings=LogSettings(segment_bytes_max=8192))
        self.sequences = dict.fromkeys(range(1, 4), 0)
        self.epoch = 0

    def write(self) -> None:
        for _ in range(self.random.randrange(1, 20)):
            producer = self.random.choice([0, *self.sequences])
            count = self.random.randrange(1, 4)
            sequence = self.sequences.get(producer, 0)
            message = Message(b"x", **self.random.choice([{}, {"priority": 1}, {"deliver_at": 10**15}]))
            batch = Batch.from_messages([message] * count, self.clock.now_us())
            frame = Frame.of(batch, producer=Producer(producer, 0, sequence)) if producer else Frame.of(batch)
            self.log.append([frame])
            if producer:
                self.sequences[producer] += count
            self.clock.advance_us(self.random.randrange(SECOND))
        self.log.sync()

    def begin_an_epoch(self) -> None:
        self.epoch += 1
        self.log.append_epoch_start(self.epoch)
        self.log.sync()

    def cut_off(self) -> None:
        log = self.log
        frames = [frame.base_offset for frame in log.frames(log.start_offset)]
        if frames:
            log.truncate(self.random.choice(frames[-5:]))
            # Who published it goes on from somewhere.
            for producer in self.sequences:
                self.sequences[producer] += self.random.randrange(2)

    def merge(self) -> None:
        for segment in self.log.segments[:-1]:
            merge_small_frames(self.log, segment)

    def delete(self) -> None:
        """Also a part of a frame."""
        self.log.delete_prefix(self.random.randrange(self.log.start_offset, self.log.end_offset + 1))

    def a_day_passes(self) -> None:
        self.clock.advance_us(PRODUCER_EXPIRY_US // 2)


def known_of(found: Recollection, log: Log) -> dict[str, Any]:
    reading = Reading(log, FrameCache(MIB), found)
    specials: set[tuple[int, int, int]] = set()
    rows = 0
    for offsets, batch in reading.special_batches(log.start_offset):
        delays = np.zeros(len(offsets), np.int64) if batch.deliver_at is None else batch.deliver_at
        lanes = np.zeros(len(offsets), np.int64) if batch.priority is None else batch.priority
        specials |= set(zip(offsets.tolist(), delays.tolist(), lanes.tolist(), strict=True))
        rows += len(offsets)
    assert rows == len(specials), "each once"
    states = found.producers._states
    return {
        "holes": [hole for hole in found.holes if hole >= log.start_offset],
        "producers": {number: (state.epoch, state.next_sequence) for number, state in states.items()},
        "specials": specials,
    }


@pytest.mark.parametrize("seed", range(60))
def test_it_is_the_same_whenever_it_was_read(seed: int) -> None:
    followed = Followed(seed)
    log, warm = followed.log, Recollection(followed.log)
    for _ in range(40):
        followed.random.choice(
            [
                followed.write,
                followed.write,
                followed.begin_an_epoch,
                followed.cut_off,
                followed.merge,
                followed.a_day_passes,
            ]
        )()
        while followed.random.random() < 0.5 and warm.go_on(followed.clock.now_us(), followed.random.randrange(1, 9)):
            pass
    warm.take(followed.clock.now_us())
    cold = Recollection(log)
    cold.take(followed.clock.now_us())
    known, found = known_of(warm, log), known_of(cold, log)
    assert (known["holes"], known["specials"]) == (found["holes"], found["specials"])
    # It may also know those who have published nothing for a day.
    assert known["producers"].items() >= found["producers"].items()
    assert not warm.go_on(followed.clock.now_us(), 1), "who leads goes on by itself"


def test_what_was_deleted_is_not_missed() -> None:
    followed = Followed(7)
    warm = Recollection(followed.log)
    for _ in range(30):
        followed.write()
        warm.go_on(followed.clock.now_us(), 10)
        followed.delete()
    warm.take(followed.clock.now_us())
    cold = Recollection(followed.log)
    cold.take(followed.clock.now_us())
    assert known_of(warm, followed.log)["specials"] == known_of(cold, followed.log)["specials"]
    assert warm.producers._states.keys() >= cold.producers._states.keys()


def test_of_many_special_frames_the_latest_are_kept_and_the_others_found_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_SPECIALS_MAX", 16)
    followed = Followed(3)
    warm = Recollection(followed.log)
    for _ in range(20):
        followed.write()
        while warm.go_on(followed.clock.now_us(), 3):
            pass
    assert 8 <= len(warm.specials) <= 17
    assert warm.first_offset == warm.specials[0]
    warm.take(followed.clock.now_us())
    cold = Recollection(followed.log)
    cold.take(followed.clock.now_us())
    assert known_of(warm, followed.log) == known_of(cold, followed.log)


def test_it_is_not_worth_while_for_a_few() -> None:
    followed = Followed(1)
    warm = Recollection(followed.log)
    followed.write()
    assert not warm.is_behind
    while followed.log.end_offset < 300:
        followed.write()
    assert warm.is_behind
    while warm.go_on(followed.clock.now_us(), 50):
        pass
    assert not warm.is_behind
