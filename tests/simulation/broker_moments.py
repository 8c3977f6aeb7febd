"""A broker that can be stopped ahead of every operation on its disk, and started again from what is left.

`Pool` stands in for the broker's threads. It has two, but only one of them or the loop runs at any time: a thread stops
ahead of every operation, and the dice say how far the loop goes on and who is next. The loop's own time is counted in
its turns. So a seed is one interleaving, on any machine, and slow operations are tried as well as fast ones.
"""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from random import Random
from threading import Semaphore, Thread, current_thread
from typing import Any, NamedTuple

from pyroaring import BitMap64

from penstock.broker.broker import Broker
from penstock.broker.group import Group, Handed, Receipt
from penstock.message import Message
from penstock.storage.commit import GroupCommit
from penstock.testing import FaultyFiles, ManualClock, MemoryDisk, MemoryFiles, MemorySyncs, Operation

THREADS = 2
_SLOW = 0.1
_SLOW_TURNS_MAX = 200

_TURNS_IN_A_SECOND = 1_000
_TURNS_MAX = 100_000

Look = Callable[[Operation], None]
Job = tuple["Future[Any]", Callable[[], Any]]


class _Turns(selectors.SelectSelector):
    """Never sleeps: as long as nobody has anything to do, time passes."""

    count = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.count += 1
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._turns = _Turns()
        super().__init__(self._turns)

    def time(self) -> float:
        return self._turns.count / _TURNS_IN_A_SECOND


def run(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.run(work)


# In so many lives the loop writes what comes alone; and in so many, what is little, and has it synced meanwhile.
LONE_WRITES = 0.25
SYNCS = 0.5


class Inline(Executor):
    """Everything at once, on the loop: nothing to interleave."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        _run((future, partial(fn, *args, **kwargs)))
        return future


class _Worker:
    def __init__(self) -> None:
        self.job: Job | None = None
        # An operation that takes its time, in turns of the loop.
        self.slow_for = 0
        self._go = Semaphore(0)
        self._stopped = Semaphore(0)
        self.is_free = False
        self.thread = Thread(target=self._work, daemon=True)
        self.thread.start()

    def step(self) -> None:
        """Called on the loop: on to the next operation, or to the end of the job."""
        self._go.release()
        self._stopped.acquire()

    def pause(self) -> None:
        if not self.is_free:
            self._stopped.release()
            self._go.acquire()

    def end(self) -> None:
        self.is_free = True
        self._go.release()
        self.thread.join()

    def _work(self) -> None:
        while True:
            self._go.acquire()
            if self.job is None:
                return
            _run(self.job)
            self.job = None
            if self.is_free:
                return
            self._stopped.release()


class Pool(Executor):
    """Belongs to the loop it is made on. `look` is called ahead of every operation that changes the disk."""

    def __init__(self, random: Random, look: Look) -> None:
        self._random = random
        self._look = look
        self._loop = asyncio.get_running_loop()
        self._jobs: deque[Job] = deque()
        self._workers = [_Worker() for _ in range(THREADS)]
        self._alone: _Worker | None = None
        self._is_going = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._jobs.append((future, partial(fn, *args, **kwargs)))
        if not self._is_going:
            self._is_going = True
            self._loop.call_soon(self._turn)
        return future

    def before(self, operation: Operation) -> None:
        if operation.kind in ("read", "open"):
            return
        for worker in self._workers:
            if worker.thread is current_thread():
                worker.pause()
        # Otherwise the loop writes itself, and nothing else happens meanwhile.
        self._look(operation)

    def hold(self) -> None:
        """What is being written now stays as it is, until `go_on`. Others go on."""
        for worker in self._workers:
            if worker.job is not None:
                worker.slow_for = 1 << 62

    def go_on(self) -> None:
        for worker in self._workers:
            worker.slow_for = 0

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for worker in self._workers:
            worker.end()

    def _turn(self) -> None:
        for worker in self._workers:
            worker.slow_for = max(worker.slow_for - 1, 0)
        if self._random.random() < 0.5:
            if not self._jobs and all(worker.job is None for worker in self._workers):
                self._is_going = False
                return
            worker = self._next()
            if worker is not None:
                worker.step()
                if worker.job is None and worker is self._alone:
                    self._alone = None
                if worker.job is not None and self._random.random() < _SLOW:
                    worker.slow_for = self._random.randrange(_SLOW_TURNS_MAX)
        self._loop.call_soon(self._turn)

    def _next(self) -> _Worker | None:
        """Writes to different logs go side by side; anything else alone, since it may need what another one holds."""
        if self._alone is not None:
            return self._alone
        busy = [worker for worker in self._workers if worker.job is not None]
        idle = [worker for worker in self._workers if worker.job is None]
        if self._jobs and idle and (not busy or _is_commit(self._jobs[0])):
            idle[0].job = self._jobs.popleft()
            if not _is_commit(idle[0].job):
                self._alone = idle[0]
            return idle[0]
        awake = [worker for worker in busy if not worker.slow_for]
        return self._random.choice(awake) if awake else None


def _is_commit(job: Job) -> bool:
    work = job[1]
    return isinstance(work, partial) and isinstance(getattr(work.func, "__self__", None), GroupCommit)


def _run(job: Job) -> None:
    future, work = job
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


@asynccontextmanager
async def life(
    disk: MemoryDisk,
    clock: ManualClock,
    random: Random,
    look: Look | None = None,
    *,
    lone_writes: bool | None = None,
    **options: Any,
) -> AsyncIterator[Broker]:
    """A broker from its start to its end. With `look`, that is called ahead of every operation on the disk."""
    pool = Inline() if look is None else Pool(random, look)
    files = FaultyFiles(MemoryFiles(disk), pool.before) if isinstance(pool, Pool) else MemoryFiles(disk)

    def turns() -> int:
        return random.randrange(_SLOW_TURNS_MAX) if random.random() < _SLOW else random.randrange(1, 4)

    with pool:
        has_syncs = lone_writes is None and isinstance(pool, Pool) and random.random() < SYNCS
        # What the loop writes itself can't be cut into with other work: that would make for a dull life.
        broker = await Broker.open(
            files,
            clock=clock,
            executor=pool,
            new_id=partial(random.randbytes, 16),
            lone_writes=random.random() < LONE_WRITES if lone_writes is None else lone_writes,
            syncs=MemorySyncs(turns) if has_syncs else None,
            **options,
        )
        try:
            yield broker
        finally:
            await broker.close()


async def cut_short(
    disk: MemoryDisk, clock: ManualClock, random: Random, work: Callable[[Broker], Awaitable[None]], **options: Any
) -> MemoryDisk:
    """What is left of a life that began with this disk and ended at some operation of its start or of its work."""
    is_at_work = False
    cut_at_work = random.random() < 0.5
    count = 0
    kept, now_us = disk, clock.now_us()

    def look(operation: Operation) -> None:
        nonlocal count, kept, now_us
        if is_at_work == cut_at_work:
            count += 1
            if random.randrange(count) == 0:
                kept, now_us = disk.copy(), clock.now_us()

    async with life(disk, clock, random, look, **options) as broker:
        if cut_at_work:
            kept, now_us = disk.copy(), clock.now_us()
        is_at_work = True
        await work(broker)
        cut_at_work = not is_at_work
    clock.advance_us(now_us - clock.now_us())
    return remains(kept, random)


def remains(disk: MemoryDisk, random: Random) -> MemoryDisk:
    """After a kill, or a power loss."""
    return disk.after_kill() if random.random() < 0.25 else disk.after_power_loss(random)


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(_TURNS_MAX):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


class Row(NamedTuple):
    """One message that a consumer got."""

    partition: int
    lease: int
    offset: int
    message: Message


def rows_of(handed: list[Handed]) -> list[Row]:
    rows = []
    for receipt, frames in handed:
        for frame in frames:
            batch = frame.batch()
            for offset, message in zip(frame.offsets(batch).tolist(), batch.messages(), strict=True):
                if offset in receipt.offsets:
                    rows.append(Row(receipt.partition, receipt.lease, offset, message))
    return rows


async def ack_all(group: Group, handed: list[Handed]) -> None:
    """A lease may have come in several parts; it is answered for at once."""
    leases: dict[tuple[int, int], BitMap64] = {}
    for (partition, lease, offsets), _ in handed:
        leases.setdefault((partition, lease), BitMap64()).update(offsets)
    for (partition, lease), some in leases.items():
        await group.ack(Receipt(partition, lease, some))


@contextmanager
def told_how_to_replay(file: str, seed: int, place: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise AssertionError(f"{error!r}\n{place}; seed {seed}; replay: pytest {file} --seed {seed}") from error
