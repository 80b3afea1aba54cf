"""Spark sessions for the jobs, and the lake's paths in Spark's form."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from billing.lake.lake import Lake, LakeUnavailable
from billing.pricing.estimate import METER_OF
from spark_analytics import s3_jars
from spark_analytics.input_size import MIB, SMALL_JAVA, SMALL_MASTER, is_small, settings_for
from spark_analytics.progress import print_step

LOCAL: Final = "local[*]"
_PLAN_BYTES_MAX: Final = 8 * MIB
"""Rows in memory, some 30,000, that can be part of a plan."""

_ALWAYS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # else each column asks twice where Python is
    # Compressed; so what a core sums up at a time fits into its memory, and a small day is one file.
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16m",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",  # of files that are listed already
    "spark.hadoop.fs.permissions.umask-mode": "077",  # what the lake has is its owner's alone, as all other data
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",  # a pointer names the complete files
}
_ON_THIS_MACHINE: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


SPARK_ERRORS: Final = (PySparkException, Py4JJavaError)
"""Exceptions that Spark raises: neither class covers all of them."""


class JobFailed(Exception):
    """A job ended without its result; the text says why, and what to do."""


def session(
    name: str,
    lake: Lake | None = None,
    *,
    master: str | None = None,
    memory: str | None = None,
    partitions: int | None = None,
    input_bytes: int | None = None,
    packages: Sequence[str] = (),
) -> SparkSession:
    """Return this process's Spark session, which can read and write the lake; start it if necessary.

    ``master`` and ``memory`` (of the driver, such as ``4g``) default to those of ``spark-submit`` if it started this
    process, else to the cores of this machine and Spark's own default.  ``partitions``: maximum of a shuffle; Spark
    joins small ones.  ``input_bytes``: compressed size of the input, which determines other settings
    (:mod:`spark_analytics.input_size`); None: not known.  ``packages``: Maven coordinates of what Spark fetches at its
    start, unless ``spark-submit`` has started it.  Raises :class:`JobFailed` if Spark does not start.
    """
    settings: dict[str, bool | float | int | str | None] = {**_ALWAYS, **settings_for(input_bytes)}
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if master is None and not submitted:
        master = SMALL_MASTER if is_small(input_bytes) else LOCAL
    if is_small(input_bytes) and not submitted and master is not None and master.startswith("local"):
        settings["spark.driver.defaultJavaOptions"] = SMALL_JAVA
    if master is not None:
        settings["spark.master"] = master
    if master is not None and master.startswith("local"):
        settings |= _ON_THIS_MACHINE
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else Spark warns about its choice of an address
    if memory is not None:
        settings["spark.driver.memory"] = memory
    if partitions is not None:
        settings["spark.sql.shuffle.partitions"] = str(partitions)
    if lake is not None and lake.url.startswith("s3://") and not s3_jars.are_installed():
        packages = [*packages, s3_jars.package()]
    if packages and not submitted:
        settings |= {"spark.jars.packages": ",".join(packages), "spark.jars.ivy": s3_jars.cache()}
    try:
        previous = os.umask(0o077)  # Spark's process inherits it for the local folders that it creates
        try:
            with nullcontext() if SparkSession.getActiveSession() else print_step("starting Spark"):
                spark = SparkSession.builder.appName(name).config(map=settings).getOrCreate()
        finally:
            os.umask(previous)
    except PySparkRuntimeError as error:
        if "JAVA_GATEWAY_EXITED" not in str(error):
            raise
        raise JobFailed(
            "Spark did not start; the reason is above. It needs Java 17 or newer "
            "(Debian, Ubuntu: sudo apt-get install default-jre-headless), and for s3:// the packages that "
            "`python -m spark_analytics.s3_jars` fetches"
        ) from None
    if lake is not None:
        for key, value in s3a_settings(lake.url).items():
            spark.conf.set(key, value)  # set later, because the list of processes shows settings of the start
    return spark


def is_one_partition(spark: SparkSession) -> bool:
    """True for a small input: everything is one partition."""
    return spark.conf.get("spark.sql.shuffle.partitions") == "1"


def in_one_partition(rows: DataFrame) -> DataFrame:
    """Return a small input's rows as one partition, so that no later step shuffles them."""
    return rows.coalesce(1) if is_one_partition(rows.sparkSession) else rows


def meter_of_kind() -> Column:
    """Meter of requests or deliveries, for rows with the column ``kind``."""
    meter = F.lit(METER_OF[""])
    for kind, counted_by in METER_OF.items():
        meter = F.when(F.col("kind") == kind, counted_by).otherwise(meter)
    return meter


def read_files(
    spark: SparkSession, lake: Lake, paths: Sequence[str], schema: StructType, path_as: str | None = None
) -> DataFrame:
    """Read Parquet files of the lake, at least one; ``path_as``: name of a column whose values end with a file's path.

    The driver reads the few rows of a small input and puts them into the plan, because Spark takes several milliseconds
    for each file.
    """
    if is_one_partition(spark):
        given = StructType([*schema, StructField(path_as, StringType())]) if path_as else schema
        try:
            rows = lake.rows(paths, to_arrow_schema(schema, timezone="UTC"), path_as=path_as)
        except (FileNotFoundError, LakeUnavailable):
            pass  # Spark raises the error when it reads them
        else:
            if rows.nbytes <= _PLAN_BYTES_MAX:
                return in_one_partition(spark.createDataFrame(rows.combine_chunks(), given))
    found = spark.read.schema(schema).parquet(*(url_of(lake, path) for path in paths))
    return in_one_partition(found.select("*", F.col("_metadata.file_path").alias(path_as)) if path_as else found)


def write_files(rows: DataFrame, lake: Lake, folder: str) -> None:
    """Write rows as Parquet files.  The driver writes a single partition, without Spark's temporary folders."""
    if is_one_partition(rows.sparkSession):
        lake.write_table(f"{folder}/part-0.parquet", rows.toArrow())
    else:
        rows.write.parquet(url_of(lake, folder))


def frame_of(spark: SparkSession, rows: Sequence[Sequence[Any]], schema: StructType) -> DataFrame:
    """Make a frame of a few rows.  They are part of the plan, so no task and no Python worker reads them."""
    columns = zip(*rows, strict=True) if rows else [() for _ in schema.fields]
    types = to_arrow_schema(schema, timezone="UTC")
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, types, strict=True)]
    return spark.createDataFrame(pa.table(arrays, schema=types), schema)


def url_of(lake: Lake, path: str) -> str:
    """URL by which Spark reads a path of the lake."""
    parts = urlsplit(lake.url if "://" in lake.url else f"file://{lake.root}")
    scheme = "s3a" if parts.scheme == "s3" else parts.scheme
    where = parts.netloc if lake.root.startswith("/") else ""  # else the root begins with the bucket
    return f"{scheme}://{where}{lake.root}/{path}"


def s3a_settings(url: str) -> dict[str, str]:
    """Settings of Hadoop's S3A for the bucket of a pyarrow URL; empty for other URLs."""
    parts = urlsplit(url)
    if parts.scheme != "s3":
        return {}
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    prefix = f"fs.s3a.bucket.{parts.hostname}"
    settings = {}
    if "region" in options:
        settings[f"{prefix}.endpoint.region"] = options["region"]
    if "endpoint_override" in options:
        endpoint = options["endpoint_override"]
        scheme = options.get("scheme", "https")
        settings[f"{prefix}.endpoint"] = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
        settings[f"{prefix}.path.style.access"] = "true"
    if parts.username:
        settings[f"{prefix}.access.key"] = unquote(parts.username)
        settings[f"{prefix}.secret.key"] = unquote(parts.password or "")
    return settings


def error_text(error: Exception) -> str:
    """Message of one of :data:`SPARK_ERRORS`, without its Java stack trace."""
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.getMessage())
    return str(error).partition("\n\nJVM stacktrace")[0]
