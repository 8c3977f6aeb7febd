"""The example for Spark Declarative Pipelines runs as its users run it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from broker_process import BrokerProcess
from penstock.client.blocking import Client

EXAMPLE = Path(__file__).parents[2] / "examples" / "declarative"
SPARK_PIPELINES = Path(sys.executable).with_name("spark-pipelines")
MISSING = [name for name in ("pandas", "grpc_status", "zstandard") if find_spec(name) is None]


@pytest.mark.skipif(bool(MISSING), reason=f"Spark Connect needs {', '.join(MISSING)}")
def test_a_declared_pipeline_reads_a_topic_as_a_streaming_table_and_writes_to_another(
    q: Client, broker: BrokerProcess, tmp_path: Path
) -> None:
    q.create_topic("orders", 2)
    q.create_topic("large-orders", 1)
    for customer, total in (("ann", 120.5), ("bob", 3.0), ("ann", 7.0)):
        q.publish("orders", json.dumps({"customer": customer, "total": total}), key=customer)
    shutil.copytree(EXAMPLE, tmp_path / "example")
    spec = tmp_path / "example" / "spark-pipeline.yml"
    told = spec.read_text()
    assert "file:///tmp/penstock-declarative" in told
    spec.write_text(told.replace("/tmp/penstock-declarative", str(tmp_path)))

    environment = {**os.environ, "PENSTOCK_SERVER": broker.address, "PYSPARK_PYTHON": sys.executable}
    settings = ["spark.ui.enabled=false", "spark.sql.shuffle.partitions=1"]
    command = [SPARK_PIPELINES, "run", *(part for each in settings for part in ("--conf", each))]
    done = subprocess.run(
        command, cwd=tmp_path / "example", env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Run is COMPLETED" in done.stderr + done.stdout

    warehouse = tmp_path / "example" / "spark-warehouse"
    orders = pq.read_table([str(file) for file in (warehouse / "orders").glob("*.parquet")]).to_pylist()
    assert sorted((row["customer"], row["total"]) for row in orders) == [("ann", 7.0), ("ann", 120.5), ("bob", 3.0)]
    totals = pq.read_table([str(file) for file in (warehouse / "totals").glob("*.parquet")]).to_pylist()
    assert {row["customer"]: row["total"] for row in totals} == {"ann": 127.5, "bob": 3.0}
    (large,) = q.reader("large-orders")
    assert (large.key, json.loads(large.value or b"")["total"]) == (b"ann", 120.5)
