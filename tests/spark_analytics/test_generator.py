"""A month that is made up: the same for the same seed, mostly idle, and counted right by the batch."""

from datetime import date
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from billing.lake.lake import SCHEMA, Lake
from billing.lake.tables import USAGE_HOURLY
from spark_analytics.batch import batch
from spark_analytics.generator import GeneratorParameters, generate, storage, usage
from spark_analytics.session import JobFailed
from tests.spark_analytics.lake_sums import days, sums_of_raw, sums_of_tables

pytestmark = pytest.mark.long

FIRST, LAST = date(2026, 10, 31), date(2026, 11, 1)
MONTH = GeneratorParameters(FIRST, LAST, records=20_000, tenants=50, queues=2_000, late=0.03)


def digest(found: DataFrame) -> int:
    """Digest of the rows, in any order."""
    plain = found.withColumn("tags", F.map_entries("tags"))
    answer = plain.select(F.bit_xor(F.xxhash64(*plain.columns)).alias("digest")).first()
    assert answer is not None
    return int(answer.digest)


def test_a_month_is_made_up_and_the_batch_counts_it_right(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    generate(spark, lake, MONTH, "punctual")
    with pytest.raises(JobFailed, match=r"there are records in .* already"):
        generate(spark, lake, MONTH)
    batch(spark, lake, FIRST, LAST)
    punctual = sums_of_raw(lake)
    assert sums_of_tables(lake, FIRST, LAST) == punctual
    assert 0.95 * MONTH.records < punctual[0] < MONTH.records
    generate(spark, lake, MONTH, "late")
    made = [done for done in batch(spark, lake, FIRST, LAST) if done.computed]
    assert [(done.name, done.day) for done in made] == [(USAGE_HOURLY, FIRST)]
    count, repeated, sums, byte_milliseconds = sums_of_raw(lake)
    assert sums_of_tables(lake, FIRST, LAST) == (count, repeated, sums, byte_milliseconds)
    assert count == MONTH.records
    assert 50 <= repeated <= 200
    assert all(sums.values())
    assert byte_milliseconds > 0
    assert [day.read.records for day in days(lake, USAGE_HOURLY)] == [MONTH.records / 2] * 2

    raw = ds.dataset(tmp_path / "usage", partitioning="hive").to_table()
    assert set(SCHEMA.names) <= set(raw.column_names)
    active = len(raw.group_by(["queue_id", "minute"]).aggregate([]))
    assert active < 0.05 * MONTH.queues * MONTH.minutes, "most queues are idle most of the time"
    assert len(raw.group_by("account").aggregate([])) == MONTH.tenants
    assert len(raw.group_by("queue_id").aggregate([])) > 0.9 * MONTH.queues
    by_queue = raw.group_by("queue_id").aggregate([("calls", "count")]).sort_by([("calls_count", "descending")])
    busiest = pc.sum(by_queue["calls_count"].slice(0, MONTH.queues // 100)).as_py()
    assert 0.15 * MONTH.records < busiest < 0.3 * MONTH.records
    assert (tmp_path / f"usage/date={FIRST}/hour=00").is_dir()


def test_a_month_is_the_same_for_the_same_seed(spark: SparkSession) -> None:
    for made in (usage, storage):
        first = digest(made(spark, MONTH))
        assert digest(made(spark, MONTH).repartition(7)) == first
        assert digest(made(spark, MONTH._replace(seed=2))) != first
