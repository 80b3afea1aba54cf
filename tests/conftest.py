"""Fixtures and settings of all tests."""

import gc
import logging
import os
import secrets
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from metadata_service.sqlite.store import SQLiteStore
from tests.closing import closing
from tests.runner import durations
from tests.runner.late import OPTION, PLUGIN, LateFiles
from tests.runner.schedule import Sharing, of_files
from tests.servers.cassandra_server import QUICK_START, CassandraCluster
from tests.servers.java import spark_connector
from tests.servers.redis_server import RedisServer
from tests.servers.server import show_log_on_failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark's jobs in the tests last seconds, so optimizing compilation would not pay off.
os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join((*QUICK_START, "-XX:+UseSerialGC")))
spark_connector.put_on_class_path(os.environ)

gc.disable()  # until the tests are collected: nearly all that this makes stays

settings.register_profile("holdfast", deadline=None)  # a busy machine is not an error
settings.load_profile("holdfast")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, type=float, metavar="N", help="skip long tests of files that begin after N minutes")


def pytest_configure(config: pytest.Config) -> None:
    minutes = config.getoption(OPTION)
    if minutes is not None:
        config.pluginmanager.register(LateFiles(minutes), PLUGIN)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config) -> Sharing | None:
    """Make the scheduler for ``--dist loadfile``."""
    return of_files(config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    durations.mark_long(items)


def pytest_collection_finish() -> None:
    """Exclude the modules and the collected tests from garbage collection, which would scan them again and again."""
    gc.enable()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    show_log_on_failure(item, report)
    return report


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings in the developer's own environment must not leak into tests."""
    for name in list(os.environ):
        if name.startswith(("HOLDFAST_", "AWS_")):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _collects_as_before() -> Iterator[None]:
    """Restore the garbage collector's thresholds after a command in the tests' process has made it rare.

    What a test has left open would be reported in a later one.
    """
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)


@pytest.fixture(autouse=True, scope="module")
def _reports_what_is_left_open() -> Iterator[None]:
    """Collect garbage after each file, so that a socket which it has left open is not reported in another one."""
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """Restore logging after a command in the tests' process has configured or disabled it."""
    level, disabled = logging.root.level, logging.root.manager.disable
    yield
    logging.root.setLevel(level)
    logging.disable(disabled)


@pytest.fixture(scope="session")
def cassandra() -> Iterator[CassandraCluster]:
    """One node, started by the first test that uses it.  A test that kills or pauses it restores it."""
    with CassandraCluster(java_options=QUICK_START) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """Spark in this process, started by the first test that uses it."""
    from spark_analytics.session import session

    made = session("holdfast's tests", master="local[2]", memory="1g", partitions=4)
    yield made
    made.stop()


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """Running Redis for one test."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def keyspace() -> str:
    """Name of a keyspace that does not exist yet."""
    return f"test_{secrets.token_hex(6)}"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    """Metadata in a new file."""
    async with closing(SQLiteStore(tmp_path / "metadata.sqlite")) as made:
        yield made
