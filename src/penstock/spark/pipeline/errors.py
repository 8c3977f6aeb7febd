"""What can go wrong with pipelines, beyond what `penstock.errors` knows."""

from __future__ import annotations

from penstock.errors import InvalidInput, PenstockError


class SparkMissing(PenstockError):
    """PySpark, Java, or a package that a pipeline needs is not there; the message says how to get it."""

    code = "spark_missing"


class PipelineInvalid(InvalidInput):
    """The file has mistakes; `details["problems"]` has each with its line."""

    code = "pipeline_invalid"


class PipelineRunning(PenstockError):
    code = "pipeline_running"


class PipelineFailed(PenstockError):
    """It ran, and ended by an error: the message is its cause, `details["log"]` the file with all of it."""

    code = "pipeline_failed"
