"""Sources of the stream's records: the files of the lake, or the topic to which the service publishes the same records.

Files of the compaction (``merged-…``) contain records that arrived before, and are skipped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from billing.lake.compact import PREFIX
from billing.lake.lake import Lake
from billing.metering.json_records import USAGE_TABLE
from spark_analytics import records
from spark_analytics.s3_jars import JARS
from spark_analytics.session import url_of

FILES_MAX: Final = 2000
"""Default maximum number of files in one batch."""
UNMERGED: Final = f"[!{PREFIX[0]}]*"
"""Files as they were uploaded: their names are hexadecimal."""

CONNECTOR: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
"""Maven coordinates of Spark's source of Kafka: the newest that there is, which later versions of Spark load too."""
KAFKA_VARIABLE: Final = "HOLDFAST_KAFKA_SETTINGS"
"""Environment variable with settings of Kafka's client, as a properties file has them."""
_CLASS_PATH: Final = "SPARK_DIST_CLASSPATH"
"""Variable of Spark's with what it has beside its own jars."""
_URL: Final = re.compile(r"kafka://([^/?#\s@,]+:\d+(?:,[^/?#\s@,]+:\d+)*)/([A-Za-z0-9._-]{1,249})")
_VALUE: Final = StructType([StructField("table", StringType()), *records.USAGE])
_NEEDED: Final = ("minute", "account", "node", "boot", "sequence", "slot")
"""Columns that each record has: without them it can neither be counted nor recognized."""


class Source(Protocol):
    """Source of records of calls."""

    checkpoint: ClassVar[str]
    """Default location of the checkpoint, in the lake.  A checkpoint is of one source."""

    def is_there(self) -> bool:
        """Return whether it can be read: Spark does not start on a folder that does not exist."""

    def missing_packages(self) -> Sequence[str]:
        """Maven coordinates of what Spark needs for it, and does not have."""

    def read(self, spark: SparkSession) -> DataFrame:
        """Read the records as a stream, with the time when each ``arrived``."""


class LakeFiles:
    """The lake's files, as they are uploaded."""

    checkpoint: ClassVar[str] = "live/_checkpoint"

    def __init__(self, lake: Lake, files_max: int = FILES_MAX) -> None:
        """``files_max``: maximum number of files in a batch."""
        self._lake = lake
        self._files_max = files_max

    def is_there(self) -> bool:
        return bool(self._lake.paths(records.USAGE_FOLDER))

    def missing_packages(self) -> Sequence[str]:
        return ()

    def read(self, spark: SparkSession) -> DataFrame:
        return (
            spark.readStream.schema(records.USAGE)
            .option("pathGlobFilter", UNMERGED)
            .option("maxFilesPerTrigger", self._files_max)
            .option("ignoreMissingFiles", True)  # merged meanwhile: the batch has them
            .parquet(url_of(self._lake, records.USAGE_FOLDER))
            .select(*records.USAGE.names, F.col("_metadata.file_modification_time").alias("arrived"))
        )


class UsageTopic:
    """The usage stream, read by Kafka's protocol from the first record that the topic still has."""

    checkpoint: ClassVar[str] = "live/_checkpoint-topic"

    def __init__(self, servers: str, topic: str, settings: Mapping[str, str], records_max: int | None = None) -> None:
        """``settings``: those of Kafka's client.  ``records_max``: maximum number of records in a batch."""
        self.servers = servers
        self.topic = topic
        self.settings = settings
        self.records_max = records_max

    @classmethod
    def parse(cls, url: str, properties: str = "", records_max: int | None = None) -> UsageTopic:
        """Make the source of a URL, ``kafka://host:port/topic``.

        ``properties``: settings of Kafka's client, as a properties file has them.  Raises :class:`ValueError`, without
        any of their values.
        """
        found = _URL.fullmatch(url)
        if found is None:
            raise ValueError(
                "--from is like kafka://host:9092/holdfast-usage, without a user or a password: these are settings of "
                "Kafka's client (--kafka-settings)"
            )
        return cls(found[1], found[2], parse_properties(properties), records_max)

    def is_there(self) -> bool:
        return True

    def missing_packages(self) -> Sequence[str]:
        return () if _has_jar(f"{CONNECTOR.split(':')[1]}-") else (CONNECTOR,)

    def read(self, spark: SparkSession) -> DataFrame:
        reader = (
            spark.readStream.format("kafka")
            .options(**{f"kafka.{name}": value for name, value in self.settings.items()})
            .option("kafka.bootstrap.servers", self.servers)
            .option("subscribe", self.topic)
            .option("startingOffsets", "earliest")
        )
        if self.records_max is not None:
            reader = reader.option("maxOffsetsPerTrigger", self.records_max)
        return records_of(reader.load())


def records_of(raw: DataFrame) -> DataFrame:
    """Parse the records of calls among those of a topic, with the time when each ``arrived``.

    Anything else in the topic is left out: records of storage, and what somebody else has published.
    """
    value = F.from_json(F.col("value").cast("string"), _VALUE)
    parsed = raw.select(value.alias("value"), F.col("timestamp").alias("arrived")).select("value.*", "arrived")
    is_record = F.col("table") == USAGE_TABLE
    for name in _NEEDED:
        is_record = is_record & F.col(name).isNotNull()
    return parsed.where(is_record).select(*records.USAGE.names, "arrived")


def parse_properties(text: str) -> dict[str, str]:
    """Parse the lines of a properties file: ``name=value``, comments, and values of several lines.

    Raises :class:`ValueError`, without any value.
    """
    found: dict[str, str] = {}
    before = ""
    for number, line in enumerate(text.splitlines(), 1):
        line = before + line.strip()
        before = ""
        if not line or line.startswith(("#", "!")):
            continue
        if line.endswith("\\"):
            before = line[:-1]
            continue
        name, has_value, value = line.partition("=")
        if not has_value or not name.strip():
            raise ValueError(f"line {number} of the settings of Kafka's client is not like name=value")
        found[name.strip()] = value.strip()
    if before:
        raise ValueError("the settings of Kafka's client end within a value: the last line ends with a backslash")
    return found


def _has_jar(prefix: str) -> bool:
    """Return whether Spark's class path has a jar whose name begins so."""
    jars = list(JARS.glob("*.jar"))
    for entry in os.environ.get(_CLASS_PATH, "").split(os.pathsep):
        jars += Path(entry[:-2]).glob("*.jar") if entry.endswith("/*") else [Path(entry)]
    return any(jar.name.startswith(prefix) for jar in jars)
