"""The pages about Spark, and the notebook: their Python runs in the session of the tests, and prints what is shown.

Commands on these pages that start a Spark of their own are not run here.
"""

from __future__ import annotations

import ast
import io
import re
import runpy
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, chdir, redirect_stdout
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark import SparkContext
from pyspark.sql import SparkSession

from archive.support import NOON_US, rows
from broker_process import BrokerProcess
from docs.page import ROOT, Block, Reader, as_told, blocks_of
from penstock.archive import Archive, write_files
from penstock.archive.reading import footer_crc

GUIDES = ROOT / "docs" / "guides"


@pytest.fixture(autouse=True)
def lasting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is shown ends its session; that of the tests goes on."""
    monkeypatch.setattr(SparkSession, "stop", lambda session: None)


class InSession(Reader):
    """Runs Python in this process, where a session is there already. Java has another directory than the page's."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        super().__init__(directory, stack)
        self._names: dict[str, Any] = {"__name__": "__main__"}

    def _run_python(self, text: str, shown: str, where: str) -> None:
        text = self._here(text).replace('"checkpoints/', f'"{self._directory}/checkpoints/')
        printed = printed_by(text, where, self._names, self._directory)
        assert as_told(shown, printed), f"{where}\n{printed}"


def printed_by(text: str, where: str, names: dict[str, Any], directory: Path) -> str:
    out = io.StringIO()
    with chdir(directory), redirect_stdout(out):
        exec(compile(text, where, "exec"), names)
    return out.getvalue()


def with_output(page: Path) -> Iterator[tuple[Block, str]]:
    """Blocks, each with the text that stands below it."""
    blocks = [*blocks_of(page.read_text(encoding="utf-8")), Block("", "", "", 0)]
    for block, following in pairwise(blocks):
        yield block, following.text if following.language == "text" else ""


def test_the_guide_to_spark_can_be_followed(spark: SparkSession, tmp_path: Path) -> None:
    with ExitStack() as stack:
        InSession(tmp_path, stack).follow(GUIDES / "spark.md")


def test_the_notebook_prints_what_it_says_and_leaves_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ROOT / "examples" / "spark_notebook.py"
    described = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert described is not None
    monkeypatch.delenv("PENSTOCK_SERVER", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    # It is for a terminal, and the session goes on.
    monkeypatch.setattr(SparkContext, "setLogLevel", lambda context, level: None)
    out = io.StringIO()
    with redirect_stdout(out):
        left = runpy.run_path(str(path), run_name="__main__")
    assert as_told(textwrap.dedent(described.split("It prints:\n")[1]), out.getvalue()), out.getvalue()
    assert list(tmp_path.iterdir()) == []
    assert left["broker"].returncode == 0


def test_the_job_for_a_cluster_writes_what_it_says(
    spark: SparkSession, broker: BrokerProcess, q: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("orders", "totals"):
        q.create_topic(topic, 2)
    for customer, total in (("ada", 20), ("bob", 30), ("ada", 25)):
        q.publish("orders", msgspec.json.encode({"customer": customer, "total": total}), key=customer)
    (block,) = (each for each in blocks_of((GUIDES / "spark-cluster.md").read_text()) if each.note == "totals.py")
    monkeypatch.setattr("sys.argv", ["totals.py", broker.address, "2026-01-14"])
    for _ in range(2):
        printed_by(block.text, "totals.py", {"__name__": "__main__"}, tmp_path)
    found = sorted(message.value for message in q.reader("totals"))
    assert found == [b'{"customer":"ada","total":45.0}', b'{"customer":"bob","total":30.0}']


def test_an_archive_whose_columns_and_values_grew_is_read_as_the_guide_says(
    spark: SparkSession, tmp_path: Path
) -> None:
    archive = Archive.open(tmp_path, create=True)
    values = [b'{"id": 1, "total": 20}', b'{"id": 2, "total": 30}']
    archive.commit("w", 0, _written(tmp_path, 0, values))
    later = [b'{"id": 3, "total": 15, "currency": "USD"}', b'{"id": 4, "total": "n/a", "currency": "USD"}']
    (entry,) = _written(tmp_path, 2, later)
    path = archive.path_of(entry)
    table = parquet.read_table(path, partitioning=None)
    parquet.write_table(table.append_column("region", pa.array(["eu", "us"])), path)
    with pa.OSFile(path) as file:
        archive.commit("w", 1, [msgspec.structs.replace(entry, bytes=file.size(), footer_crc=footer_crc(file))])

    names: dict[str, Any] = {"spark": spark}
    shown = 0
    for block, told in with_output(GUIDES / "archive.md"):
        if block.language == "python" and "penstock.connect" not in block.text:
            text = block.text.replace("/srv/archive", str(tmp_path))
            assert as_told(told, printed_by(text, f"archive.md:{block.line}", names, tmp_path))
            shown += bool(told)
    assert shown == 1
    assert "region" not in names["orders"].columns
    regions = [None, None, "eu", "us"]
    assert [row.region for row in names["merged"].orderBy("offset").collect()] == regions
    assert names["table"].sort_by("offset").column("region").to_pylist() == regions


def _written(directory: Path, first: int, values: list[bytes]) -> list[Any]:
    end = first + len(values)
    batch = rows(first, end, time_us=NOON_US + first)
    batch = batch.set_column(batch.schema.get_field_index("value"), "value", pa.array(values, pa.binary()))
    given = {"topic": "orders", "topic_id": "id", "partition": 0, "first_offset": first, "end_offset": end}
    return write_files(directory, [batch], **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "page", ["spark.md", "spark-cluster.md", "pipelines.md", "archive.md", "mirror.md", "report.md"]
)
def test_python_on_the_pages_can_be_compiled_and_headings_that_are_linked_to_exist(page: str) -> None:
    text = (GUIDES / page).read_text(encoding="utf-8")
    for block in blocks_of(text):
        if block.language == "python":
            compile(block.text, f"{page}:{block.line}", "exec")
    for target, heading in re.findall(r"\]\(([\w./-]*\.md)?#([\w-]+)\)", text):
        there = (GUIDES / (target or page)).read_text(encoding="utf-8")
        headings = {_anchor(each) for each in re.findall(r"^#+ (.+)$", there, re.MULTILINE)}
        assert heading in headings, f"{page}: {target}#{heading}"


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
