"""The loop on a thread of its own."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from threading import Event, Thread, get_ident

import pytest

from penstock.client.portal import Portal, _Call


@pytest.fixture
def portal() -> Iterator[Portal]:
    portal = Portal()
    yield portal
    portal.stop()


def test_ctrl_c_that_comes_just_before_a_wait_ends_it_all_the_same(portal: Portal) -> None:
    waits, is_cancelled = Event(), Event()

    async def work() -> None:
        waits.set()
        try:
            await asyncio.Event().wait()
        finally:
            is_cancelled.set()

    def interrupt() -> None:
        waits.wait()
        # One that another thread gets is noted, and wakes nobody: as one that comes in the moment before the wait.
        signal.pthread_kill(get_ident(), signal.SIGINT)

    thread = Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        portal.run(work())
    thread.join()
    assert is_cancelled.wait(60)


def test_a_call_that_was_interrupted_while_it_returned_can_be_waited_for_again() -> None:
    async def work() -> int:
        return 7

    portal = Portal()
    call = _Call(work())
    portal._begin(call)
    # As an interrupt right behind the waiting leaves it.
    assert call._ending.acquire(timeout=30)
    assert call.outcome(None) == 7
    portal.stop()
