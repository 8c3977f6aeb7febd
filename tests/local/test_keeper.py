"""What time alone does is done, and a broker that has failed says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from penstock.client.client import Client
from penstock.clock import SystemClock
from penstock.errors import DiskFull, Fatal, LogClosed, LogCorrupt, PenstockError, SyncFailed
from penstock.local import keeper as keeping
from penstock.local.keeper import Keeper
from penstock.local.transport import LocalTransport
from penstock.testing import Fault, FaultyFiles, MemoryFiles, Operation


class FakeBroker:
    """Counts what it is asked for; fails as told."""

    def __init__(self, *failures: BaseException | None) -> None:
        self.failures = list(failures)
        self.ticks = self.maintained = 0
        self.enough = asyncio.Event()

    async def tick(self) -> None:
        if self.enough.is_set():
            # Whoever waits for that may be a while in stopping it.
            return
        self.ticks += 1
        if self.ticks >= 10:
            self.enough.set()
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            if not self.failures:
                self.enough.set()
            raise failure

    async def maintain(self) -> None:
        self.maintained += 1


def keep(broker: Callable[[], FakeBroker]) -> tuple[FakeBroker, PenstockError | None]:
    async def main() -> tuple[FakeBroker, PenstockError | None]:
        fake = broker()
        keeper = Keeper(fake, tick_s=0.001)  # type: ignore[arg-type]
        await asyncio.wait_for(fake.enough.wait(), 30)
        # The keeper has yet to hear of a failure.
        await asyncio.sleep(0)
        await keeper.stop()
        try:
            keeper.check()
        except PenstockError as error:
            return fake, error
        return fake, None

    return asyncio.run(main())


def test_the_broker_is_asked_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "TICKS_TO_MAINTENANCE", 5)
    broker, failure = keep(FakeBroker)
    assert (broker.ticks, failure) == (10, None)
    assert broker.maintained >= 1


class StuckBroker(FakeBroker):
    """Of which something waits for a partition that can't commit."""

    def __init__(self, *, is_tick: bool) -> None:
        super().__init__()
        self._is_tick = is_tick
        self.left = 0

    async def tick(self) -> None:
        is_over = self.enough.is_set()
        await super().tick()
        if self._is_tick and not is_over:
            await self._wait()

    async def maintain(self) -> None:
        await super().maintain()
        if not self._is_tick:
            await self._wait()

    async def _wait(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.left += 1


@pytest.mark.parametrize("is_tick", [True, False])
def test_time_goes_on_though_something_waits(is_tick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "TICKS_TO_MAINTENANCE", 5)
    broker, failure = keep(lambda: StuckBroker(is_tick=is_tick))
    assert isinstance(broker, StuckBroker)
    assert (broker.ticks, broker.maintained, failure) == (10, 2, None)
    assert broker.left == (10 if is_tick else 2), "nothing goes on once the keeper has stopped"


def test_what_passes_is_tried_again() -> None:
    broker, failure = keep(lambda: FakeBroker(DiskFull("full"), LogClosed("the topic was deleted"), None))
    assert (broker.ticks, failure) == (10, None)


@pytest.mark.parametrize("error", [SyncFailed("fsync"), LogCorrupt("damaged"), ValueError("a bug of ours")])
def test_what_does_not_pass_is_told_to_everybody(error: Exception) -> None:
    broker, failure = keep(lambda: FakeBroker(error))
    assert broker.ticks == 1
    assert isinstance(failure, Fatal)
    assert failure.__cause__ is error


def test_after_a_failure_the_embedded_broker_refuses_to_go_on() -> None:
    is_broken = False

    def before(operation: Operation) -> Fault | None:
        if is_broken and operation.kind == "sync":
            return Fault(SyncFailed("fdatasync failed"))
        return None

    async def main() -> None:
        nonlocal is_broken
        files = FaultyFiles(MemoryFiles(), before)
        transport = await LocalTransport.open(lambda: files, clock=SystemClock())
        client = Client(transport)
        await client.create_topic("orders", 1)
        await client.publish("orders", b"a")
        # That it has run out is written by the keeper, later than all of this.
        consumer = client.consumer("w", "orders", visibility="3s", backoff={"initial": "1ms"})
        await consumer.poll()
        is_broken = True
        # It ends by itself when there is nothing left to keep.
        assert transport._keeper is not None
        await asyncio.wait_for(transport._keeper._task, 30)
        with pytest.raises(Fatal, match="must be opened anew"):
            await client.publish("orders", b"b")
        is_broken = False
        await client.close()

    asyncio.run(main())
