"""Spark for the tests: one session for each process that runs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_analytics.session import session

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test comes first waits for Spark to start, which on a busy machine takes longer than a test may."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.timeout(func_only=True))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    made = session("holdfast's tests", master="local[2]", memory="1g", partitions=4)
    yield made
    made.stop()
