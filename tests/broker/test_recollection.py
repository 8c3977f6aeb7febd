"""What a replica that follows knows by the time that it leads is what it would have found by reading everything."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest

from penstock.batch import Batch
from penstock.broker import recollection as module
from penstock.broker.frame_cache import FrameCache
from penstock.broker.reading import Reading
from penstock.broker.recollection import PRODUCER_EXPIRY_US, Recollection
from penstock.errors import DeviceFailed, LogCorrupt, PenstockError
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
        self.sequences = dict.fromkeys(range(1, 8), 0)
        self.epoch = 0

    def write(self) -> None:
        """By few of them at a time: some stop for good."""
        producers = self.random.sample([0, *self.sequences], 2)
        for _ in range(self.random.randrange(1, 20)):
            producer = self.random.choice(producers)
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
        frames = [frame.base_offset for frame in log.frames(log.start_offset) if frame.base_offset >= log.start_offset]
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
        start, end = self.log.start_offset, self.log.end_offset
        self.log.delete_prefix(self.random.randrange(start, start + (end - start) // 4 + 1))

    def thin_out(self) -> None:
        """As where its leader has deleted some: nobody knows what was there."""
        if self.random.random() < 0.2:
            self.log.note_whole_from(self.random.randrange(self.log.start_offset, self.log.end_offset + 1))

    def a_day_passes(self) -> None:
        if self.random.random() < 0.2:
            self.clock.advance_us(PRODUCER_EXPIRY_US // 2)


def _end(sent: Any) -> tuple[int, int]:
    return sent.sequence + sent.messages, sent.where.base_offset + sent.messages


def known_of(found: Recollection, log: Log) -> dict[str, Any]:
    reading = Reading(log, FrameCache(MIB), found)
    specials: set[tuple[int, int, int]] = set()
    for offsets, batch in reading.special_batches(log.start_offset):
        delays = np.zeros(len(offsets), np.int64) if batch.deliver_at is None else batch.deliver_at
        lanes = np.zeros(len(offsets), np.int64) if batch.priority is None else batch.priority
        found_here = set(zip(offsets.tolist(), delays.tolist(), lanes.tolist(), strict=True))
        assert not found_here & specials, "each once"
        specials |= {each for each in found_here if each[0] >= log.start_offset and any(each[1:])}
    states = found.producers._states
    return {
        "holes": [hole for hole in found.holes if hole >= log.start_offset],
        "producers": {number: (state.epoch, state.next_sequence) for number, state in states.items()},
        # Where the last of it is.
        "lasts": {number: _end(state.sent[-1]) for number, state in states.items()},
        "specials": specials,
    }


@pytest.mark.parametrize("seed", range(100))
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
                followed.delete,
                followed.thin_out,
                followed.a_day_passes,
            ]
        )()
        while followed.random.random() < 0.5 and warm.go_on(followed.random.randrange(1, 9)):
            pass
    warm.take(followed.clock.now_us())
    cold = Recollection(log)
    cold.take(followed.clock.now_us())
    known, found = known_of(warm, log), known_of(cold, log)
    assert (known["holes"], known["specials"]) == (found["holes"], found["specials"])
    assert known["lasts"].items() >= found["lasts"].items()
    # What begins where all is there may be in one frame by now with something that does not.
    assert all(known["lasts"][more][1] > log.whole_from for more in known["lasts"].keys() - found["lasts"].keys())
    assert not warm.go_on(1), "who leads goes on by itself"


def test_what_was_merged_with_what_was_known_is_known_as_well() -> None:
    followed = Followed(0)
    log, warm = followed.log, Recollection(followed.log)
    for sequence in range(10):
        batch = Batch.from_messages([Message(b"x")], followed.clock.now_us())
        log.append([Frame.of(batch, producer=Producer(7, 0, sequence))])
    log.sync()
    assert warm.go_on(5)
    log.roll()
    followed.merge()
    assert len(list(log.frames(0))) == 1
    warm.take(followed.clock.now_us())
    assert known_of(warm, log)["producers"] == {7: (0, 10)}
    found = warm.producers.find(Producer(7, 0, 8), 2, 0)
    assert found is not None, "sent again"
    assert found[0].base_offset + found[1] == 8  # type: ignore[union-attr]


def test_a_clock_that_is_wrong_for_a_while_makes_it_forget_nobody() -> None:
    followed = Followed(0)
    warm = Recollection(followed.log)
    while not followed.sequences[1]:
        followed.write()
    now_us = followed.clock.now_us()
    followed.clock.advance_us(2 * PRODUCER_EXPIRY_US)
    while warm.go_on(3):
        pass
    warm.take(now_us)
    assert 1 in warm.producers._states


def test_a_new_leader_whose_clock_is_ahead_forgets_no_producer() -> None:
    followed = Followed(0)
    warm = Recollection(followed.log)
    while not followed.sequences[1]:
        followed.write()
    followed.clock.step_us(2 * PRODUCER_EXPIRY_US)
    warm.take(followed.clock.now_us())
    assert 1 in warm.producers._states


class _Damaged:
    """A log of which something can't be read."""

    def __init__(self, log: Log, error: PenstockError) -> None:
        self._log = log
        self._error = error
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def heads(self, **_: int) -> Any:
        self.reads += 1
        raise self._error


def test_what_is_damaged_is_not_tried_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    followed = Followed(0)
    while followed.log.end_offset < 300:
        followed.write()
    damaged: Any = _Damaged(followed.log, LogCorrupt("a bit"))
    warm = Recollection(damaged)
    assert warm.is_behind
    assert not warm.go_on(10)
    assert not warm.is_behind
    assert caplog.text.count("a bit") == 1
    followed.log.roll()
    assert warm.is_behind, "perhaps it can be read now"
    with pytest.raises(LogCorrupt):
        warm.take(0)


def test_a_device_that_fails_is_told() -> None:
    followed = Followed(0)
    followed.write()
    damaged: Any = _Damaged(followed.log, DeviceFailed("gone"))
    with pytest.raises(DeviceFailed):
        Recollection(damaged).go_on(10)


def test_of_many_special_frames_the_latest_are_kept_and_the_others_found_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_SPECIALS_MAX", 16)
    followed = Followed(3)
    warm = Recollection(followed.log)
    for _ in range(20):
        followed.write()
        while warm.go_on(3):
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
    while warm.go_on(50):
        pass
    assert not warm.is_behind


def test_others_write_and_cut_off_while_it_is_read() -> None:
    followed = Followed(5)
    log, warm = followed.log, Recollection(followed.log)
    failures: list[BaseException] = []

    def write() -> None:
        try:
            for _ in range(150):
                followed.random.choice([followed.write, followed.cut_off, followed.begin_an_epoch, followed.merge])()
        except BaseException as error:
            failures.append(error)

    writing = threading.Thread(target=write)
    writing.start()
    while writing.is_alive():
        warm.go_on(5)
    writing.join()
    assert not failures
    warm.take(followed.clock.now_us())
    cold = Recollection(log)
    cold.take(followed.clock.now_us())
    assert known_of(warm, log) == known_of(cold, log)
