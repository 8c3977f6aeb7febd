"""What a running pipeline shows: a few lines that change, on a terminal; a line a batch, in a pipe; or JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from penstock.cli.output import Output, console, flush, note, write_row
from penstock.cli.shown import shown_lag, shown_rate, shown_span

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from penstock.spark.pipeline.progress import Progress
    from penstock.spark.pipeline.state import State


@contextmanager
def view_for(output: Output) -> Iterator[LinesView]:
    if output is Output.JSON:
        view: LinesView = JsonView()
    else:
        view = LiveView() if sys.stdout.isatty() else LinesView()
    try:
        yield view
    finally:
        view.close()


def _batch(progress: Progress) -> str:
    took = shown_span(progress.batch_ms * 1_000)
    return f"batch {progress.batch}: {progress.batch_rows:,} rows in {took}"


class LinesView:
    """A line for each batch."""

    def __init__(self) -> None:
        self._batches = 0

    def starting(self, state: State) -> None:
        note(f"{state.name} starts on {state.master}; Spark's log: {state.log}")

    def running(self) -> None:
        """Nothing to be told yet."""

    def activity(self, text: str) -> None:
        """What Spark does before the first batch is done."""
        note(f"Spark: {text}")

    def progress(self, progress: Progress) -> None:
        if progress.batches == self._batches:
            return
        self._batches = progress.batches
        bad = f", {progress.bad_rows:,} bad rows so far" if progress.bad_rows else ""
        print(f"{_batch(progress)}, {shown_rate(progress.rows_per_s)} rows/s, lag {shown_lag(progress.lag)}{bad}")
        flush()

    def retrying(self, reason: str) -> None:
        note(f"{reason}; trying again")

    def stopping(self) -> None:
        note("stopping after this batch; once more to stop now")

    def ended(self, state: State) -> None:
        self.close()
        if state.status == "failed":
            return
        rows = state.progress.rows if state.progress is not None else 0
        bad = state.progress.bad_rows if state.progress is not None else 0
        print(f"{state.name} {state.status}: {rows:,} rows" + (f", {bad:,} of them bad" if bad else ""))
        flush()

    def close(self) -> None:
        """Nothing is drawn from here on."""


class JsonView(LinesView):
    """An object a line: starting, running, activity, progress, retrying, stopping, ended."""

    def starting(self, state: State) -> None:
        self._write("starting", name=state.name, pid=state.pid, checkpoint=state.checkpoint, log=state.log)

    def running(self) -> None:
        self._write("running")

    def activity(self, text: str) -> None:
        self._write("activity", text=text)

    def progress(self, progress: Progress) -> None:
        self._write("progress", **msgspec.to_builtins(progress))

    def retrying(self, reason: str) -> None:
        self._write("retrying", reason=reason)

    def stopping(self) -> None:
        self._write("stopping")

    def ended(self, state: State) -> None:
        totals = None if state.progress is None else msgspec.to_builtins(state.progress)
        self._write("ended", name=state.name, status=state.status, error=state.error, progress=totals)

    def _write(self, event: str, **values: object) -> None:
        write_row({"event": event, **values})
        flush()


class LiveView(LinesView):
    """Drawn anew with each report; the last one stays."""

    def __init__(self) -> None:
        super().__init__()
        self._live: Live | None = None
        self._state: State | None = None
        self._progress: Progress | None = None
        self._word = "starting"

    def starting(self, state: State) -> None:
        from rich.live import Live

        self._state = state
        print(f"{state.name} on {state.master}; Spark's log: {state.log}")
        flush()
        self._live = Live(self._frame(), console=console(), auto_refresh=False)

    def running(self) -> None:
        self._word = "running"
        self._draw()

    def activity(self, text: str) -> None:
        self._word = f"running: {text}"
        self._draw()

    def progress(self, progress: Progress) -> None:
        if self._progress is None:
            self._word = "running"
        self._progress = progress
        self._draw()

    def retrying(self, reason: str) -> None:
        self._word = f"trying again: {reason}"
        self._draw()

    def stopping(self) -> None:
        self._word = "stopping after this batch; Ctrl-C once more to stop now"
        self._draw()

    def ended(self, state: State) -> None:
        self._word = state.status
        self._draw()
        super().ended(state)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self) -> None:
        if self._live is not None:
            if not self._live.is_started:
                # Not before Spark has started: until then our output is its log.
                self._live.start()
            self._live.update(self._frame(), refresh=True)

    def _frame(self) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        frame = Table.grid(padding=(0, 2, 0, 0))
        rows = [("status", Text(self._word, "bold"))]
        if (now := self._progress) is not None:
            bad = f" ({now.bad_rows:,} bad)" if now.bad_rows else ""
            rows += [
                ("rows", Text(f"{now.rows:,}{bad}", "yellow" if now.bad_rows else "")),
                ("rows/s", Text(shown_rate(now.rows_per_s))),
                ("lag", Text(shown_lag(now.lag), "yellow" if now.lag else "")),
                ("last", Text(f"{_batch(now)}, {now.time}")),
            ]
            if now.state_rows:
                rows.append(("state", Text(f"{now.state_rows:,} rows, watermark {now.watermark or '-'}")))
        for name, value in rows:
            frame.add_row(Text(name, "dim"), value)
        return frame
