"""A Spark session for a pipeline: what it needs is looked for first, and what it says goes to a file."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from penstock.errors import SparkMissing
from penstock.spark.background import in_background

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

JAVA_MIN = 17
SPARK_MIN = (4, 2)
_PANDAS_MIN = (2, 2)
# So long a second signal waits for a batch that is in Python. Spark's own default is for ever.
STOP_TIMEOUT_S = 3
# Of one pipeline, that of the current run included.
_LOGS_MAX = 10
_CATALOG = "spark.sql.catalog.spark_catalog"
_JARS = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
# The name of a jar's file, or of a package with its version; a directory may be called anything.
_AVRO = re.compile(r"(?:^|[\s,:;/\\])spark-avro[^\s,:;/\\]*(?:\.jar(?=$|[\s,:;])|:\d)")
# 64 MiB by Spark 4.3's own default: that is much for rows that are objects of Python until they are Arrow.
_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
BATCH_BYTES = 16 << 20
_DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
# delta-core is what delta-spark was called up to Spark 3.
_DELTA_NAMED = re.compile(r"\bdelta-(?:spark|core)_")
_DELTA = re.compile(r"delta-(?:spark|core)_(?:(?P<spark>\d+\.\d+)_)?\d+\.\d+[:-](?P<major>\d+)\.(?P<minor>\d+)[^\s,]*")
# Without a version of Spark in its name, a package is for the newest that there was. Later ones are not known here.
_DELTA_KNOWN = (4, 4)
_DELTA_FITS = (_DELTA_KNOWN, (4, 2))
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def check_spark() -> None:
    """SparkMissing if a session can't be started, with what to install."""
    try:
        found = version("pyspark")
    except PackageNotFoundError:
        raise SparkMissing(
            "pipelines run on Spark, and pyspark is not installed: pip install 'penstock[spark]'"
        ) from None
    if _numbers(found) < SPARK_MIN:
        raise SparkMissing(f"pipelines need pyspark 4.2 or later, not {found}: pip install --upgrade 'penstock[spark]'")
    _check_java()


def check_arrow() -> None:
    """For mapInArrow. Spark itself asks for pandas at the first batch."""
    how = "mirrors and delta tables need pandas 2.2 or later, {}: pip install --upgrade 'penstock[spark]'"
    try:
        found = version("pandas")
    except PackageNotFoundError:
        raise SparkMissing(how.format("which is not installed")) from None
    if _numbers(found) < _PANDAS_MIN:
        raise SparkMissing(how.format(f"not {found}"))


def check_fastavro() -> None:
    """For Avro without Spark's own package."""
    if find_spec("fastavro") is None:
        raise SparkMissing("Avro needs the package fastavro, on executors too: pip install --upgrade 'penstock[spark]'")


def check_deltalake() -> None:
    """For delta tables without Delta Lake's own package."""
    if find_spec("deltalake") is None:
        raise SparkMissing("a delta table needs the package deltalake: pip install 'penstock[delta]'")
    check_arrow()


def _numbers(told: str) -> tuple[int, ...]:
    return tuple(int(part) for part in told.split(".")[:2])


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    how = f"install Java {JAVA_MIN} (Debian, Ubuntu: apt-get install openjdk-{JAVA_MIN}-jre-headless)"
    if java is None or not Path(java).is_file():
        where = f"in JAVA_HOME ({home})" if home else "in the PATH"
        raise SparkMissing(f"Spark runs on Java, and there is none {where}: {how}")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    found = _VERSION.search(said.stderr + said.stdout)
    if found is None:
        raise SparkMissing(f"{java} does not tell its version: {how}")
    if int(found[1]) < JAVA_MIN:
        raise SparkMissing(f"Spark needs Java {JAVA_MIN} or later, and {java} is Java {found[1]}: {how}")


def open_session(
    name: str, conf: Mapping[str, str], log: Path, *, needs_avro: bool = False, needs_delta: bool = False
) -> SparkSession:
    """`conf` has spark.master. Everything that Java and Spark print, until they end, goes to `log`."""
    # Of a process that has one already, its session is used: tests, notebooks.
    settings = {**_defaults(conf["spark.master"]), "spark.app.name": name, **conf}
    if needs_delta:
        settings = with_delta(settings)
        if settings.get(_CATALOG) != _DELTA_CATALOG and not _has_own_settings():
            check_deltalake()
    if needs_avro and _AVRO.search(_jars(settings)) is None and not _has_own_settings():
        check_fastavro()
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(variable, sys.executable)
    with _printing_to(log):
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession

        _hush()
        builder = SparkSession.builder
        for setting, value in settings.items():
            builder = builder.config(setting, value)
        try:
            spark = in_background(builder.getOrCreate())
        except PySparkRuntimeError as error:
            raise SparkMissing(_why_not_started(log, settings)) from error
        if needs_avro and not has_spark_avro(spark):
            bound_batches(spark)
        return spark


def bound_batches(spark: SparkSession) -> None:
    """Those that go to Python, unless Spark's own files of settings say how large they are."""
    if spark.conf.get(_BATCH_BYTES, None) is None:
        spark.conf.set(_BATCH_BYTES, str(BATCH_BYTES))


class Urgency(Protocol):
    is_urgent: bool


def stop_query(query: StreamingQuery, stop: Urgency | None = None) -> None:
    """Spark fails if a batch that is in Python lasts for more than STOP_TIMEOUT_S. Unless urgent, it is waited for:
    the query may be started again."""
    while True:
        try:
            query.stop()
            return
        except Exception as error:
            if "TimeoutException" not in str(error):
                raise
            if stop is not None and stop.is_urgent:
                return


def _hush() -> None:
    """PySpark and py4j print errors that they raise, too. Whoever catches them tells them."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logger = PySparkLogger.getLogger(name)
        logger.handlers = [logging.NullHandler()]
    if not logging.root.handlers:
        logging.root.addHandler(logging.NullHandler())


def _defaults(master: str) -> dict[str, str]:
    found = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # Spark's own default is INT96, which others read without a zone, and as another year beyond 1677 and 2262.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.streaming.stopTimeout": f"{STOP_TIMEOUT_S}s",
        # A key must not be read in a plan.
        "spark.sql.redaction.options.regex": "(?i)url|key",
    }
    if master.startswith("local"):
        local = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
        # 200, as is the default, is for a cluster: here most of a batch's time would be spent on empty tasks.
        return {**found, **local, "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 1))}
    return found


def _jars(conf: Mapping[str, str]) -> str:
    return " ".join(conf.get(name, "") for name in _JARS)


def with_delta(conf: Mapping[str, str]) -> dict[str, str]:
    """Delta Lake's own package, if one is named; deltalake does without any setting."""
    named = _jars(conf)
    if _DELTA_NAMED.search(named) is None:
        return dict(conf)
    _check_delta(named, version("pyspark"))
    return {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        _CATALOG: _DELTA_CATALOG,
        **conf,
    }


def has_delta_lake(spark: SparkSession) -> bool:
    """Then Spark writes delta tables itself."""
    return bool(spark.conf.get(_CATALOG, "") == _DELTA_CATALOG)


def has_spark_avro(spark: SparkSession) -> bool:
    """Then Spark reads and writes Avro itself. What its own files of settings say is in its settings by now."""
    return _AVRO.search(_jars({name: spark.conf.get(name, "") for name in _JARS})) is not None


def _has_own_settings() -> bool:
    """Then a package may be among them, which is known once Spark has started."""
    if "PYSPARK_SUBMIT_ARGS" in os.environ:
        return True
    package = find_spec("pyspark")
    home = os.environ.get("SPARK_HOME") or (str(Path(package.origin).parent) if package and package.origin else "")
    directory = os.environ.get("SPARK_CONF_DIR") or str(Path(home) / "conf")
    return (Path(directory) / "spark-defaults.conf").exists()


def _check_delta(named: str, spark: str) -> None:
    """One that is made for another Spark may start, write a batch, and fail at the next."""
    found = _DELTA.search(named)
    if found is None:
        return
    ours = _numbers(spark)
    delta = (int(found["major"]), int(found["minor"]))
    theirs = tuple(int(part) for part in (found["spark"] or "0.0").split("."))
    if theirs == ours or (found["spark"] is None and (delta > _DELTA_KNOWN or (delta, ours) == _DELTA_FITS)):
        return
    raise SparkMissing(
        f"{found[0]} is not made for Spark {spark}: name one that is, or none, and install deltalake instead "
        "(pip install 'penstock[delta]'), which goes with every version"
    )


def _why_not_started(log: Path, conf: Mapping[str, str]) -> str:
    said = log.read_text(encoding="utf-8", errors="replace")
    unresolved = re.search(r"unresolved dependency: (\S+?)#(\S+?);(\S+?): not found", said)
    if unresolved is not None:
        package = ":".join(unresolved.groups())
        return (
            f"the package {package} can't be fetched: without a way to Maven Central, put its jar on this machine and "
            f"name it in the pipeline's file (spark: {{spark.jars: /path/to/{unresolved[2]}-{unresolved[3]}.jar}})"
        )
    found = re.findall(r"^(?:Exception in thread \"main\" |Caused by: |Error: )(.+)$", said, re.MULTILINE)
    return f"Spark did not start ({conf['spark.master']}): {found[-1] if found else 'see its log'} (log: {log})"


def _rotate(log: Path) -> None:
    """log.txt becomes log.1.txt, log.1.txt becomes log.2.txt, and so on. A service manager that restarts a failing
    pipeline must not overwrite the log of the first failure at once."""
    for number in range(_LOGS_MAX - 1, 0, -1):
        older = log.with_name(f"log.{number}.txt")
        newer = log if number == 1 else log.with_name(f"log.{number - 1}.txt")
        if newer.exists():
            newer.replace(older)


@contextmanager
def _printing_to(log: Path) -> Iterator[None]:
    """Java inherits where we print. That of this process comes back; Java keeps printing to the file."""
    _rotate(log)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, old in zip((1, 2), kept, strict=True):
            os.dup2(old, number)
            os.close(old)
        os.close(file)
