"""What holds the event loop is measured, and named in the log."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import NoReturn

import pytest

from penstock.errors import TopicNotFound
from penstock.server.stalls import LOGGED_S, StallWatch
from security.doors import Doors, knock
from served import Served, serve
from stalling import HELD_CPU_S_MAX, user_s


def test_a_function_that_holds_the_event_loop_is_named_and_measured(caplog: pytest.LogCaptureFixture) -> None:
    stalls: list[float] = []

    async def main() -> None:
        watch = StallWatch(stalls.append)

        def hold() -> None:
            while watch.held_by is None:
                pass

        hold()
        while watch.held_by is not None:
            await asyncio.sleep(0)
        watch.close()

    with caplog.at_level(logging.DEBUG, "penstock"):
        asyncio.run(main())
    assert max(stalls) >= LOGGED_S
    assert any("hold held the event loop for" in record.getMessage() for record in caplog.records)


def test_a_function_that_holds_the_event_loop_again_and_again_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        watch = StallWatch(lambda late_s: None)
        for _ in range(3):
            watch._log("hold", 1.0, 1.0)
        watch._log("hold again", 1.0, 1.0)
        watch._quiet["hold"] = 0, watch._quiet["hold"][1]
        watch._log("hold", 1.0, 1.0)
        watch.close()

    asyncio.run(main())
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("hold")]
    assert [line.split(" held")[0] for line in lines] == ["hold", "hold again", "hold"]
    assert lines[-1].endswith(", and 2 times since the last such line")


def test_a_test_of_a_server_fails_if_the_event_loop_was_held(tmp_path: Path) -> None:
    def hold() -> None:
        before_s = user_s()
        while user_s() - before_s < 1.1 * HELD_CPU_S_MAX:
            sum(range(100_000))

    async def work(here: Served) -> None:
        asyncio.get_running_loop().call_soon(hold)
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match=r"hold .*held the event loop"):
        serve(tmp_path, work)


def test_the_request_that_holds_the_event_loop_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(doors: Doors) -> None:
        watch = StallWatch(lambda late_s: None)

        def hold(name: str) -> NoReturn:
            while watch.held_by is None:
                pass
            raise TopicNotFound("held long enough")

        monkeypatch.setattr(doors.site.broker, "topic", hold)
        async with doors.client() as q:
            with pytest.raises(TopicNotFound):
                await q.topic("t")
        while watch.held_by is not None:
            await asyncio.sleep(0)
        watch.close()

    with caplog.at_level(logging.DEBUG, "penstock"):
        knock(tmp_path, work)
    told = [record.getMessage() for record in caplog.records if "held the event loop for" in record.getMessage()]
    assert any(line.startswith("native DescribeTopic: ") for line in told)
