"""What a running pipeline shows, on a terminal and in a pipe."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from penstock.cli import pipeline_view
from penstock.cli.pipeline_view import LinesView, LiveView
from penstock.spark.pipeline.progress import Progress
from penstock.spark.pipeline.state import State

FIRST = Progress("2026-01-14T15:00:00.000Z", 0, 1, 4_000, 0, 4_000, 2_500.0, 1_600, 8_000)
SECOND = Progress("2026-01-14T15:00:02.000Z", 1, 2, 8_000, 3, 4_000, 8.25, 484_848, 0, 17, "2026-01-14T14:50:00.000Z")


def state(status: str = "starting", progress: Progress | None = None) -> State:
    return State("copy", "copy.yaml", status, 1, 1, "local[2]", "cp", "log.txt", progress=progress)  # type: ignore[arg-type]


def test_in_a_pipe_each_batch_is_a_line_and_what_is_no_result_is_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    view = LinesView()
    view.starting(state())
    view.running()
    view.progress(FIRST)
    # Spark also reports while there is nothing to do.
    view.progress(FIRST)
    view.retrying("can't connect [connection_lost]")
    view.progress(SECOND)
    view.stopping()
    view.ended(state("stopped", SECOND))
    told = capsys.readouterr()
    assert told.out.splitlines() == [
        "batch 0: 4,000 rows in 1.60 s, 2,500 rows/s, lag 8,000",
        "batch 1: 4,000 rows in 8m 4s, 8.2 rows/s, lag 0, 3 bad rows so far",
        "copy stopped: 8,000 rows, 3 of them bad",
    ]
    assert told.err.splitlines() == [
        "copy starts on local[2]; Spark's log: log.txt",
        "can't connect [connection_lost]; trying again",
        "stopping after this batch; once more to stop now",
    ]


def test_why_it_failed_is_told_by_the_error_alone(capsys: pytest.CaptureFixture[str]) -> None:
    LinesView().ended(state("failed", FIRST))
    LinesView().ended(state("finished"))
    assert capsys.readouterr().out == "copy finished: 0 rows\n"


class Terminal:
    """What is drawn, frame by frame."""

    def __init__(self) -> None:
        self._drawn = io.StringIO()

    def console(self) -> Console:
        return Console(file=self._drawn, force_terminal=True, color_system=None, width=100, highlight=False)

    def frame(self) -> list[list[str]]:
        """Lines since the last look, each with its name and what it says."""
        drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._drawn.getvalue())
        self._drawn.seek(0)
        self._drawn.truncate()
        return [re.split(r"  +", line.strip(), maxsplit=1) for line in re.split(r"[\r\n]+", drawn) if line.strip()]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    terminal = Terminal()
    monkeypatch.setattr(pipeline_view, "console", terminal.console)
    return terminal


def test_on_a_terminal_rows_rate_lag_and_batch_are_drawn_anew_with_each_report(
    terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    view = LiveView()
    view.starting(state())
    # Until Spark has started, it would be drawn into its log.
    assert terminal.frame() == []
    view.running()
    assert terminal.frame() == [["status", "running"]]
    view.progress(FIRST)
    assert terminal.frame() == [
        ["status", "running"],
        ["rows", "4,000"],
        ["rows/s", "2,500"],
        ["lag", "8,000"],
        ["last", "batch 0: 4,000 rows in 1.60 s, 2026-01-14T15:00:00.000Z"],
    ]
    view.retrying("can't connect [connection_lost]")
    assert terminal.frame()[0] == ["status", "trying again: can't connect [connection_lost]"]
    view.running()
    view.progress(SECOND)
    assert terminal.frame()[-6:] == [
        ["status", "running"],
        ["rows", "8,000 (3 bad)"],
        ["rows/s", "8.2"],
        ["lag", "0"],
        ["last", "batch 1: 4,000 rows in 8m 4s, 2026-01-14T15:00:02.000Z"],
        ["state", "17 rows, watermark 2026-01-14T14:50:00.000Z"],
    ]
    view.stopping()
    assert terminal.frame()[0] == ["status", "stopping after this batch; Ctrl-C once more to stop now"]
    view.ended(state("stopped", SECOND))
    assert terminal.frame()[0] == ["status", "stopped"]
    # What comes behind the end draws nothing.
    view.progress(SECOND)
    view.close()
    assert terminal.frame() == []
    assert capsys.readouterr().out.splitlines() == [
        "copy on local[2]; Spark's log: log.txt",
        "copy stopped: 8,000 rows, 3 of them bad",
    ]
