"""`penstock read --follow --include-deleted`: the archive is opened once, and what is new of it is seen."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from archive.support import archive_topic
from penstock.archive import Archive
from penstock.cli.read import _follow
from penstock.cli.stream import Format
from penstock.testing import VirtualQueue


class Enough(Exception):
    pass


def test_whoever_follows_opens_the_archive_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened, polls = [], iter(range(5))
    real, sleep = Archive.open, time.sleep

    def counted(*given: object, **more: object) -> Archive:
        opened.append(given)
        return real(*given, **more)  # type: ignore[arg-type]

    with VirtualQueue() as q:
        q.create_topic("t", 1, retention={"hours": 1})
        q.publish("t", "0")
        archive_topic(q, "t", tmp_path)

        def slept(seconds: float) -> None:
            if threading.current_thread() is not threading.main_thread():
                # Somebody else's: Spark's, in tests before this one.
                sleep(seconds)
                return
            number = next(polls, None)
            if number is None:
                raise Enough
            # Deleted before it is looked for: only the archive has it.
            monkeypatch.setattr(Archive, "open", real)
            q.publish("t", f"{number + 1}")
            archive_topic(q, "t", tmp_path, number + 1)
            q.clock.advance("3h")
            monkeypatch.setattr(Archive, "open", counted)

        monkeypatch.setattr(Archive, "open", counted)
        monkeypatch.setattr(time, "sleep", slept)
        with pytest.raises(Enough):
            _follow(q, "t", {"partitions": None, "archive": str(tmp_path)}, Format.VALUE, None)
    assert len(opened) == 1
    assert capsys.readouterr().out.split() == [f"{number}" for number in range(6)]
