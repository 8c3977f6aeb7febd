"""What only Spark can find wrong with a pipeline: its SQL, its columns, what streams can't do."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidInput, PipelineFailed
from penstock.spark.pipeline.document import Problem
from penstock.spark.pipeline.failures import cause_of
from penstock.spark.pipeline.session import check_spark, open_session
from penstock.spark.pipeline.spec import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def check_mode(frame: DataFrame, mode: str) -> None:
    """What Spark looks at when a query starts: whether rows can be written in that mode at all."""
    jvm: Any = frame.sparkSession._jvm
    output_mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, mode.capitalize())()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), output_mode)


def plan_problems(pipeline: Pipeline) -> list[Problem]:
    """Nothing is run, and nothing is written."""
    check_spark()
    with tempfile.TemporaryDirectory() as directory:
        conf = {**pipeline.spark, "spark.master": "local[1]"}
        log = Path(directory) / "log.txt"
        needs = {"needs_avro": pipeline.needs_avro, "needs_delta": pipeline.needs_delta}
        spark = open_session(f"{pipeline.name}: plan", conf, log, **needs)
        from penstock.spark.pipeline.queries import main, output

        try:
            frame = output(spark, pipeline)
            main(pipeline, frame, directory)
            check_mode(frame, pipeline.sink.mode)
        except (InvalidInput, PipelineFailed) as error:
            return [Problem(0, "", error.message)]
        except Exception as error:
            return [Problem(0, "", cause_of(error))]
        finally:
            spark.stop()
    return []
