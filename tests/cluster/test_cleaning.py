"""What a follower asks its leader, and what it removes by the answer."""

from __future__ import annotations

from penstock.broker.events import unpack
from penstock.cluster.cleaning import CopyCleaner, cleaned_segment, next_segment
from penstock.cluster.core.events import RecordSeen
from penstock.cluster.words import CleanedSegment
from penstock.storage.compaction import compact
from penstock.storage.log import Log
from penstock.testing import MemoryFiles
from replica_support import Play, record
from replicas import catch_up, rows_by_offset
from support import frame_of, open_log


def compacted(*keys: bytes) -> Log:
    """A leader's log at epoch 5: of the same key the last is left."""
    log = open_log(MemoryFiles())
    log.append_epoch_start(5)
    for key in keys:
        log.append([frame_of(b"v", keys=[key])])
    log.roll()
    compact(log, now_us=0, tombstone_age_us=1)
    return log


class Copy:
    def __init__(self, leader: Log) -> None:
        self.leader = leader
        self.log = open_log(MemoryFiles())
        self.play = Play("b", [(5, 0)], [(5, 0)], (0, 0))
        self.play.does(RecordSeen(7, record()))
        self.cleaner = CopyCleaner("p", self.log, self.play.replica)

    def cleans(self) -> bool:
        answer = self.answer()
        return answer is not None and self.cleaner.apply(answer)

    def answer(self) -> CleanedSegment | None:
        query = self.cleaner.query()
        segment = None if query is None else next_segment(self.leader, query)
        return None if query is None or segment is None else cleaned_segment(self.leader, query, segment)


def copy_of(*keys: bytes) -> Copy:
    """A follower that has all messages, of a leader that has compacted them since."""
    copy = Copy(compacted(*keys))
    whole = open_log(MemoryFiles())
    whole.append_epoch_start(5)
    for key in keys:
        whole.append([frame_of(b"v", keys=[key])])
    catch_up(copy.log, whole)
    copy.log.hold_back(0, anew=True)
    return copy


def test_a_follower_removes_what_its_leader_has_not_and_asks_for_it_once() -> None:
    copy = copy_of(b"a", b"a", b"b", b"a")
    assert list(rows_by_offset(copy.log)) == [1, 2, 3, 4]
    assert copy.cleans()
    assert list(rows_by_offset(copy.log)) == [3, 4]
    assert copy.answer() is None
    copy.leader.append([frame_of(b"v", keys=[b"b"])])
    copy.leader.roll()
    assert copy.answer() is None, "what the leader has appended, and not rewritten, is all there"


def test_a_follower_that_lacks_what_replaces_a_message_keeps_it() -> None:
    copy = copy_of(b"a", b"b")
    copy.leader.append([frame_of(b"v", keys=[b"a"])])
    copy.leader.roll()
    compact(copy.leader, now_us=0, tombstone_age_us=1)
    # Asked before that segment was part of a larger one, say.
    answer = CleanedSegment("p", 5, (0, 3, 1), copy.leader.committed_offset, 0, b"")
    assert copy.cleaner.query() is not None
    assert not copy.cleaner.apply(answer)
    assert list(rows_by_offset(copy.log)) == [1, 2]


def test_a_follower_asks_nothing_before_it_has_something_of_its_leaders_epoch() -> None:
    copy = copy_of(b"a", b"a")
    answer = copy.answer()
    copy.play.does(RecordSeen(8, record("c", 6)))
    assert copy.cleaner.query() is None
    # Nor does it take the answer of one that leads no more.
    assert answer is not None
    assert not copy.cleaner.apply(answer)
    assert list(rows_by_offset(copy.log)) == [1, 2]


def test_a_follower_asks_a_new_leader_about_everything() -> None:
    copy = copy_of(b"a", b"a")
    assert copy.cleans()
    assert copy.answer() is None
    copy.play.does(RecordSeen(8, record("c", 6)))
    copy.leader.append_epoch_start(6)
    catch_up(copy.log, copy.leader)
    query = copy.cleaner.query()
    assert query is not None
    assert (query.epoch, query.applied) == (6, [])


def test_what_a_copy_of_a_copy_lacks_is_removed_as_well() -> None:
    """The next leader has a hole, in a segment that it has never rewritten."""
    copy = copy_of(b"a", b"a", b"b")
    second = open_log(MemoryFiles())
    catch_up(second, copy.leader)
    second.append_epoch_start(6)
    second.roll()
    catch_up(copy.log, second)
    copy.leader = second
    copy.play.does(RecordSeen(8, record("c", 6)))
    assert [unpack(answer.kept).to_array().tolist() for answer in [copy.answer()] if answer] == [[2, 3]]
    assert copy.cleans()
    assert list(rows_by_offset(copy.log)) == [2, 3]
