"""Schedules of one client do not keep others from creating what they need."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.work import Work
from security.doors import Doors, knock, until


def test_whoever_changes_the_catalog_waits_for_one_schedule_at_the_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, most, waiting = Work.alone, [0], [0]

    async def counted(work: Work, change: Coroutine[Any, Any, Any]) -> Any:
        waiting[0] += 1
        most[0] = max(most[0], waiting[0])
        try:
            return await alone(work, change)
        finally:
            waiting[0] -= 1

    async def work(doors: Doors) -> None:
        await doors.site.broker.create_topic("t", 1)
        for number in range(20):
            body = {"name": f"s{number}", "topic": "t", "cron": "every 1s", "text": "x"}
            assert (await doors.web.post("/v1/schedules", json=body)).is_success
        monkeypatch.setattr(Work, "alone", counted)
        published = sum(record.published for record in doors.site.broker.schedules.list())
        await until(lambda: sum(one.published for one in doors.site.broker.schedules.list()) >= published + 40)
        assert most[0] == 1

    knock(tmp_path, work)
