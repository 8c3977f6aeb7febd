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
        await fake.enough.wait()
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
        consumer = client.consumer("w", "orders", visibility="1ms", backoff={"initial": "1ms"})
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
