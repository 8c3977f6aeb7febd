"""Disks and threads that are as fast, as slow, or as dead as the moment a test is about."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any

from penstock.broker.broker import Broker
from penstock.broker.journal import Journal
from penstock.broker.partition import Partition
from penstock.storage.files import Files
from penstock.testing import Fault, FaultyFiles, ManualClock, MemoryDisk, MemoryFiles

Work = Callable[[Broker], Awaitable[None]]


class Inline(Executor):
    """Work is done when it is handed in; what is held back has begun by then, and is done when told to go on."""

    def __init__(self) -> None:
        self._slow: list[Callable[..., Any] | None] = []
        self._held_back: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:  # type: ignore[override]
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        if None in self._slow or getattr(work, "func", work) in self._slow:
            self._held_back.append((future, lambda: work(*args, **kwargs)))
        else:
            _do(future, lambda: work(*args, **kwargs))
        return future

    def hold(self, function: Callable[..., Any] | None = None) -> None:
        """Everything, or only this function."""
        self._slow.append(function)

    @property
    def is_holding(self) -> bool:
        return bool(self._held_back)

    def go_on(self) -> None:
        self._slow.clear()
        while self._held_back:
            _do(*self._held_back.pop(0))


def _do(future: Future[Any], work: Callable[[], Any]) -> None:
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def inline_of(broker: Broker) -> Inline:
    executor = broker.disk.executor
    assert isinstance(executor, Inline)
    return executor


def hold_messages(broker: Broker, partition: Partition) -> Inline:
    """The disk is slow for the messages of this partition, until told to go on."""
    return _hold(broker, partition._journal)


def hold_deliveries(broker: Broker, partition: Partition) -> Inline:
    return _hold(broker, partition.groups._ledger.journal)


def _hold(broker: Broker, journal: Journal) -> Inline:
    executor = inline_of(broker)
    executor.hold(journal._commits._write_groups)
    return executor


def run_inline(work: Work, files: Files | None = None, **options: Any) -> None:
    """As `run` does, but on one thread: what happens, and in which order, is the same every time."""

    async def main() -> None:
        broker = await Broker.open(
            files or MemoryFiles(), clock=ManualClock(), executor=Inline(), lone_writes=False, **options
        )
        try:
            await work(broker)
        finally:
            inline_of(broker).go_on()
            await broker.close()

    asyncio.run(main())


async def turns(count: int = 20) -> None:
    """Whatever can go on without the disk does."""
    for _ in range(count):
        await asyncio.sleep(0)


class PathFiles(FaultyFiles):
    """`before` is asked with the kind of the operation and the whole path: partitions/<id>/messages/…"""

    def __init__(self, inner: Files, before: Callable[[str, str], Fault | None], path: str = "") -> None:
        super().__init__(inner, lambda operation: before(operation.kind, path + operation.name))
        self._whole_before = before
        self._path = path

    def directory(self, name: str) -> PathFiles:
        return PathFiles(self._inner.directory(name), self._whole_before, f"{self._path}{name}/")


class Moments:
    """What the next process finds after a kill: ahead of each change of the disk while it is kept, and after the last.

    `files` is the disk that is looked at.
    """

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.files = PathFiles(MemoryFiles(self.disk), self._look)
        self._kept: list[MemoryDisk] = []
        self._is_keeping = False

    def _look(self, kind: str, path: str) -> None:
        if self._is_keeping and kind not in ("open", "read", "lock"):
            self._kept.append(self.disk.after_kill())

    @contextmanager
    def kept(self) -> Iterator[None]:
        self._is_keeping = True
        yield
        self._is_keeping = False
        self._kept.append(self.disk.after_kill())

    def run_each(self, work: Work, **options: Any) -> None:
        assert len(self._kept) > 1, "nothing was written"
        for disk in self._kept:
            run_inline(work, MemoryFiles(disk), **options)
