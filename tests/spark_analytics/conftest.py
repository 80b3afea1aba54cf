"""Spark for the tests: one session for each process that runs them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark_analytics.session import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    made = session("holdfast's tests", master="local[2]", memory="1g", partitions=4)
    yield made
    made.stop()
