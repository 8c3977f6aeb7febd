"""A few logs that copy each other as the replicas of a partition do, by a dice, and what must hold of them.

One of them leads: it appends. The others fetch runs of frames from it, after agreeing by lineage on where they part.
Now and then another one takes over, with a new epoch, and whatever it does not have is truncated elsewhere; below the
high watermark nothing is. Merging goes on in each of them, at any time; compaction and retention in the leader, and the
others remove what it has removed.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np

from penstock.batch import Batch
from penstock.codec import CODECS
from penstock.errors import LogDiverged
from penstock.frame import Frame, Producer
from penstock.storage.compaction import compact
from penstock.storage.epochs import Epoch, Lineage, epoch_at
from penstock.storage.files import Files
from penstock.storage.log import Log, LogSettings
from penstock.storage.merge import merge_small_frames
from penstock.storage.replicated import append_replicated, copies, held_offsets, remove_others
from penstock.testing import ManualClock, MemoryDisk, MemoryFiles

SETTINGS = LogSettings(segment_bytes_max=4096)
# Key, value and append time.
Row = tuple[bytes | None, bytes | None, int]


def all_frames(log: Log) -> list[Frame]:
    """Those without messages too."""
    frames: list[Frame] = []
    offset = log.start_offset
    while offset < log.end_offset:
        run = copies(log, offset, bytes_max=2000)
        frames += run
        assert run.next_offset > offset
        offset = run.next_offset
    return frames


def rows_by_offset(log: Log) -> dict[int, tuple[int, Row]]:
    """Epoch and row of every message."""
    rows: dict[int, tuple[int, Row]] = {}
    for frame in all_frames(log):
        if frame.count:
            batch = frame.batch()
            columns = zip(batch.keys(), batch.values(), frame.append_times(batch).tolist(), strict=True)
            for offset, row in zip(frame.offsets(batch).tolist(), columns, strict=True):
                assert offset not in rows, f"offset {offset} twice"
                if offset >= log.start_offset:
                    rows[offset] = (frame.leader_epoch, row)
    assert list(rows) == sorted(rows)
    return rows


def check_lineage(log: Log) -> None:
    """It says of each frame what the frame says of itself, and no epoch more than there are frames of."""
    lineage, frames = log.lineage, all_frames(log)
    for frame in frames:
        at = max(frame.base_offset, log.start_offset)
        assert epoch_at(lineage, at) == frame.leader_epoch, f"offset {at} of {frame.leader_epoch} by {lineage}"
    starts = {(frame.leader_epoch, frame.base_offset) for frame in frames}
    for entry in lineage[1:]:
        assert entry[:2] in starts, f"no frame begins {entry}"
    epochs, firsts = [entry.epoch for entry in lineage], [entry.first_offset for entry in lineage]
    assert epochs == sorted(set(epochs)), f"lineage does not ascend: {lineage}"
    assert firsts == sorted(set(firsts)), f"lineage does not ascend: {lineage}"
    assert all(first < log.end_offset for first in firsts), f"lineage beyond the end: {lineage}"


def end_of(lineage: Lineage, epoch: int, end_offset: int) -> Epoch:
    """The largest epoch of the lineage up to `epoch`, where it ends, and its id; the log ends at `end_offset`.

    With nothing that old, epoch 0, ending where the lineage begins.
    """
    found = Epoch(0, end_offset)
    for entry in lineage:
        if entry.epoch > epoch:
            return found._replace(first_offset=entry.first_offset)
        found = Epoch(entry.epoch, end_offset, entry.id)
    return found


def agree(follower: Log, leader: Log) -> None:
    """Cuts the follower to where its leader has the same, or has it begin where the leader does."""
    for _ in range(100):
        if follower.end_offset < leader.start_offset:
            break
        last = follower.last_epoch
        epoch, end, epoch_id = end_of(leader.lineage, last, leader.end_offset)
        if epoch == last and follower.end_offset <= end:
            assert not epoch or not follower.lineage or follower.lineage[-1].id in (0, epoch_id)
            return
        cut = min(end, end_of(follower.lineage, epoch, follower.end_offset).first_offset)
        if cut < follower.start_offset:
            break
        follower.truncate(cut)
    else:
        raise AssertionError(f"no agreement: {follower.lineage} and {leader.lineage}")
    start_over(follower, leader)


def start_over(follower: Log, leader: Log) -> None:
    start, lineage = leader.start_offset, leader.lineage
    follower.reset(start, epoch=lineage[0] if lineage and lineage[0].first_offset < start else None)


def fetch(follower: Log, leader: Log, bytes_max: int) -> None:
    """One run, from where the follower ends."""
    run = copies(leader, follower.end_offset, bytes_max=bytes_max)
    try:
        ids = {entry.epoch: entry.id for entry in leader.lineage}
        append_replicated(
            follower, bytes(run.data), source_id=leader.log_id, next_offset=run.next_offset, epoch_ids=ids
        )
    except LogDiverged as error:
        assert error.details["by"] == "append_time"
        assert not [frame for frame in all_frames(leader) if frame.count and frame.next_offset <= follower.end_offset]
        start_over(follower, leader)


def catch_up(follower: Log, leader: Log, bytes_max: int = 2000) -> None:
    agree(follower, leader)
    while follower.end_offset < leader.end_offset:
        fetch(follower, leader, bytes_max)
    follower.sync()


def clean(follower: Log, leader: Log) -> None:
    """Removes what the leader has removed. They agree."""
    if follower.synced_offset < leader.committed_offset:
        return
    for segment in leader.segments[:-1]:
        if segment.next_offset > min(leader.committed_offset, follower.committed_offset):
            return
        kept = np.concatenate([np.zeros(0, np.int64), *held_offsets(leader, segment)])
        remove_others(
            follower,
            segment.base_offset,
            segment.next_offset,
            lambda offsets, kept=kept: np.isin(offsets, kept),
            truncations=follower.truncations,
        )


class Replicas:
    def __init__(
        self, seed: int, count: int = 3, *, files: Callable[[int], Files] | None = None, compacts: bool = True
    ) -> None:
        self.random = Random(seed)
        self.clock = ManualClock()
        self.disks = [MemoryDisk() for _ in range(count)]
        self._files = files or (lambda number: MemoryFiles(self.disks[number]))
        self.compacts = compacts
        self.logs: list[Log] = []
        for number in range(count):
            self.logs.append(self.open(number))
        self.leader, self.epoch, self.hw = 0, 0, 0
        self.producers = dict.fromkeys(range(1, 4), 0)
        # What was appended under an offset by the leader of an epoch: one value for ever.
        self.written: dict[tuple[int, int], Row] = {}
        self.counts: dict[str, int] = {}
        self.doing = "open"

    def open(self, number: int) -> Log:
        log = Log.open(
            self._files(number), clock=self.clock, settings=SETTINGS, new_log_id=lambda: bytes([number] * 16)
        )
        log.hold_back(log.start_offset)
        return log

    @property
    def followers(self) -> list[int]:
        return [number for number in range(len(self.logs)) if number != self.leader]

    def pick(self) -> tuple[int, Log]:
        number = self.random.randrange(len(self.logs))
        return number, self.logs[number]

    # --- what the leader does ----------------------------------------------------------------------------

    def append(self) -> None:
        log = self.logs[self.leader]
        frames, rows = [], []
        for _ in range(self.random.choice((1, 1, 1, 3))):
            count = self.random.choice((1, 1, 2, 20))
            keys = [self.random.choice((None, b"a", b"a", b"c%d" % self.random.randrange(9))) for _ in range(count)]
            size = self.random.choice((3, 50, 300, 300))
            values = [self.random.choice((None, self.random.randbytes(size))) for _ in range(count)]
            batch = Batch.from_columns(values, keys=keys, now_us=self.clock.now_us())
            producer = Producer(0, 0, 0)
            if self.random.random() < 0.3:
                identity = self.random.choice(list(self.producers))
                producer = Producer(identity, 0, self.producers[identity])
                self.producers[identity] += count
            codec = self.random.choice(list(CODECS.values()))
            frames.append(Frame.of(batch, codec=codec, producer=producer, is_control=self.random.random() < 0.1))
            rows += zip(keys, values, strict=True)
        appended = log.append(frames)
        for offset, (key, value) in enumerate(rows, appended.base_offsets[0]):
            assert (self.epoch, offset) not in self.written
            self.written[self.epoch, offset] = (key, value, appended.append_time)
        self.clock.advance_us(self.random.choice((0, 1_000, 60_000_000, -5_000)))

    def elect(self) -> None:
        """Anybody that has all that is committed."""
        able = [n for n, log in enumerate(self.logs) if log.synced_offset >= self.hw and self.has_agreed(n)]
        self.leader = self.random.choice(able)
        self.epoch += self.random.choice((1, 1, 3))
        log = self.logs[self.leader]
        log.append_epoch_start(self.epoch, self.random.randrange(1, 1 << 32))
        log.hold_back(self.hw, anew=True)

    def has_agreed(self, number: int) -> bool:
        """Nothing that it would have to cut now: as a member of the ISR."""
        log, leader = self.logs[number], self.logs[self.leader]
        if number == self.leader:
            return True
        epoch, end, _ = end_of(leader.lineage, log.last_epoch, leader.end_offset)
        return epoch == log.last_epoch and log.end_offset <= end

    def commit(self) -> None:
        """Over the leader and whoever has agreed with it, but never without any."""
        for log in self.logs:
            log.sync()
        ends = [log.synced_offset for n, log in enumerate(self.logs) if self.has_agreed(n)]
        if self.random.random() < 0.5:
            # Whoever is behind is out.
            ends = [end for end in ends if end >= self.logs[self.leader].synced_offset]
        self.hw = max(self.hw, min(ends))
        for log in self.logs:
            # A follower hears of it late, or not yet.
            if self.random.random() < 0.7 and (log.ceiling or 0) < self.hw:
                log.hold_back(self.hw)

    def retain(self) -> None:
        log = self.logs[self.leader]
        log.sync()
        if self.hw > log.start_offset:
            log.delete_prefix(log.start_offset + (self.hw - log.start_offset) // self.random.choice((1, 4, 20, 20)))

    def leave_behind(self) -> None:
        """Alone in the ISR, the leader commits and deletes what others have not fetched."""
        log = self.logs[self.leader]
        if self.random.random() < 0.7:
            return
        self.append()
        log.sync()
        self.hw = log.synced_offset
        log.hold_back(self.hw)
        log.delete_prefix(self.random.randint(max(log.start_offset, self.hw - 10), self.hw))

    # --- what any of them does ---------------------------------------------------------------------------

    def fetch(self) -> None:
        if not self.followers:
            return
        number = self.random.choice(self.followers)
        log, leader = self.logs[number], self.logs[self.leader]
        log.sync()
        agree(log, leader)
        for _ in range(self.random.randint(1, 4)):
            fetch(log, leader, self.random.choice((1, 500, 3000, 20_000)))

    def follow_start(self) -> None:
        if not self.followers:
            return
        number = self.random.choice(self.followers)
        log, start = self.logs[number], self.logs[self.leader].start_offset
        if self.has_agreed(number) and log.start_offset < start <= log.end_offset:
            log.delete_prefix(start)

    def roll(self) -> None:
        self.pick()[1].roll()

    def sync(self) -> None:
        self.pick()[1].sync()

    def merge(self) -> None:
        _, log = self.pick()
        for segment in log.segments[:-1]:
            merge_small_frames(log, segment)

    def compact(self) -> None:
        if self.compacts:
            compact(self.logs[self.leader], now_us=self.clock.now_us(), tombstone_age_us=60_000_000)

    def clean(self) -> None:
        if not self.followers:
            return
        number = self.random.choice(self.followers)
        log = self.logs[number]
        if self.has_agreed(number) and log.last_epoch == self.epoch:
            clean(log, self.logs[self.leader])

    def reopen(self) -> None:
        number, log = self.pick()
        leads = number == self.leader
        log.close()
        self.logs[number] = self.open(number)
        if leads:
            self.elect()

    STEPS = ("append",) * 8 + ("fetch",) * 8 + ("commit",) * 3
    STEPS += ("elect", "retain", "follow_start", "roll", "roll", "sync", "merge", "compact", "compact", "compact")
    STEPS += ("clean", "clean", "reopen", "leave_behind")

    def step(self) -> None:
        self.doing = self.random.choice(self.STEPS)
        self.counts[self.doing] = self.counts.get(self.doing, 0) + 1
        getattr(self, self.doing)()

    # --- what must hold ----------------------------------------------------------------------------------

    def check(self, log: Log) -> dict[int, tuple[int, Row]]:
        rows = rows_by_offset(log)
        for offset, (epoch, row) in rows.items():
            assert self.written.get((epoch, offset)) == row, f"offset {offset} of epoch {epoch} holds {row}"
        check_lineage(log)
        return rows

    def check_same(self) -> None:
        """After all have caught up."""
        leader = self.logs[self.leader]
        leader.sync()
        self.check_complete(leader)
        for number in self.followers:
            log = self.logs[number]
            catch_up(log, leader)
            self.check_complete(log)
            assert log.end_offset == leader.end_offset
            assert log.last_epoch == leader.last_epoch
            first = max(log.start_offset, leader.start_offset)
            lineages = [
                [(entry.epoch, max(entry.first_offset, first)) for entry in one.lineage if _ends(one, entry) > first]
                for one in (log, leader)
            ]
            assert lineages[0] == lineages[1]
        self.hw = leader.synced_offset
        for log in self.logs:
            log.hold_back(self.hw, anew=True)
        for number in self.followers:
            log = self.logs[number]
            clean(log, leader)
            self.check_complete(log)
            self.check_clean(log, leader)

    def check_clean(self, log: Log, leader: Log) -> None:
        """It keeps nothing that its leader has removed."""
        sealed = leader.segments[-1].base_offset
        more = rows_by_offset(log).keys() - rows_by_offset(leader).keys()
        kept = [at for at in more if leader.start_offset <= at < sealed]
        assert not kept, f"kept, and removed by the leader: {kept}"

    def check_complete(self, log: Log) -> None:
        """It has all that leaders wrote in the epochs of its lineage, but for what a newer message of the same key
        stands for, and tombstones that have had their time."""
        rows, lineage = self.check(log), log.lineage
        history = {
            at: row
            for (epoch, at), row in self.written.items()
            if log.start_offset <= at < log.end_offset and epoch_at(lineage, at) == epoch
        }
        newest = {row[0]: at for at, row in sorted(history.items())}
        missing = {at for at in history.keys() - rows.keys() if not self.compacts or history[at][0] is None}
        missing |= {at for at in newest.values() if at not in rows and history[at][1] is not None}
        assert not missing, f"lost: {missing}"


def _ends(log: Log, entry: Epoch) -> int:
    return end_of(log.lineage, entry.epoch, log.end_offset).first_offset
