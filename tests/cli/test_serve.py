"""penstock serve: what the process does around the server. That it serves is seen everywhere else."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.server import server
from penstock.server.config import Config


def test_what_a_start_has_loaded_is_not_looked_through_for_garbage(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    frozen: list[int] = []

    async def served(config: Config, ready: Callable[[object], None]) -> None:
        frozen.append(gc.get_freeze_count())
        ready(None)
        frozen.append(gc.get_freeze_count())

    monkeypatch.setattr(server, "serve", served)
    # Logging is of this process.
    monkeypatch.setattr("penstock.server.logs.set_up", lambda *_: None)
    before = gc.get_freeze_count()
    try:
        with pytest.raises(SystemExit, match="0"):
            main(["serve", "--data", str(tmp_path)])
    finally:
        gc.unfreeze()
    assert frozen[0] == before
    assert frozen[1] > before + 10_000
