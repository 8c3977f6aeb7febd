from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.frame import Frame
from penstock.storage import compaction
from penstock.storage.compaction import compact
from penstock.storage.log import Log
from penstock.testing import ManualClock, MemoryDisk, MemoryFiles
from support import fill, frame_of, open_log, rows_of, values_of

DAY = 86_400_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
def log(disk: MemoryDisk, clock: ManualClock) -> Log:
    return open_log(MemoryFiles(disk), clock)


def compact_all(log: Log, clock: ManualClock, tombstone_age_us: int = DAY, **options: object) -> int:
    log.roll()
    return compact(
        log,
        now_us=clock.now_us(),
        tombstone_age_us=tombstone_age_us,
        **options,  # type: ignore[arg-type]
    )


def put(log: Log, *pairs: tuple[bytes | None, bytes | None]) -> None:
    log.append([frame_of(*[value for _, value in pairs], keys=[key for key, _ in pairs])])
    log.sync()


def test_only_the_last_message_of_a_key_stays_under_its_own_offset(log: Log, clock: ManualClock) -> None:
    put(log, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    put(log, (b"c", b"1"))
    put(log, (b"a", b"3"))
    gained = compact_all(log, clock)
    assert gained > 0
    assert [(row.offset, row.key, row.value) for row in rows_of(log)] == [
        (1, b"b", b"1"),
        (3, b"c", b"1"),
        (4, b"a", b"3"),
    ]
    assert (log.start_offset, log.end_offset) == (0, 5)


def test_the_active_segment_is_left_alone(log: Log, clock: ManualClock) -> None:
    put(log, (b"a", b"1"))
    log.roll()
    put(log, (b"a", b"2"), (b"a", b"3"))
    compact(log, now_us=clock.now_us(), tombstone_age_us=DAY)
    assert values_of(log) == [b"1", b"2", b"3"]


def test_messages_without_a_key_stay(log: Log, clock: ManualClock) -> None:
    put(log, (None, b"1"), (b"a", b"1"), (None, b"2"), (b"a", b"2"))
    compact_all(log, clock)
    assert values_of(log) == [b"1", b"2", b"2"]


def test_an_empty_key_is_a_key(log: Log, clock: ManualClock) -> None:
    put(log, (b"", b"1"), (None, b"n"), (b"", b"2"))
    compact_all(log, clock)
    assert values_of(log) == [b"n", b"2"]


def test_a_tombstone_removes_its_key_and_stays_until_it_is_old(log: Log, clock: ManualClock) -> None:
    put(log, (b"a", b"1"), (b"b", b"1"))
    put(log, (b"a", None))
    compact_all(log, clock)
    assert [(row.key, row.value) for row in rows_of(log)] == [(b"b", b"1"), (b"a", None)]
    clock.advance_us(DAY + 1)
    put(log, (b"c", b"1"))
    compact_all(log, clock)
    assert [(row.key, row.value) for row in rows_of(log)] == [(b"b", b"1"), (b"c", b"1")]


def test_a_null_value_without_a_key_is_no_tombstone(log: Log, clock: ManualClock) -> None:
    put(log, (None, None))
    clock.advance_us(DAY + 1)
    compact_all(log, clock)
    assert values_of(log) == [None]


def test_protected_offsets_stay(log: Log, clock: ManualClock) -> None:
    put(log, (b"a", b"1"), (b"a", b"2"), (b"a", b"3"))
    compact_all(log, clock, protected=lambda offsets: np.isin(offsets, [1]))
    assert values_of(log) == [b"2", b"3"]


def test_a_tombstone_outlives_a_protected_message_of_its_key(log: Log, clock: ManualClock) -> None:
    put(log, (b"a", b"1"), (b"b", b"1"))
    log.roll()
    put(log, (b"a", None), (b"b", None))
    clock.advance_us(DAY + 1)
    compact_all(log, clock, protected=lambda offsets: offsets == 0)
    assert [(row.key, row.value) for row in rows_of(log)] == [(b"a", b"1"), (b"a", None)]


def test_a_tombstone_outlives_a_protected_message_over_many_runs(log: Log, clock: ManualClock) -> None:
    put(log, (b"a", b"1"))
    put(log, (b"a", None))
    clock.advance_us(DAY + 1)
    for run in range(3):
        compact_all(log, clock, protected=lambda offsets: offsets == 0)
        assert [row.value for row in rows_of(log) if row.key == b"a"] == [b"1", None], run
        put(log, (b"other", b"%d" % run))
    compact_all(log, clock)
    assert [row.value for row in rows_of(log) if row.key == b"a"] == []


def test_a_message_is_not_dropped_for_one_that_was_taken_back_meanwhile(
    log: Log, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(log, (b"k", b"old"), (b"x", b"1"))
    log.roll()
    put(log, (b"k", b"new"))
    log.roll()
    gather = compaction._newest_by_key

    def gather_then_truncate(*arguments: Any) -> Any:
        newest = gather(*arguments)
        log.truncate(2)
        return newest

    monkeypatch.setattr(compaction, "_newest_by_key", gather_then_truncate)
    compact_all(log, clock)
    assert values_of(log) == [b"old", b"1"]


def test_a_segment_that_retention_takes_meanwhile_ends_the_run_quietly(
    log: Log, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log, 100)
    gather = compaction._newest_by_key

    def gather_then_delete(*arguments: Any) -> Any:
        newest = gather(*arguments)
        log.delete_prefix(60)
        return newest

    monkeypatch.setattr(compaction, "_newest_by_key", gather_then_delete)
    compact_all(log, clock)
    assert len(values_of(log)) == 40


def test_many_small_segments_become_few(log: Log, clock: ManualClock) -> None:
    fill(log, 400, key_count=3)
    before = len(log.segments)
    compact_all(log, clock)
    compact_all(log, clock)
    assert before > 10
    assert len(log.segments) == before + 1, "each keeps its place when compacted the first time"
    fill(log, 1)
    compact_all(log, clock)
    assert len(log.segments) <= 3
    assert len(values_of(log)) == 3


def test_nothing_new_means_nothing_to_do(log: Log, clock: ManualClock) -> None:
    fill(log, 50)
    compact_all(log, clock)
    generations = [segment.header.generation for segment in log.segments]
    assert compact(log, now_us=clock.now_us(), tombstone_age_us=DAY) == 0
    assert [segment.header.generation for segment in log.segments] == generations


def test_what_does_not_fit_into_memory_waits_for_the_next_run(log: Log, clock: ManualClock) -> None:
    fill(log, 300, key_count=5)
    runs = 0
    while compact_all(log, clock, keys_bytes_max=1) or runs == 0:
        runs += 1
    assert runs > 3
    assert len(values_of(log)) == 5


def test_readers_find_their_way_across_the_gaps(log: Log, clock: ManualClock) -> None:
    fill(log, 200, key_count=4)
    compact_all(log, clock)
    survivors = [row.offset for row in rows_of(log)]
    for offset in range(0, 200, 3):
        assert [row.offset for row in rows_of(log, offset)] == [o for o in survivors if o >= offset]


def test_times_are_found_across_the_gaps(log: Log, clock: ManualClock) -> None:
    for i in range(60):
        clock.advance_us(1_000)
        put(log, (b"k%d" % (i % 5), b"%d" % i + b"x" * 80))
    first = clock.now_us() - 59_000
    compact_all(log, clock)
    survivors = [row.offset for row in rows_of(log)]
    for i in range(60):
        found = log.offset_at(first + 1_000 * i)
        assert [o for o in survivors if o >= found] == [o for o in survivors if o >= i]


def test_a_compacted_log_survives_a_restart(log: Log, disk: MemoryDisk, clock: ManualClock) -> None:
    fill(log, 100)
    compact_all(log, clock)
    rows = rows_of(log)
    log.close()
    again = open_log(MemoryFiles(disk), clock)
    assert again.recovered_cleanly
    assert rows_of(again) == rows


def test_damage_stops_compaction_and_nothing_is_replaced(log: Log, disk: MemoryDisk, clock: ManualClock) -> None:
    fill(log, 100)
    log.roll()
    name = log.segments[1].name
    disk.names[name].current[150] ^= 1
    before = {n: bytes(i.current) for n, i in disk.names.items() if n.endswith(".log")}
    with pytest.raises(Exception, match=name):
        compact_all(log, clock)
    assert {n: bytes(i.current) for n, i in disk.names.items() if n.endswith(".log")} == before
    assert not [n for n in disk.names if n.endswith(".rewrite")]


keyed = st.lists(
    st.tuples(st.none() | st.sampled_from([b"a", b"b", b"c"]), st.none() | st.binary(max_size=3)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(keyed, st.booleans(), st.sampled_from([0, 1, 2])), min_size=1, max_size=8))
def test_compaction_is_what_a_dictionary_would_keep(
    frames: list[tuple[list[tuple[bytes | None, bytes | None]], bool, int]],
) -> None:
    clock = ManualClock()
    log = open_log(MemoryFiles(), clock)
    written: list[tuple[bytes | None, bytes | None]] = []
    for pairs, rolls, codec in frames:
        log.append([frame_of(*[value for _, value in pairs], keys=[key for key, _ in pairs], codec=codec)])
        written += pairs
        if rolls:
            log.roll()
            compact(log, now_us=clock.now_us(), tombstone_age_us=DAY)
    compact_all(log, clock)
    last = {key: offset for offset, (key, _) in enumerate(written)}
    expected = [(o, key, value) for o, (key, value) in enumerate(written) if key is None or last[key] == o]
    assert [(row.offset, row.key, row.value) for row in rows_of(log)] == expected


def test_frames_keep_their_codec_and_epoch(log: Log, clock: ManualClock) -> None:
    log.append([frame_of(*[b"again and again"] * 50, keys=[b"a"] * 49 + [b"b"], codec=2)], leader_epoch=3)
    log.append(
        [frame_of(*[b"again and again %d" % i for i in range(50)], keys=[b"%d" % i for i in range(50)], codec=2)],
        leader_epoch=4,
    )
    compact_all(log, clock)
    frames: list[Frame] = list(log.scan(log.segments[0]))
    assert [frame.leader_epoch for frame in frames] == [3, 4]
    assert frames[1].codec == 2
