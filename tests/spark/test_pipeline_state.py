"""What pipelines keep of themselves: whose a name is, and who may hold it."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
from pyspark.sql import SparkSession

from penstock.errors import InvalidInput, PipelineRunning
from penstock.spark.builtin.archive import Archiving, start
from penstock.spark.connecting import Connecting
from penstock.spark.pipeline.running import Job, run
from penstock.spark.pipeline.session import _rotate
from penstock.spark.pipeline.state import Kind, State, Store


class Unasked:
    """A view that is told nothing."""


def never(session: SparkSession, checkpoint: str) -> NoReturn:
    raise AssertionError("it was started")


@pytest.mark.parametrize(("first", "second"), [("file", "archive"), ("archive", "mirror"), ("mirror", "file")])
def test_a_name_belongs_to_one_kind_of_pipeline(tmp_path: Path, first: Kind, second: Kind) -> None:
    store = Store(tmp_path)
    file = "orders.yaml" if first == "file" else ""
    with store.held("orders"):
        store.put(State("orders", file, "finished", 1, 1, "local", "c", "l", kind=first))
    before = (tmp_path / "orders" / "state.json").read_bytes()
    with pytest.raises(InvalidInput, match=r"a pipeline called orders is there already, and is another: .*--state-dir"):
        run(Job("orders", None, never, kind=second), store, Unasked())  # type: ignore[arg-type]
    assert (tmp_path / "orders" / "state.json").read_bytes() == before


def test_a_state_of_old_is_known_by_its_file_and_a_broken_one_is_nobodys(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.held("p"):
        store.put(State("p", "p.yaml", "finished", 1, 1, "local", "c", "l"))
        store.check_kind("p", "file")
        with pytest.raises(InvalidInput, match=r"the one from p\.yaml"):
            store.check_kind("p", "mirror")
        store.put(State("p", "", "finished", 1, 1, "local", "c", "l"))
        store.check_kind("p", "mirror")
        (tmp_path / "p" / "state.json").write_bytes(b"")
        store.check_kind("p", "mirror")


def test_archiving_deletes_no_checkpoint_but_its_own(tmp_path: Path) -> None:
    class Reached(Exception):
        pass

    class NoSpark:
        def __getattr__(self, name: str) -> NoReturn:
            raise Reached

    others, own = tmp_path / "checkpoint" / "query" / "7", tmp_path / "checkpoint" / "archive" / "7"
    for each in (others, own):
        each.parent.mkdir(parents=True)
        each.write_text("how far it is")
    what = Archiving("orders", Connecting("penstock://nowhere"), str(tmp_path / "archive"), "orders")
    with pytest.raises(Reached):
        start(NoSpark(), what, None, None, str(tmp_path / "checkpoint"))  # type: ignore[arg-type]
    assert (others.exists(), own.exists()) == (True, False)


def test_a_pipeline_starts_while_somebody_looks_whether_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    with store.held("p"), pytest.raises(PipelineRunning), store.held("p"):
        pass
    looker = os.open(tmp_path / "p" / "lock", os.O_RDWR)
    fcntl.flock(looker, fcntl.LOCK_SH)
    # Not for other threads: Spark's client has one that sleeps.
    quick = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: os.close(looker))
    monkeypatch.setattr("penstock.spark.pipeline.state.time", quick)
    with store.held("p"):
        pass


def test_the_logs_of_the_last_ten_runs_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    for number in range(12):
        _rotate(log)
        log.write_text(f"{number}")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        "log.txt": "11",
        **{f"log.{number}.txt": f"{11 - number}" for number in range(1, 10)},
    }
