"""A pipeline as Spark runs it: a query for its rows, and one for the bad rows of each source that has a topic for them.

Those are queries of their own, so that both are exact whatever the sink is: rows that could not be decoded are read
twice, and written once. They start first: with `starting: latest`, what the main query leaves out they have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from penstock.errors import InvalidInput
from penstock.spark.pipeline.decode import bad_rows, rows
from penstock.spark.pipeline.delta import DeltaSink
from penstock.spark.pipeline.encode import encoded
from penstock.spark.pipeline.functions import load_function
from penstock.spark.pipeline.session import has_delta_lake, stop_query
from penstock.spark.pipeline.spec import Pipeline, TableSink, TopicSink, Trigger


def start(spark: SparkSession, pipeline: Pipeline, checkpoint: str) -> list[StreamingQuery]:
    """All of them, the one with the rows first. Everything is planned before anything starts."""
    rows_query = main(pipeline, output(spark, pipeline), checkpoint)
    letters = list(_dead_letters(spark, pipeline, checkpoint))
    started: list[StreamingQuery] = []
    try:
        for writer, must_be_ahead in letters:
            started.append(writer.start())
            if must_be_ahead:
                _wait_for_first_batch(started[-1])
        return [rows_query.start(), *started]
    except BaseException:
        for query in started:
            stop_query(query)
        raise


def output(spark: SparkSession, pipeline: Pipeline) -> DataFrame:
    """What the sink gets."""
    frames = {source.name: rows(spark, pipeline.broker, source) for source in pipeline.sources}
    found = _transformed(spark, pipeline, frames)
    return encoded(found, pipeline.sink) if isinstance(pipeline.sink, TopicSink) else found


def _transformed(spark: SparkSession, pipeline: Pipeline, frames: Mapping[str, DataFrame]) -> DataFrame:
    transform = pipeline.transform
    found: Any
    if transform.sql is not None:
        for name, frame in frames.items():
            frame.createOrReplaceTempView(name)
        found = spark.sql(transform.sql)
    elif transform.python is not None:
        function = load_function(transform.python, transform.function, pipeline.directory)
        found = function(*frames.values()) if len(frames) == 1 else function(**frames)
    else:
        (found,) = frames.values()
    if not hasattr(found, "isStreaming") or not found.isStreaming:
        what = "the SQL does not read" if transform.sql is not None else f"{transform.function} does not return rows of"
        raise InvalidInput(f"{what} a source of this pipeline; there are {', '.join(frames)}")
    return found


def main(pipeline: Pipeline, frame: DataFrame, checkpoint: str) -> DataStreamWriter:
    sink = pipeline.sink
    writer = triggered(frame.writeStream, pipeline.trigger).queryName(pipeline.name).outputMode(sink.mode)
    writer = writer.option("checkpointLocation", f"{checkpoint}/query")
    if isinstance(sink, TableSink):
        if missing := [name for name in sink.partition_by if name.lower() not in map(str.lower, frame.columns)]:
            raise InvalidInput(
                f"sink.partition_by has {', '.join(missing)}; the columns are {', '.join(frame.columns)}"
            )
        if sink.kind == "delta" and not has_delta_lake(frame.sparkSession):
            return writer.foreachBatch(DeltaSink(sink, frame).write)
        return writer.format(sink.kind).option("path", sink.path).partitionBy(*sink.partition_by)
    options = {**pipeline.broker.options(), "topic": sink.topic}
    if sink.mode == "append":
        return writer.format("penstock").options(**options)

    def write(rows: DataFrame, _batch: int) -> None:
        # Sorted, so that a batch that is done again has its rows in the same places: see the guide to Spark.
        ordered = rows.sortWithinPartitions(*[name for name in ("key", "value") if name in rows.columns])
        ordered.write.format("penstock").options(**options, writeId=pipeline.name).mode("append").save()

    # Spark has no update mode for data sources in Python.
    return writer.foreachBatch(write)


def _dead_letters(spark: SparkSession, pipeline: Pipeline, checkpoint: str) -> Iterator[tuple[DataStreamWriter, bool]]:
    for source in pipeline.sources:
        if source.dead_letters is None:
            continue
        frame = bad_rows(spark, pipeline.broker, source, pipeline.name)
        writer = triggered(frame.writeStream, pipeline.trigger).queryName(f"{pipeline.name}: bad rows of {source.name}")
        writer = writer.option("checkpointLocation", f"{checkpoint}/bad-rows-{source.name}")
        writer = writer.format("penstock").options(**pipeline.broker.options(), topic=source.dead_letters)
        yield writer, source.starts_latest


def triggered(writer: DataStreamWriter, trigger: Trigger) -> DataStreamWriter:
    if trigger.available_now:
        return writer.trigger(availableNow=True)
    if trigger.every_us is not None:
        return writer.trigger(processingTime=f"{trigger.every_us} microseconds")
    return writer


def _wait_for_first_batch(query: StreamingQuery) -> None:
    """Until where it starts is in its checkpoint. A first batch there always is, if only of nothing."""
    while query.isActive and query.lastProgress is None:
        query.awaitTermination(0.1)
