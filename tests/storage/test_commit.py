from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event, Thread

import pytest

from penstock.errors import BatchTooLarge, DiskFull, InvalidMessage, LogClosed, Overloaded, SyncFailed
from penstock.limits import Limits
from penstock.message import Message
from penstock.storage.commit import Committed, GroupCommit, Outcome
from penstock.storage.log import Log, LogSettings
from penstock.testing import Fault, FaultyFiles, ManualClock, MemoryFiles, Operation
from support import frame_of, open_log, values_of


class Bench:
    """A group commit whose thread is the test itself: it runs when told."""

    def __init__(self, log: Log, limits: Limits | None = None, *, is_chained: bool = False) -> None:
        self.runs: list[Callable[[], None]] = []
        self.told: list[list[tuple[str, Outcome]]] = []
        self.commits: GroupCommit[str] = GroupCommit(
            log,
            clock=ManualClock(),
            run=self.runs.append,
            tell=self._tell,
            limits=limits or Limits(),
            is_chained=is_chained,
        )

    def _tell(self, outcomes: Sequence[tuple[str, Outcome]]) -> None:
        self.told.append(list(outcomes))

    def run(self) -> None:
        while self.runs:
            self.runs.pop(0)()


@pytest.fixture
def syncs() -> list[str]:
    return []


@pytest.fixture
def log(syncs: list[str]) -> Log:
    def before(operation: Operation) -> None:
        if operation.kind == "sync":
            syncs.append(operation.name)

    return open_log(FaultyFiles(MemoryFiles(), before), settings=LogSettings())


def test_what_arrives_together_is_synced_once_and_told_at_once(log: Log, syncs: list[str]) -> None:
    bench = Bench(log)
    for name in "abc":
        bench.commits.commit(name, frame_of(name.encode()))
    syncs.clear()
    bench.run()
    assert len(syncs) == 1
    assert [[(token, outcome.base_offset) for token, outcome in group] for group in bench.told] == [  # type: ignore[union-attr]
        [("a", 0), ("b", 1), ("c", 2)]
    ]
    assert values_of(log) == [b"a", b"b", b"c"]


def test_nothing_is_told_before_it_is_on_disk(log: Log) -> None:
    bench = Bench(log)
    bench.commits.commit("a", frame_of(b"a"))
    assert bench.told == []
    bench.run()
    assert log.synced_offset == 1
    assert len(bench.told) == 1


def test_single_messages_become_one_frame_and_know_their_offsets(log: Log) -> None:
    bench = Bench(log)
    for name in "abc":
        bench.commits.commit(name, Message(name.encode(), key=b"k"))
    bench.run()
    assert [outcome.base_offset for _, outcome in bench.told[0]] == [0, 1, 2]  # type: ignore[union-attr]
    (frame,) = log.read(0)
    assert frame.batch().values() == [b"a", b"b", b"c"]


def test_frames_between_messages_keep_their_place(log: Log) -> None:
    bench = Bench(log)
    bench.commits.commit("1", Message(b"1"))
    bench.commits.commit("2", frame_of(b"2", b"3"))
    bench.commits.commit("4", Message(b"4"))
    bench.run()
    assert [(t, o.base_offset) for t, o in bench.told[0]] == [("1", 0), ("2", 1), ("4", 3)]  # type: ignore[union-attr]
    assert values_of(log) == [b"1", b"2", b"3", b"4"]


def test_gathered_messages_stay_within_the_limits_of_a_frame(log: Log) -> None:
    limits = Limits(frame_bytes_max=2_000, batch_messages_max=10, message_bytes_max=600)
    bench = Bench(log, limits)
    for i in range(25):
        bench.commits.commit(str(i), Message(b"%d" % i))
    for i in range(5):
        bench.commits.commit(f"large {i}", Message(b"x" * 600))
    bench.run()
    frames = list(log.read(0))
    assert max(frame.count for frame in frames) == 10
    assert max(len(frame.data) for frame in frames) <= 2_000
    assert log.end_offset == 30


def test_a_message_that_can_not_be_stored_is_refused_alone(log: Log) -> None:
    bench = Bench(log)
    bench.commits.commit("good", Message(b"good"))
    with pytest.raises(InvalidMessage):
        bench.commits.commit("bad", Message(b"bad", priority=7))
    with pytest.raises(BatchTooLarge):
        bench.commits.commit("large", Message(b"x" * (2 << 20)))
    bench.run()
    assert values_of(log) == [b"good"]


def test_a_group_is_bounded_by_bytes(log: Log) -> None:
    bench = Bench(log)
    for i in range(20):
        bench.commits.commit(str(i), frame_of(b"x" * 1_000_000))
    bench.run()
    assert [len(group) for group in bench.told] == [8, 8, 4]


def test_a_busy_log_gives_its_thread_back_now_and_then(log: Log) -> None:
    bench = Bench(log)
    commits = bench.commits
    left = 50

    def tell(outcomes: Sequence[tuple[str, Outcome]]) -> None:
        nonlocal left
        left -= 1
        if left:
            commits.commit("more", Message(b"more"))

    commits._tell = tell
    commits.commit("first", Message(b"first"))
    runs = 0
    while bench.runs:
        bench.runs.pop(0)()
        runs += 1
    assert left == 0
    assert runs == 7
    assert log.synced_offset == 50


@pytest.mark.parametrize(("is_chained", "second"), [(False, Committed), (True, DiskFull)])
def test_what_waits_behind_a_group_that_failed_fails_too_if_it_builds_on_it(is_chained: bool, second: type) -> None:
    # It is tried with room behind it, and without.
    faults: list[Fault] = []

    def before(operation: Operation) -> Fault | None:
        is_hit = faults and operation.kind == "write" and operation.name.endswith(".log")
        if is_hit and len(faults) == 1:
            # It comes while the first one is written.
            bench.commits.commit("b", Message(b"b"))
        return faults.pop() if is_hit else None

    log = open_log(FaultyFiles(MemoryFiles(), before))
    bench = Bench(log, is_chained=is_chained)
    faults += [Fault(DiskFull("no space left"))] * 2
    bench.commits.commit("a", Message(b"a"))
    bench.run()
    assert [[(token, type(outcome)) for token, outcome in group] for group in bench.told] == [
        [("a", DiskFull)],
        [("b", second)],
    ]
    assert values_of(log) == ([] if is_chained else [b"b"])


def test_nothing_is_written_behind_what_a_pool_that_was_gone_has_lost(log: Log) -> None:
    bench = Bench(log, is_chained=True)

    def gone(work: object) -> None:
        raise RuntimeError("cannot schedule new futures after shutdown")

    bench.commits._run, run = gone, bench.commits._run
    bench.commits.commit("a", Message(b"a"))
    bench.commits._run = run
    bench.commits.commit("b", Message(b"b"))
    bench.run()
    assert [type(outcome) for group in bench.told for _, outcome in group] == [LogClosed, LogClosed]
    assert values_of(log) == []


def test_a_full_disk_fails_the_group_and_the_next_one_succeeds() -> None:
    state = {"full": True}

    def before(operation: Operation) -> Fault | None:
        is_hit = state["full"] and operation.kind == "write" and operation.name.endswith(".log")
        return Fault(DiskFull("no space left")) if is_hit else None

    state["full"] = False
    log = open_log(FaultyFiles(MemoryFiles(), before))
    state["full"] = True
    bench = Bench(log)
    bench.commits.commit("a", Message(b"a"))
    bench.run()
    assert isinstance(bench.told[0][0][1], DiskFull)
    state["full"] = False
    bench.commits.commit("a", Message(b"a"))
    bench.run()
    assert isinstance(bench.told[1][0][1], Committed)
    assert values_of(log) == [b"a"]


def test_a_failed_sync_fails_everything_from_then_on() -> None:
    state = {"broken": False}

    def before(operation: Operation) -> Fault | None:
        return Fault(SyncFailed("input/output error")) if state["broken"] and operation.kind == "sync" else None

    log = open_log(FaultyFiles(MemoryFiles(), before))
    bench = Bench(log)
    state["broken"] = True
    bench.commits.commit("a", Message(b"a"))
    bench.run()
    state["broken"] = False
    bench.commits.commit("b", Message(b"b"))
    bench.run()
    assert [type(outcome) for group in bench.told for _, outcome in group] == [SyncFailed, SyncFailed]
    assert log.synced_offset == 0


def test_a_teller_that_fails_does_not_keep_others_waiting(log: Log) -> None:
    bench = Bench(log)
    bench.commits.commit("lost", Message(b"1"))
    told, bench.commits._tell = bench.commits._tell, lambda outcomes: (_ for _ in ()).throw(RuntimeError("loop closed"))
    with pytest.raises(RuntimeError):
        bench.run()
    bench.commits._tell = told
    bench.run()
    bench.commits.commit("next", Message(b"2"))
    bench.run()
    assert [token for group in bench.told for token, _ in group] == ["next"]
    assert values_of(log) == [b"1", b"2"]


def test_those_who_wait_hear_that_the_pool_is_gone(log: Log) -> None:
    bench = Bench(log)

    def gone(work: object) -> None:
        raise RuntimeError("cannot schedule new futures after shutdown")

    bench.commits._run = gone
    bench.commits.commit("a", Message(b"a"))
    assert [(token, type(outcome)) for group in bench.told for token, outcome in group] == [("a", LogClosed)]


def test_what_waits_is_bounded(log: Log) -> None:
    bench = Bench(log)
    large = frame_of(*[b"x" * 1_000_000] * 7)
    with pytest.raises(Overloaded) as caught:
        for i in range(100):
            bench.commits.commit(str(i), large)
    assert caught.value.retriable
    bench.run()
    assert 5 < log.end_offset // 7 < 12
    bench.commits.commit("later", large)
    bench.run()


def test_headers_do_not_make_a_gathered_frame_too_large(log: Log) -> None:
    bench = Bench(log)
    headers = tuple((chr(97 + i % 26), b"") for i in range(100))
    for i in range(10_000):
        bench.commits.commit(str(i), Message(b"", headers=headers))
    bench.run()
    assert {type(outcome) for group in bench.told for _, outcome in group} == {Committed}
    assert log.end_offset == 10_000


def test_many_threads_commit_at_once_and_each_gets_its_own_offset(log: Log) -> None:
    def tell(outcomes: Sequence[tuple[Future[Committed], Outcome]]) -> None:
        for future, outcome in outcomes:
            assert isinstance(outcome, Committed)
            future.set_result(outcome)

    with ThreadPoolExecutor(2) as pool:
        commits: GroupCommit[Future[Committed]] = GroupCommit(log, clock=ManualClock(), run=pool.submit, tell=tell)
        offsets: dict[bytes, int] = {}
        ready = Event()

        def work(worker: int) -> None:
            ready.wait()
            for i in range(50):
                value = b"%d-%d" % (worker, i)
                future: Future[Committed] = Future()
                commits.commit(future, Message(value) if i % 2 else frame_of(value))
                offsets[value] = future.result(timeout=30).base_offset

        workers = [Thread(target=work, args=(i,)) for i in range(16)]
        for worker in workers:
            worker.start()
        ready.set()
        for worker in workers:
            worker.join()
    values = values_of(log)
    assert len(values) == 16 * 50
    assert all(values[offset] == value for value, offset in offsets.items())
    for worker in range(16):
        mine = [value for value in values if value is not None and value.startswith(b"%d-" % worker)]
        assert mine == [b"%d-%d" % (worker, i) for i in range(50)]


def test_a_chain_without_room_waits_for_it_and_is_written_in_order() -> None:
    state = {"full": False}

    def before(operation: Operation) -> Fault | None:
        is_hit = state["full"] and operation.kind == "write" and operation.name.endswith(".log")
        return Fault(DiskFull("no space left")) if is_hit else None

    log = open_log(FaultyFiles(MemoryFiles(), before))
    bench = Bench(log, is_chained=True)
    lacking: list[DiskFull] = []
    bench.commits._no_room = lacking.append
    state["full"] = True
    bench.commits.commit("a", Message(b"a"))
    bench.run()
    bench.commits.commit("b", Message(b"b"))
    assert (len(lacking), bench.told, bench.runs) == (1, [], []), "nothing is tried before `retry`"
    assert bench.commits.tokens() == ["a", "b"]
    bench.commits.retry()
    bench.run()
    assert (len(lacking), bench.told) == (2, [])

    state["full"] = False
    bench.commits.retry()
    bench.run()
    assert [(token, type(outcome)) for group in bench.told for token, outcome in group] == [
        ("a", Committed),
        ("b", Committed),
    ]
    assert values_of(log) == [b"a", b"b"]
    bench.commits.retry()
    assert bench.runs == []


def test_a_chain_whose_wait_for_room_ends_fails_with_all_that_waits() -> None:
    state = {"full": False}

    def before(operation: Operation) -> Fault | None:
        is_hit = state["full"] and operation.kind == "write" and operation.name.endswith(".log")
        return Fault(DiskFull("no space left")) if is_hit else None

    log = open_log(FaultyFiles(MemoryFiles(), before))
    bench = Bench(log, is_chained=True)
    bench.commits._no_room = lambda error: None
    state["full"] = True
    bench.commits.commit("a", Message(b"a"))
    bench.run()
    bench.commits.commit("b", Message(b"b"))
    state["full"] = False
    bench.commits.end_wait(LogClosed("the end"))
    bench.run()
    bench.commits.commit("c", Message(b"c"))
    bench.run()
    assert [(token, type(outcome)) for group in bench.told for token, outcome in group] == [
        ("a", LogClosed),
        ("b", LogClosed),
        ("c", LogClosed),
    ]
    assert values_of(log) == []
