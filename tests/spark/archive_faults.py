"""A driver that dies twice over, for test_archive_pipeline.py: one archive is about to be committed, one has just been.

    python archive_faults.py URL DIRECTORY

Both have finished a batch before. Of `early`, the files of the second batch are written when everything ends; those of
`late` are committed, and nobody was told: neither the broker, nor Spark's checkpoint.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Barrier
from typing import Any

from conftest import new_session
from penstock.spark.builtin import archive
from penstock.spark.builtin.archive import Archiving, Batches, prepared, start
from penstock.spark.connecting import Connecting


def dying(where: str, die: Callable[[], None]) -> type[Batches]:
    class Dying(Batches):
        def commit(self, frame: Any, batch: int) -> None:
            self._batch = batch
            super().commit(frame, batch)

        def _commit(self, entries: list[Any]) -> None:
            if self._batch == 1 and where == "early":
                die()
            super()._commit(entries)
            if self._batch == 1:
                die()

    return Dying


def main(url: str, directory: Path) -> None:
    spark = new_session("local[2]", directory / "warehouse")
    java = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    both = Barrier(2)

    def die() -> None:
        both.wait()
        os.kill(java, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    queries = []
    with Connecting(url).open() as client:
        for where in ("early", "late"):
            archive.Batches = dying(where, die)  # type: ignore[misc]
            what = Archiving(where, Connecting(url), str(directory / where), topics=where, offsets_max=10)
            queries += start(spark, what, prepared(what, client), client, str(directory / f"{where}-checkpoint"))
        for query in queries:
            query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
