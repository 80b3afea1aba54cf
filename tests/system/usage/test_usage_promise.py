"""The promise of metering, under faults, for each tenant and action, exactly.

Calls answered ≤ calls in the lake ≤ calls answered and calls in doubt; report and invoice agree with the lake.  Several
tenants call two frontends.  These are killed and restarted; the processes that upload usage are killed between any two
of their steps; the lake is unavailable for a while; files are delivered again under other names, arrive late, and are
merged.  A call is in doubt if it was under way when a process was killed.
"""

import contextlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from billing.lake.compact import compact
from billing.lake.lake import Lake
from billing.lake.months import Month
from billing.lake.tables import STORAGE_HOURLY, USAGE_HOURLY, LakeTables
from billing.lake.upload import main as seal
from billing.metering.buffers import finished
from billing.metering.spool import waiting
from billing.pricing import plans
from billing.pricing.invoices import Invoices
from billing.pricing.plans import Customers, load_book
from spark_analytics.batch import batch
from spark_analytics.rating import Rates, rate
from spark_analytics.session import session
from tests.faults.campaign.forms import STARTUP
from tests.servers.several import Several
from tests.servers.waiting import wait_until
from tests.system.usage.metered_calls import Calls, MeteredCaller, calls_of, usage_in

pytestmark = pytest.mark.long

TENANTS = 3
CALLS_BETWEEN = 50
"""Number of answered calls between two faults."""
KEPT_MESSAGES, KEPT_BYTES = 7, 1000
SEALING_STEPS = ("write.before", "write.aside", "write.after", "remove.before", "remove.after")
ACTIONS = ("SendMessageBatch", "ReceiveMessage", "DeleteMessage", "GetQueueUrl")

Stored = Counter[str]
"""Byte-milliseconds by account."""


class _Tenant(MeteredCaller):
    """Makes calls from two queues on, one of which keeps its messages."""

    def begin(self) -> None:
        self.started_at = time.time()
        self._queue = self.call("CreateQueue", QueueName="work")["QueueUrl"]
        kept = self.call("CreateQueue", QueueName="kept", tags={"team": "storage"})["QueueUrl"]
        for _ in range(KEPT_MESSAGES):
            self.call("SendMessage", QueueUrl=kept, MessageBody="x" * KEPT_BYTES)
        self.kept_since = time.time()
        super().begin()

    def work(self) -> None:
        entries = [{"Id": str(number), "MessageBody": "x"} for number in range(2)]
        self.call("SendMessageBatch", QueueUrl=self._queue, Entries=entries)
        self.call("GetQueueUrl", QueueName="there is none!")
        received = self.call("ReceiveMessage", QueueUrl=self._queue, MaxNumberOfMessages=10)
        for message in received.get("Messages", ()):
            self.call("DeleteMessage", QueueUrl=self._queue, ReceiptHandle=message["ReceiptHandle"])
        self.stopping.wait(0.05)  # leaves CPU time to starting servers


class _LakePath:
    """Path to the lake, which may be broken for a while: a symbolic link."""

    def __init__(self, folder: Path) -> None:
        self.lake = folder / "lake"
        self.real = folder / "real"
        self._nowhere = folder / "nowhere"
        self.real.mkdir()
        self._nowhere.write_bytes(b"this is no folder")
        self.mend()

    def break_(self) -> None:
        self._lead_to(self._nowhere)

    def mend(self) -> None:
        self._lead_to(self.real)

    def _lead_to(self, target: Path) -> None:
        fresh = self.lake.with_name("fresh")
        fresh.symlink_to(target)
        fresh.replace(self.lake)


class _World:
    """A service, its tenants, and the path of its usage to the lake."""

    def __init__(self, folder: Path) -> None:
        self.way = _LakePath(folder)
        self.plan = folder / "plan"
        self.plan.mkdir()
        settings = {"USAGE": "on", "USAGE_LAKE": os.fspath(self.way.lake), "USAGE_UPLOAD_SECONDS": "1"}
        self.server = Several(folder, settings)
        self.server.settings |= {"PYTHONPATH": str(STARTUP), "FAULTS_SEALING": str(self.plan)}
        self.spool = self.server.data / "usage"
        self.tenants: list[_Tenant] = []

    def begin(self) -> None:
        self.server.start()
        for number in range(TENANTS):
            account = self.server.rest("POST", "/v1/tenants", {"name": f"Tenant {number}"})["account"]
            key = self.server.rest("POST", f"/v1/keys?account={account}", {"name": "app", "role": "admin"})
            self.tenants.append(
                _Tenant(self.server, account, aws_access_key_id=key["id"], aws_secret_access_key=key["secret"])
            )
        for tenant in self.tenants:
            tenant.begin()

    def close(self) -> None:
        for tenant in self.tenants:
            tenant.stop()
        self.server.kill()

    def live_through_it(self) -> None:
        log = self.server.log_text
        self.wait_for_answers()
        self.way.break_()
        killed = self.server.kill_child("frontend-2")
        wait_until(lambda: "cannot be written" in log(), "the lake is missed")
        self.server.wait_again("frontend-2", killed, 60)
        assert waiting(self.spool).files > 2, "what the killed one counted waits"
        self.way.mend()
        wait_until(lambda: "usage is uploaded again" in log(), "the lake is back")
        for number, step in enumerate(SEALING_STEPS, 1):
            (self.plan / f"{number}-{step}").touch()
        killed = self.server.kill_child("frontend-1")
        self.server.wait_again("frontend-1", killed, 60)
        wait_until(lambda: all(name.endswith(".done") for name in os.listdir(self.plan)), "all faults have come")
        self.wait_for_answers()

    def end(self) -> None:
        for tenant in self.tenants:
            tenant.stop()
        self.stopped = time.time()
        assert self.server.stop() == 0
        self.ended = time.time()
        where = [os.fspath(self.spool), os.fspath(self.way.lake)]
        wait_until(lambda: seal(where) == 0 and not any(finished(self.spool)), "all is sealed")
        for number, path in enumerate(sorted(self.way.real.rglob("*.parquet"))):
            if number % 2:  # delivered a second time
                shutil.copyfile(path, path.with_name(f"{number:032x}.parquet"))
        assert number, "some were delivered twice"

    def wait_for_answers(self) -> None:
        before = self.answered.total()
        wait_until(lambda: self.answered.total() >= before + CALLS_BETWEEN, "calls are answered")

    @property
    def answered(self) -> Calls:
        return sum((tenant.answered for tenant in self.tenants), Counter())

    @property
    def in_doubt(self) -> Calls:
        return sum((tenant.in_doubt for tenant in self.tenants), Counter())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_World]:
    """World after all faults, with everything in the lake."""
    with contextlib.closing(_World(tmp_path_factory.mktemp("world"))) as world:
        world.begin()
        world.live_through_it()
        world.end()
        yield world


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    made = session("holdfast's tests", master="local[2]", memory="1g", partitions=4)
    yield made
    made.stop()


def storage_in(lake: Path) -> list[dict[str, Any]]:
    """Return the latest record of each id."""
    rows = ds.dataset(lake / "storage", partitioning="hive").to_table().to_pylist()
    latest: dict[tuple[int, Any], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (row["epoch"], row["sequence"])):
        latest[row["partition"], row["minute"]] = row
    return list(latest.values())


def test_the_lake_has_each_call_that_was_answered(world: _World) -> None:
    billed, answered, in_doubt = calls_of(usage_in(world.way.real)), world.answered, world.in_doubt
    for tenant in world.tenants:
        for action in ACTIONS:
            name = tenant.account, action
            assert 0 < answered[name] <= billed[name] <= answered[name] + in_doubt[name], name
    assert answered.total() <= billed.total() <= answered.total() + in_doubt.total()


def test_the_lake_has_what_was_stored(world: _World) -> None:
    """Covers each tenant's messages that were never received: from their send to the end."""
    for tenant in world.tenants:
        kept = [row for row in storage_in(world.way.real) if (row["account"], row["queue"]) == (tenant.account, "kept")]
        assert {row["messages"] for row in kept} == {KEPT_MESSAGES}
        assert {tuple(row["tags"]) for row in kept} == {(("team", "storage"),)}
        stored = sum(row["byte_milliseconds"] for row in kept)
        body_bytes = KEPT_MESSAGES * KEPT_BYTES
        assert stored >= body_bytes * (world.stopped - tenant.kept_since) * 1000
        sealed_bytes = body_bytes * 1.2  # including the overhead of encryption
        assert stored <= sealed_bytes * (world.ended - tenant.started_at) * 1000


def test_report_and_invoice_equal_the_lake_also_with_late_and_merged_files(world: _World, spark: SparkSession) -> None:
    lake = Lake(os.fspath(world.way.real))
    usage, storage = usage_in(world.way.real), storage_in(world.way.real)
    days = {row["minute"].date() for row in (*usage, *storage)}
    files = sorted(world.way.real.glob("usage/*/*/*.parquet"), key=lambda path: path.stat().st_size)
    late = []
    while calls_of(usage_in(world.way.real)) == calls_of(usage):  # the records of one file may be in others too
        late.append(files.pop())
        late[-1].rename(late[-1].with_name(f".{late[-1].name}"))
    batch(spark, lake, min(days), max(days))
    assert report(lake, days)[0] != calls_of(usage)
    for path in late:
        path.with_name(f".{path.name}").rename(path)
    assert compact(lake, datetime.now(UTC) + timedelta(hours=6)).written, "small files become one"
    batch(spark, lake, min(days), max(days))
    stored: Stored = Counter()
    for row in storage:
        stored[row["account"]] += row["byte_milliseconds"]
    assert report(lake, days) == (calls_of(usage), stored)

    book = load_book(Path(plans.__file__).with_name("prices.example.yaml"))
    months = sorted({Month.parse(f"{day:%Y-%m}") for day in days})
    for month in months:
        rate(spark, lake, Rates(month, book, Customers("standard")))
    for tenant in world.tenants:
        lines = [line for month in months for line in Invoices(lake).draft(tenant.account, str(month)).lines]
        charged: Counter[str] = Counter()
        for line in lines:
            charged[line.meter] += int(line.units)
        own = [row for row in usage if row["account"] == tenant.account]
        assert charged["requests_standard"] == sum(row["chunks"] for row in own) > 0
        assert charged["bytes_out"] == sum(row["bytes_out"] for row in own) > 0
        assert charged["storage"] == stored[tenant.account] > 0


def report(lake: Lake, days: set[date]) -> tuple[Calls, Stored]:
    """Return the sums in the hourly tables."""
    tables = LakeTables(lake)
    stored: Stored = Counter()
    for row in tables.read(STORAGE_HOURLY, min(days), max(days)).to_pylist():
        stored[row["account"]] += int(row["byte_milliseconds"])
    return calls_of(tables.read(USAGE_HOURLY, min(days), max(days)).to_pylist()), stored
