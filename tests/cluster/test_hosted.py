"""One replica over real logs: what it does when the disk is full, or when its leader has begun anew."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import pytest
from msgspec.structs import replace

from penstock.broker.commits import Commit
from penstock.broker.disk import Synced
from penstock.broker.partition import Partition
from penstock.cluster import hosted as hosted_module
from penstock.cluster.core.effects import Propose, Reset, Serve, Trim
from penstock.cluster.core.events import RecordSeen, Tick
from penstock.cluster.core.messages import Data, Diverged, Fetch, Part, Reply, StartAt
from penstock.cluster.core.record import PartitionRecord
from penstock.cluster.core.timing import Timing
from penstock.cluster.hosted import Frames, Hosted
from penstock.errors import DiskFull, LeadershipLost, PenstockError, SyncFailed
from penstock.storage.epochs import Epoch
from penstock.storage.log import Log
from penstock.storage.replicated import copies
from penstock.testing import Fault, FaultyFiles, ManualClock, MemoryFiles, Operation
from replica_support import SECOND_US, fetch, nodes, record
from support import fill, frame_of, open_log, values_of

T = TypeVar("T")


class Host:
    """A node that does at once what is asked of it, and notes it."""

    def __init__(self) -> None:
        self.asked: list[Fetch] = []
        self.withdrawals = 0
        self.replies: list[Reply] = []
        # Of copies that were written: what is called when they are on disk. None: a job sees to each.
        self.on_the_way: list[Callable[[PenstockError | None], None]] | None = None
        self.failures: list[PenstockError] | None = None
        self.woken: list[Hosted] = []
        self.passed_us = 0
        self.proposed: list[PartitionRecord] = []

    def now_us(self) -> int:
        return 100 * SECOND_US + self.passed_us

    def wall_us(self) -> int:
        return 100 * SECOND_US

    async def on_a_thread(self, work: Callable[[], T]) -> T:
        return work()

    async def store(self, log: Log, append: Callable[[], T], size: int, *, begins_epoch: bool) -> T:
        done = append()
        log.sync()
        return done

    def store_soon(self, log: Log, append: Callable[[], T], size: int, done: Synced) -> T | None:
        if self.on_the_way is None:
            return None
        written = append()
        self.on_the_way.append(done)
        return written

    def ask(self, leader: str, hosted: Hosted, fetch: Fetch) -> None:
        self.asked.append(fetch)

    def withdraw(self, hosted: Hosted) -> None:
        self.withdrawals += 1

    def reply(self, hosted: Hosted, reply: Reply) -> None:
        self.replies.append(reply)

    async def propose(self, hosted: Hosted, revision: int, record: PartitionRecord) -> RecordSeen | None:
        self.proposed.append(record)
        return None

    def reread(self) -> None: ...

    def wake(self, hosted: Hosted, at_us: int) -> None:
        if at_us <= self.now_us():
            self.woken.append(hosted)

    async def lead(self, hosted: Hosted) -> Partition | None:
        raise AssertionError("nobody is served here")

    def show(self, hosted: Hosted) -> None: ...

    def hide(self, hosted: Hosted) -> None: ...

    def drop(self, hosted: Hosted) -> None: ...

    def broke(self, error: PenstockError) -> None:
        if self.failures is None:
            raise AssertionError("the node has stopped") from error
        self.failures.append(error)


class FullDisk:
    """Of one log: while it is full, nothing grows."""

    def __init__(self) -> None:
        self.is_full = False
        self.refused = 0
        self.files = FaultyFiles(MemoryFiles(), self._before)

    def _before(self, operation: Operation) -> Fault | None:
        if not self.is_full or operation.kind not in ("create", "write"):
            return None
        self.refused += 1
        return Fault(DiskFull("no space left"))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0)


async def some_turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def run(work: Awaitable[None]) -> None:
    async def main() -> None:
        failures: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
        await work
        assert not failures, failures

    asyncio.run(main())


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried again is tried at the next turn of the loop."""
    monkeypatch.setattr(hosted_module, "_AGAIN_S", 0)


def make(host: Host, messages: Log, deliveries: Log, node: str = "a") -> Hosted:
    hosted = Hosted("p", (messages, deliveries), host, node, f"d{node}", f"{node}1", Timing())
    hosted.step(Tick(200 * SECOND_US, nodes("a b c"), {}))
    return hosted


def answer(host: Host, messages: Part, starts: tuple[int, int] = (0, 0)) -> Reply:
    return Reply("b", "b1", 5, host.asked[-1].request, (messages, None), (0, 0), starts)


def test_a_follower_withdraws_whenever_the_record_says_that_it_follows_that_leader_no_more() -> None:
    async def main() -> None:
        host = Host()
        hosted = make(host, open_log(MemoryFiles()), open_log(MemoryFiles()), "b")
        for revision, seen in enumerate(
            (
                record("a", 5),
                record("c", 6),
                record("c", 7),
                replace(record("c", 8), leader=None),
                record("a", 9),
                record("b", 10),
                record("a", 11),
                None,
            ),
            7,
        ):
            before = host.withdrawals
            hosted.step(RecordSeen(revision, seen))
            assert host.withdrawals == before + 1, seen
        before = host.withdrawals
        hosted.step(RecordSeen(20, record("a", 12)))
        hosted.step(RecordSeen(21, record("a", 12, isr="a b")))
        assert host.withdrawals == before + 1, "it is the same leader, at the same epoch"
        await hosted.close()

    run(main())


# --- an election --------------------------------------------------------------------------------------------


def test_who_is_elected_looks_at_once_who_is_gone_and_not_at_the_next_tick() -> None:
    async def main() -> None:
        disk, host = FullDisk(), Host()
        hosted = make(host, open_log(MemoryFiles()), open_log(disk.files))
        # It need not have begun.
        disk.is_full = True
        hosted.step(RecordSeen(7, record()))
        assert host.woken == [hosted]
        hosted.step(Tick(200 * SECOND_US, nodes("a b"), {}))
        await until(lambda: bool(host.proposed))
        assert [member.node for member in host.proposed[0].isr] == ["a", "b"]
        disk.is_full = False
        await hosted.close()

    run(main())


def test_a_leader_that_is_replaced_asks_the_next_one_when_its_own_last_appends_are_in_the_log() -> None:
    """Otherwise it asks for what comes at their offsets, and can't store that."""

    async def main() -> None:
        host, may_stop = Threads(), asyncio.Event()
        hosted = make(host, _old_copy(), _old_copy())
        await _elect(hosted, 7, 5)
        host.may_go_on = may_stop
        hosted.step(RecordSeen(8, record("b", 6)))
        await some_turns()
        # What was taken before and waited for a thread, say.
        fill(hosted.logs[0], 3)
        may_stop.set()
        await until(lambda: bool(host.asked))
        assert [asked.ends for asked in host.asked] == [(25, 22)]
        hosted.step(Reply("a", "a1", 6, host.asked[-1].request, (Diverged(4, 21), None)))
        await until(lambda: len(host.asked) == 2)
        assert host.asked[1].ends == (21, 22)
        await hosted.close()

    run(main())


class Threads(Host):
    """A node whose threads are busy for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def on_a_thread(self, work: Callable[[], T]) -> T:
        await self.may_go_on.wait()
        return work()


class Written:
    """A partition whose groups have something on its way."""

    def __init__(self) -> None:
        self.is_known = asyncio.get_running_loop().create_future()
        self.groups = self
        self.too_few = None

    async def flushed(self) -> None:
        await self.is_known

    def resign(self) -> None: ...


@pytest.mark.parametrize("outcome", ["known", "lost", "never"])
def test_nobody_else_is_proposed_before_others_know_what_was_decided_here_unless_that_takes_long(outcome: str) -> None:
    async def main() -> None:
        host, timing = Host(), Timing(settling_us=50_000 if outcome == "never" else 20 * SECOND_US)
        hosted = Hosted("p", (open_log(MemoryFiles()), open_log(MemoryFiles())), host, "a", "da", "a1", timing)
        written: Any = Written()
        hosted.partition = written
        hosted._propose(Propose(7, record()))
        await until(lambda: len(host.proposed) == 1)
        # To go on leading takes no waiting.

        hosted._propose(Propose(7, record("b", 6)))
        if outcome != "never":
            await some_turns()
            assert len(host.proposed) == 1

        if outcome == "known":
            written.is_known.set_result(None)
        elif outcome == "lost":
            written.is_known.set_exception(LeadershipLost("somebody else was elected"))
        await until(lambda: len(host.proposed) == 2)
        hosted.partition = None
        await hosted.close()

    run(main())


class Opening(Host):
    """A node that is slow to open partitions."""

    def __init__(self) -> None:
        super().__init__()
        # High watermarks that each recovery would read up to.
        self.recovered_to: list[tuple[int, int]] = []
        self.opened: asyncio.Future[Partition | None] = asyncio.get_running_loop().create_future()
        self.shown = 0

    async def lead(self, hosted: Hosted) -> Partition | None:
        self.recovered_to.append((hosted.logs[0].safe_offset, hosted.logs[1].safe_offset))
        opened = await self.opened
        self.opened = asyncio.get_running_loop().create_future()
        return opened

    def show(self, hosted: Hosted) -> None:
        self.shown += 1


class Opened:
    """A partition that was recovered, as far as a replica needs it."""

    def __init__(self) -> None:
        self.too_few = None
        self.resigned = False

    def committed(self, log: int, offset: int, nodes: tuple[str, ...]) -> None: ...

    def resign(self) -> None:
        self.resigned = True


async def _elect(hosted: Hosted, revision: int, epoch: int) -> None:
    """The node leads, and the start record of its epoch is on its own disk."""
    hosted.step(RecordSeen(revision, record("a", epoch)))
    await until(lambda: all(log.last_epoch == epoch for log in hosted.logs) and hosted._is_free)


def _commit(hosted: Hosted, epoch: int) -> None:
    """The in-sync replicas have everything."""
    ends = hosted.replica.site.ends
    for node in "bc":
        hosted.step(fetch(node, epoch, ends, (epoch, epoch), epoch))


async def _begin_to_open(hosted: Hosted, host: Opening) -> None:
    """At epoch 5, with 20 messages and 20 rows of deliveries from epoch 4."""
    await _elect(hosted, 7, 5)
    _commit(hosted, 5)
    await until(lambda: len(host.recovered_to) == 1)
    assert host.recovered_to == [(22, 22)]


def _old_copy() -> Log:
    log = open_log(MemoryFiles())
    log.append_epoch_start(4)
    fill(log, 20)
    log.sync()
    return log


@pytest.mark.parametrize("between", ["another leader", "the same leader"])
def test_a_partition_whose_epoch_ends_while_it_opens_is_recovered_again_only_from_all_that_is_committed(
    between: str,
) -> None:
    async def main() -> None:
        host = Opening()
        hosted = make(host, _old_copy(), _old_copy())
        await _begin_to_open(hosted, host)
        discarded: Any = Opened()
        if between == "another leader":
            hosted.step(RecordSeen(8, record("b", 6)))
        hosted.step(RecordSeen(9, record("a", 7)))

        host.opened.set_result(discarded)
        await until(lambda: hosted.logs[1].last_epoch == 7 and hosted._is_free)
        await some_turns()
        assert discarded.resigned
        assert len(host.recovered_to) == 1, "nothing is recovered before the epoch's start record is committed"

        _commit(hosted, 7)
        await until(lambda: len(host.recovered_to) == 2)
        assert host.recovered_to[1] == (23, 23), "all that the leader was elected with, and its start record"
        opened: Any = Opened()
        host.opened.set_result(opened)
        await until(lambda: host.shown > 0)
        assert hosted.partition is opened
        await hosted.close()

    run(main())


def test_a_partition_that_waits_to_be_opened_is_not_opened_at_a_later_epoch() -> None:
    async def main() -> None:
        host = Opening()
        hosted = make(host, _old_copy(), _old_copy())
        await _elect(hosted, 7, 5)
        is_free = asyncio.Event()
        hosted._job(lambda: is_free.wait())  # type: ignore[arg-type,return-value]
        _commit(hosted, 5)
        hosted.step(RecordSeen(8, record("a", 6)))
        is_free.set()
        await until(lambda: hosted.logs[1].last_epoch == 6 and hosted._is_free)
        await some_turns()
        assert not host.recovered_to

        _commit(hosted, 6)
        await until(lambda: host.recovered_to == [(23, 23)])
        host.opened.set_result(None)
        await hosted.close()

    run(main())


def test_recovery_from_less_than_the_leader_was_elected_with_stops_the_node() -> None:
    async def main() -> None:
        host = Opening()
        host.failures = []
        hosted = make(host, _old_copy(), _old_copy())
        await _elect(hosted, 7, 5)
        hosted.step(fetch("b", 1, (22, 22)))
        # Both logs lose their high watermark on the way.
        hosted._serve(Serve(host.now_us() + SECOND_US))
        await until(lambda: bool(host.failures))
        assert not host.recovered_to
        await hosted.close()

    run(main())


# --- a full disk --------------------------------------------------------------------------------------------


def test_an_epoch_begins_once_there_is_room_for_it_in_both_logs() -> None:
    async def main() -> None:
        disk, host = FullDisk(), Host()
        hosted = make(host, open_log(MemoryFiles()), open_log(disk.files))
        disk.is_full = True
        hosted.step(RecordSeen(7, record()))
        await until(lambda: disk.refused > 10)
        assert [log.last_epoch for log in hosted.logs] == [5, 0]
        assert not hosted.replica.site.logs[0].end, "nobody fetches before the epoch has begun in both"

        disk.is_full = False
        await until(lambda: [extent.durable for extent in hosted.replica.site.logs] == [1, 1])

        begun = [[(each.epoch, each.first_offset) for each in log.lineage] for log in hosted.logs]
        assert begun == [[(5, 0)], [(5, 0)]]
        await hosted.close()

    run(main())


def test_an_epoch_that_is_over_before_there_was_room_is_given_up_and_what_was_begun_is_not_forgotten() -> None:
    async def main() -> None:
        disk, host = FullDisk(), Host()
        hosted = make(host, open_log(MemoryFiles()), open_log(disk.files))
        disk.is_full = True
        hosted.step(RecordSeen(7, record()))
        await until(lambda: disk.refused > 10)
        hosted.step(RecordSeen(8, record("b", 6)))
        await until(lambda: hosted.replica.site.logs[0].durable == 1)

        # By what it asked first it has nothing, which was so when it began to lead.
        hosted.step(Reply("a", "a1", 6, host.asked[-1].request))

        assert (host.asked[-1].ends, host.asked[-1].lasts) == ((1, 0), (5, 0)), "of epoch 5, and of no other"
        disk.is_full = False
        await hosted.close()

    run(main())


def test_a_copy_is_reset_once_there_is_room_to_note_it() -> None:
    async def main() -> None:
        disk, host = FullDisk(), Host()
        messages = open_log(disk.files)
        messages.append_epoch_start(4)
        hosted = make(host, messages, open_log(MemoryFiles()), "b")
        hosted.step(RecordSeen(7, record()))
        await until(lambda: not hosted._jobs and messages.synced_offset == 1)
        disk.is_full = True
        hosted.step(answer(host, StartAt(9), (9, 0)))
        await until(lambda: disk.refused > 10)
        assert messages.end_offset == 1

        disk.is_full = False
        await until(lambda: host.asked[-1].ends == (9, 0))

        assert (messages.start_offset, messages.end_offset) == (9, 9)
        await hosted.close()

    run(main())


def test_a_copy_is_trimmed_once_there_is_room_to_note_it_and_nothing_else_waits_for_that() -> None:
    async def main() -> None:
        disk, host = FullDisk(), Host()
        messages, deliveries = open_log(disk.files), open_log(MemoryFiles())
        for log in (messages, deliveries):
            log.append_epoch_start(4)
            fill(log, 100)
        hosted = make(host, messages, deliveries, "b")
        hosted.step(RecordSeen(7, record()))
        await until(lambda: not hosted._jobs)
        disk.is_full = True
        hosted.step(answer(host, None, (101, 101)))
        await until(lambda: disk.refused > 10)
        assert messages.start_offset == 0
        assert deliveries.start_offset == 101

        disk.is_full = False
        await until(lambda: messages.start_offset == 101)

        assert len(messages.segments) == 1
        await hosted.close()

    run(main())


def test_a_trim_that_had_to_wait_does_not_touch_what_came_after_a_reset() -> None:
    async def main() -> None:
        disk, host = FullDisk(), Host()
        messages = open_log(disk.files)
        messages.append_epoch_start(4)
        fill(messages, 20)
        hosted = make(host, messages, open_log(MemoryFiles()), "b")
        hosted.step(RecordSeen(7, record()))
        await until(lambda: not hosted._jobs)
        disk.is_full = True
        hosted.replica.site.logs[0].trimming_to = 21
        hosted._trim(Trim(0, 21))
        await until(lambda: disk.refused > 0)
        hosted.replica.site.logs[0].is_resetting = True
        hosted._reset(Reset(0, 3))
        disk.is_full = False
        await until(lambda: messages.end_offset == 3)
        messages.append_epoch_start(6)
        fill(messages, 20)
        for _ in range(100):
            await asyncio.sleep(0)
        assert messages.start_offset == 3
        await hosted.close()

    run(main())


# --- what is sent -------------------------------------------------------------------------------------------


def test_a_follower_that_has_on_disk_what_its_leader_has_not_yet_has_not_gone_another_way() -> None:
    async def main() -> None:
        host = Host()
        hosted = make(host, open_log(MemoryFiles()), open_log(MemoryFiles()))
        hosted.step(RecordSeen(7, record()))
        await until(lambda: [extent.durable for extent in hosted.replica.site.logs] == [1, 1])
        hosted.step(fetch("b", 1, (0, 0), (0, 0)))
        # Written, and still to be synced, when the answer is filled.
        hosted.logs[0].append([frame_of(b"x")])
        part = host.replies[-1].parts[0]
        assert part == Data(0, 1)
        sent, _ = hosted.data(cast(Data, part), 0)
        assert (sent.first, sent.end) == (0, 2)

        hosted.step(fetch("b", 2, (2, 1)))

        assert not any(isinstance(part, Diverged) for reply in host.replies for part in reply.parts)
        assert hosted.replica.committed == (0, 0)
        hosted.step(fetch("c", 1, (2, 1)))
        assert hosted.replica.committed == (1, 1), "as far as it is on the leader's disk"
        await hosted.close()

    run(main())


# --- a leader that has begun anew ---------------------------------------------------------------------------


def leader_behind(start: int) -> Log:
    """It was reset to there, so it does not know when the last message before was appended; and its clock is behind."""
    log = open_log(MemoryFiles(), ManualClock(1_000))
    log.reset(start, epoch=Epoch(4, 0))
    log.append_epoch_start(5)
    log.append([frame_of(b"new")])
    log.sync()
    return log


def sent(log: Log, first: int) -> tuple[Data, tuple[Frames, None]]:
    run = copies(log, first)
    return Data(first, run.next_offset, ((5, first),)), (Frames(log.log_id, run.data, log.whole_from), None)


async def follower_of(leader: Log) -> tuple[Host, Hosted]:
    host, messages = Host(), open_log(MemoryFiles(), ManualClock(2_000_000))
    messages.append_epoch_start(4)
    fill(messages, 9)
    hosted = make(host, messages, open_log(MemoryFiles()), "b")
    hosted.step(RecordSeen(7, record()))
    await until(lambda: not hosted._jobs and messages.synced_offset == 10)
    return host, hosted


def test_a_copy_of_which_its_leader_has_nothing_any_more_goes_on_with_the_leaders_time() -> None:
    async def main() -> None:
        leader = leader_behind(10)
        host, hosted = await follower_of(leader)
        part, frames = sent(leader, 10)

        hosted.replied(answer(host, part, (10, 0)), frames)
        await until(lambda: host.asked[-1].ends == (12, 0))

        messages = hosted.logs[0]
        assert host.asked[-1].lasts == (5, 0)
        assert messages.lineage == leader.lineage == (Epoch(4, 0), Epoch(5, 10))
        assert values_of(messages, until=12) == [b"new"]
        assert messages.last_append_time == leader.last_append_time
        await hosted.close()

    run(main())


def test_what_a_copy_still_has_is_not_given_up_for_a_leader_whose_clock_was_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        leader = leader_behind(10)
        host, hosted = await follower_of(leader)
        part, frames = sent(leader, 10)
        asked = len(host.asked)

        hosted.replied(answer(host, part, (7, 0)), frames)
        await until(lambda: len(host.asked) > asked)

        assert (host.asked[-1].ends, host.asked[-1].lasts) == ((10, 0), (4, 0))
        messages = hosted.logs[0]
        assert (messages.start_offset, messages.end_offset) == (7, 10)
        assert "was appended before what this log has before it; asking again" in caplog.text
        await hosted.close()

    run(main())


# --- little copies ------------------------------------------------------------------------------------------


def leader_of(*values: bytes) -> Log:
    log = open_log(MemoryFiles())
    log.append_epoch_start(5)
    if values:
        log.append([frame_of(value) for value in values])
    log.sync()
    return log


async def follower_with(leader: Log, deliveries: Log) -> tuple[Host, Hosted]:
    """It has the beginning of both, and waits for more. From now on the loop writes what is little."""
    host = Host()
    hosted = make(host, open_log(MemoryFiles()), open_log(MemoryFiles()), "b")
    hosted.step(RecordSeen(7, record()))
    await until(lambda: bool(host.asked))
    both = [copies(log, 0, until=1) for log in (leader, deliveries)]
    parts = tuple(Data(0, 1, ((5, 0),)) for _ in both)
    frames = tuple(
        Frames(log.log_id, run.data, log.whole_from) for log, run in zip((leader, deliveries), both, strict=True)
    )
    hosted.replied(both_of(host, *parts), cast(Any, frames))
    await until(lambda: host.asked[-1].ends == (1, 1))
    host.on_the_way = []
    return host, hosted


def both_of(host: Host, messages: Part, deliveries: Part, starts: tuple[int, int] = (0, 0)) -> Reply:
    return Reply("b", "b1", 5, host.asked[-1].request, (messages, deliveries), (0, 0), starts)


def more_of(log: Log) -> tuple[Data, Frames]:
    run = copies(log, 1)
    return Data(1, run.next_offset), Frames(log.log_id, run.data, log.whole_from)


def test_little_copies_of_both_logs_are_under_way_at_once_and_asked_behind_when_both_are_on_disk() -> None:
    async def main() -> None:
        leader, deliveries = leader_of(b"x", b"y"), leader_of(b"leased")
        host, hosted = await follower_with(leader, deliveries)
        (first, frames), (second, others) = more_of(leader), more_of(deliveries)
        asked = len(host.asked)

        hosted.replied(both_of(host, first, second), (frames, others))

        assert host.on_the_way is not None
        assert len(host.on_the_way) == 2
        assert [log.end_offset for log in hosted.logs] == [3, 2], "written at once"
        for done in host.on_the_way:
            assert len(host.asked) == asked, "what is not on disk is not acknowledged"
            done(None)
        assert host.asked[-1].ends == (3, 2)
        await hosted.close()

    run(main())


@pytest.mark.parametrize("how", ["in time", "late", "after it was out of sync"])
def test_when_something_was_committed_is_known_to_a_copy_that_is_in_sync_and_hears_of_it_in_time(how: str) -> None:
    async def main() -> None:
        leader, deliveries = leader_of(b"x", b"y"), leader_of()
        host, hosted = await follower_with(leader, deliveries)
        told = both_of(host, None, None)
        hosted.replied(replace(told, committed=(1, 0)), (None, None))
        if how == "after it was out of sync":
            others = tuple(member for member in record().isr if member.node != "b")
            hosted.step(RecordSeen(8, replace(record(), isr=others)))
            hosted.step(RecordSeen(9, record()))
        part, frames = more_of(leader)
        hosted.replied(both_of(host, part, None), (frames, None))
        (done,) = host.on_the_way or []
        done(None)
        host.passed_us += 2 * SECOND_US if how == "late" else 0
        hosted.replied(replace(both_of(host, None, None), committed=(3, 0)), (None, None))
        assert hosted._commits.last == 3
        commit = hosted._commits.of(2)
        assert commit == (Commit(3, host.wall_us(), ("a", "b", "c")) if how == "in time" else None)
        await hosted.close()

    run(main())


def test_what_else_is_to_be_done_to_a_copy_waits_for_what_is_on_its_way_to_the_disk() -> None:
    async def main() -> None:
        leader, deliveries = leader_of(b"x", b"y"), leader_of()
        host, hosted = await follower_with(leader, deliveries)
        part, frames = more_of(leader)
        hosted.replied(both_of(host, part, None), (frames, None))
        (done,) = host.on_the_way or []

        # Nobody leads any more: what it has is to be synced, and what it had asked for forgotten.
        hosted.step(RecordSeen(8, replace(record(), leader=None, incarnation="")))
        await some_turns()
        assert hosted._jobs
        done(None)
        await until(lambda: not hosted._jobs)

        assert hosted.replica.site.logs[0].durable == 3
        await hosted.close()

    run(main())


def test_a_copy_that_can_not_be_synced_is_not_acknowledged_and_stops_the_node() -> None:
    async def main() -> None:
        leader, deliveries = leader_of(b"x"), leader_of()
        host, hosted = await follower_with(leader, deliveries)
        host.failures = []
        part, frames = more_of(leader)
        asked = len(host.asked)
        hosted.replied(both_of(host, part, None), (frames, None))
        (done,) = host.on_the_way or []

        done(SyncFailed("fdatasync: Input/output error"))

        assert [error.code for error in host.failures] == ["sync_failed"]
        assert len(host.asked) == asked
        await hosted.close()

    run(main())


def test_a_little_copy_that_is_not_what_it_should_be_is_seen_to_by_a_job(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        leader, deliveries = leader_of(b"x"), leader_of()
        host, hosted = await follower_with(leader, deliveries)
        part, frames = more_of(leader)
        asked = len(host.asked)

        hosted.replied(both_of(host, part, None), (frames._replace(log=b"?" * 16), None))
        await until(lambda: len(host.asked) > asked)

        assert host.on_the_way == []
        assert host.asked[-1].ends == (1, 1)
        assert "can't be copied" in caplog.text
        await hosted.close()

    run(main())


def test_a_copy_is_closed_when_what_was_on_its_way_is_on_disk() -> None:
    async def main() -> None:
        leader, deliveries = leader_of(b"x"), leader_of()
        host, hosted = await follower_with(leader, deliveries)
        part, frames = more_of(leader)
        hosted.replied(both_of(host, part, None), (frames, None))
        (done,) = host.on_the_way or []

        closing = asyncio.create_task(hosted.close())
        await some_turns()
        assert not closing.done()
        done(None)
        await closing

    run(main())


def test_what_two_followers_ask_for_is_read_once() -> None:
    async def main() -> None:
        host = Host()
        hosted = make(host, open_log(MemoryFiles()), open_log(MemoryFiles()))
        hosted.step(RecordSeen(7, record()))
        await until(lambda: [extent.durable for extent in hosted.replica.site.logs] == [1, 1])

        first, second = hosted.data(Data(0, 1), 0), hosted.data(Data(0, 1), 0)
        assert first[1] is second[1]

        hosted.logs[0].append([frame_of(b"x")])
        data, run = hosted.data(Data(0, 1), 0)
        assert (data.end, len(run)) == (2, 2)
        assert len(hosted.data(Data(1, 2), 0)[1]) == 1
        kept = hosted.data(Data(0, 2), 0)
        hosted.step(RecordSeen(8, record(epoch=6)))
        await until(lambda: hosted.epoch == 6)
        assert hosted.data(Data(0, 2), 0)[1] is not kept[1], "of another epoch, whatever it is"
        await hosted.close()

    run(main())
