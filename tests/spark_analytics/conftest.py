"""A lake for each test, and the settings of the session that the tests of a process share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from billing.lake.lake import Lake
from spark_analytics.input_size import SMALL

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count no fixtures into a test's time: the first test waits for Spark, which takes longer on a busy machine.

    A marker of the test's own keeps its seconds; the one that is added here would hide it.
    """
    for item in items:
        if HERE in item.path.parents:
            own = item.get_closest_marker("timeout")
            seconds = () if own is None else own.args
            item.add_marker(pytest.mark.timeout(*seconds, func_only=True))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


@pytest.fixture(autouse=True)
def settings_of_the_session() -> Iterator[None]:
    """Undo the settings that a job made for the size of its input, for the next test."""
    active = SparkSession.getActiveSession()
    before = {name: active.conf.get(name) for name in SMALL} if active else {}
    yield
    active = SparkSession.getActiveSession()
    for name, value in before.items():
        if active is not None and value is not None:
            active.conf.set(name, value)
