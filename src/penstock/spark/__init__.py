"""Penstock for Spark: topics as tables and streams.

    spark.read.format("penstock").option("url", "penstock://localhost:7420").option("subscribe", "orders").load()

source        the door Spark comes in by
options       what users say, as text; connecting, subscription, bounds and asked are what it means
schema        the columns; tables is the two logs they come from
batch         a batch query; stream a streaming one, with offsets (its checkpoint) and pacing
planning      stretches of the log, cut into tasks; reading is one task; losses what is not there any more
sink          writing, with sink_columns, sink_rows and sink_task
telling       errors on their way through Spark
background    Spark behind everything else on the same machine
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.background import in_background
    from penstock.spark.pipeline.progress import lag_of
    from penstock.spark.source import PenstockDataSource

__all__ = ["PenstockDataSource", "in_background", "lag_of"]


def __getattr__(name: str) -> Any:
    """When it is asked for: a pipeline's file can be checked without pyspark."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from penstock.spark import background, source
    from penstock.spark.pipeline import progress

    modules = {"in_background": background, "lag_of": progress}
    return getattr(modules.get(name, source), name)
