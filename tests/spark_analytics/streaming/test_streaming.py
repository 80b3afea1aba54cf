"""The stream: each record once, whatever arrives twice, late or while it is killed; and what is late is never lost."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from billing.lake import live
from billing.lake.lake import Lake, table_of
from billing.lake.live import ToDate, summed
from billing.lake.months import Month
from billing.metering.usage import COUNTS, UsageKey, UsageRecord
from billing.pricing.budgets import alerts
from billing.pricing.estimate import Prices
from billing.pricing.plans import Customers
from spark_analytics.__main__ import main
from spark_analytics.batch import batch
from spark_analytics.streaming.budget_watch import used
from spark_analytics.streaming.fold import BatchFolder
from spark_analytics.streaming.job import start
from spark_analytics.streaming.sources import LakeFiles
from tests.billing.books import book
from tests.spark_analytics import lakes

BOOK = book("estimate")
NOON = datetime(2026, 10, 30, 12, tzinfo=UTC)
LATE_AFTER = 7200
Sums = dict[tuple[str, str, str], tuple[int, ...]]


@pytest.fixture
def chance() -> random.Random:
    return random.Random(11)


def recorded(chance: random.Random, count: int, around: datetime = NOON) -> list[UsageRecord]:
    """Records of minutes in the half hour before a time."""
    boot = f"{chance.getrandbits(64):016x}"
    minute = int(around.timestamp()) // 60 * 60
    return [
        UsageRecord(
            "node-1",
            boot,
            1 + number // 10,
            number % 10,
            minute - 60 * chance.randrange(30),
            chance.choice(lakes.KEYS),
            tuple(chance.randrange(1000) for _ in COUNTS),
        )
        for number in range(count)
    ]


def arrive(lake: Lake, name: str, found: Iterable[UsageRecord], when: datetime) -> None:
    """A file of records, as if it had arrived in the lake then."""
    folder = Path(lake.root) / "usage" / when.strftime("date=%Y-%m-%d/hour=%H")
    folder.mkdir(parents=True, exist_ok=True)
    lake.write_table(f"aside/{name}", table_of(list(found)))
    aside = Path(lake.root) / "aside" / name
    os.utime(aside, (when.timestamp(), when.timestamp()))
    aside.rename(folder / f"{name}.parquet")


def run(spark: SparkSession, lake: Lake, folder: BatchFolder | None = None, files_max: int = 2) -> None:
    """The stream, over all that has arrived."""
    folder = folder or BatchFolder(spark, lake, LATE_AFTER, lambda: NOON)
    checkpoint = f"{lake.root}/checkpoint"
    query = start(spark, LakeFiles(lake, files_max), checkpoint, folder, LATE_AFTER, None, partitions=2)
    try:
        query.awaitTermination()
    finally:
        query.stop()


def expected(found: Iterable[UsageRecord]) -> Sums:
    """Each once."""
    sums: dict[tuple[str, str, str], list[int]] = {}
    for record in {(one.node, one.boot, one.sequence, one.slot): one for one in found}.values():
        key = (record.key.account, record.key.kind, record.key.action)
        row = sums.setdefault(key, [0] * len(COUNTS))
        for place, count in enumerate(record.counts):
            row[place] += count
    return {key: tuple(row) for key, row in sums.items()}


def plain(rows: Iterable[dict[str, Any]]) -> Sums:
    return {(row["account"], row["kind"], row["action"]): tuple(row[name] for name in COUNTS) for row in rows}


def streamed(lake: Lake) -> Sums:
    found = live.read(lake)
    assert found is not None
    return plain(summed(found.days.values(), ["account", "kind", "action"]).to_pylist())


def to_date(lake: Lake) -> Sums:
    return plain(ToDate(lake).read(Month(2026, 10)).to_pylist())


def test_each_record_counts_once_and_what_is_late_is_counted_apart_until_the_batch_has_it(
    spark: SparkSession, lake: Lake, chance: random.Random
) -> None:
    first, second, late = recorded(chance, 200), recorded(chance, 100), recorded(chance, 30)
    ahead = recorded(chance, 1, NOON + timedelta(hours=2))
    arrive(lake, "a1", first[:100], NOON)
    arrive(lake, "a2", first[50:150], NOON + timedelta(minutes=1))  # in the same batch
    arrive(lake, "a3", first, NOON + timedelta(minutes=2))  # in another one
    run(spark, lake)
    assert streamed(lake) == expected(first)

    arrive(lake, "b1", first[:80] + second, NOON + timedelta(minutes=70))
    arrive(lake, "b2", late + first[:10], NOON + timedelta(hours=5))
    arrive(lake, "merged-b3", first + second, NOON + timedelta(hours=5))
    arrive(lake, "b4", ahead, NOON)
    run(spark, lake)
    assert streamed(lake) == expected(first + second) == to_date(lake)
    missed = Counter[str]()
    for record in late + ahead:
        missed[record.key.account] += record.counts[0]
    counted = live.late(lake)
    assert {one.account: one.calls for one in counted} == dict(missed)
    assert sum(one.records for one in counted) == 31
    assert not any(one.corrected for one in counted)

    batch(spark, lake, NOON.date(), NOON.date())
    everything = expected(first + second + late + ahead)
    assert to_date(lake) == everything
    assert all(one.corrected for one in live.late(lake))
    run(spark, lake)
    assert streamed(lake) == expected(first + second)
    assert to_date(lake) == everything


def test_the_last_minutes_are_reported_by_queue(spark: SparkSession, lake: Lake, chance: random.Random) -> None:
    found = recorded(chance, 200)
    arrive(lake, "a1", found, NOON)
    run(spark, lake)
    newest = max(record.minute_s for record in found)
    recent = Counter[tuple[int, str, str]]()
    for record in found:
        if record.minute_s > newest - 60 * live.MINUTES_MAX:
            recent[record.minute_s, record.key.account, record.key.queue] += record.counts[0]
    counted = Counter[tuple[int, str, str]]()
    seen = live.read(lake)
    assert seen is not None
    for row in seen.minutes.to_pylist():
        counted[int(row["minute"].timestamp()), row["account"], row["queue"]] += row["calls"]
    assert counted == recent


class Crash(Exception):
    pass


STEPS = ("before anything", "after the first table", "before the pointer", "after the pointer")


@pytest.mark.long
def test_interrupted_between_any_two_steps_the_result_is_the_same(
    spark: SparkSession, lake: Lake, chance: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = recorded(chance, 150)
    for number in range(3):
        arrive(lake, f"a{number}", found[number * 50 : number * 50 + 70], NOON + timedelta(minutes=number))
    whole_table, whole_bytes = Lake.write_table, Lake.write_bytes
    crashes = list(STEPS)
    at = -1

    def crash(step: str) -> None:
        if at == 1 and crashes and crashes[0] == step:
            del crashes[0]
            raise Crash

    class Crashing(BatchFolder):
        def __call__(self, batch: Any, number: int) -> None:
            nonlocal at
            at = number
            crash("before anything")
            super().__call__(batch, number)
            crash("after the pointer")

    def write_table(self: Lake, path: str, table: Any) -> None:
        whole_table(self, path, table)
        crash("after the first table")

    def write_bytes(self: Lake, path: str, data: bytes) -> None:
        crash("before the pointer")
        whole_bytes(self, path, data)

    with monkeypatch.context() as crashing:
        crashing.setattr(Lake, "write_table", write_table)
        crashing.setattr(Lake, "write_bytes", write_bytes)
        for left in range(len(STEPS), 0, -1):
            assert len(crashes) == left
            with pytest.raises(StreamingQueryException, match="Crash"):
                run(spark, lake, Crashing(spark, lake, LATE_AFTER, lambda: NOON), files_max=1)
        assert not crashes
        assert streamed(lake) != expected(found)
        run(spark, lake, Crashing(spark, lake, LATE_AFTER, lambda: NOON), files_max=1)
    assert streamed(lake) == expected(found)


@pytest.mark.long
def test_killed_and_restarted_it_has_the_same_result_as_the_batch(
    spark: SparkSession, lake: Lake, chance: random.Random, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = datetime.now(UTC)
    key = UsageKey("111111111111", "orders", 7, "standard", "SendMessage")
    minute = int(now.timestamp()) // 60 * 60
    counts = (1, 0, 0, 0, 2, 1, 100, 50, 0)
    found = [UsageRecord("node-1", "00" * 8, 1 + n, 0, minute, key, counts) for n in range(200)]
    budgets, alerts_file = tmp_path / "budgets.yaml", tmp_path / "alerts.jsonl"
    budgets.write_text("budgets: [{name: requests, measure: requests, limit: 400, at: [1, 100]}]")
    given = [
        "stream",
        "--lake",
        lake.root,
        "--partitions",
        "2",
        "--budgets",
        str(budgets),
        "--alerts",
        str(alerts_file),
    ]
    for number in range(5):
        arrive(lake, f"a{number}", found[number * 25 : number * 25 + 50], now)  # half of each is in the next, too
    command = [sys.executable, "-m", "spark_analytics", *given, "--files", "1", "--every", "1"]
    command += ["--master", "local[2]", "--memory", "1g"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        while live.read(lake) is None or not any(not alert.waiting for alert in alerts(lake)):  # told, and kept as such
            assert process.poll() is None, process.communicate()[0].decode()
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert [msgspec.json.decode(line)["percent"] for line in alerts_file.read_bytes().splitlines()] == [1]
    for number in range(5, 8):
        arrive(lake, f"a{number}", found[number * 25 : number * 25 + 50], now)
    capsys.readouterr()
    assert main([*given, "--once"]) == 0
    assert " more records, each counted once" in capsys.readouterr().out
    assert streamed(lake) == expected(found)
    batch(spark, lake, (now - timedelta(1)).date(), (now + timedelta(1)).date())
    month = Month(now.year, now.month)
    of_batch = plain(ToDate(lake).read(month).to_pylist())
    assert of_batch == streamed(lake)
    assert main([*given, "--once"]) == 0
    assert [(one.percent, one.waiting) for one in alerts(lake)] == [(1, ()), (100, ())]
    assert [msgspec.json.decode(line)["percent"] for line in alerts_file.read_bytes().splitlines()] == [1, 100]


def test_usage_is_measured_for_budgets() -> None:
    counted = dict.fromkeys(COUNTS, 0) | {"records": 1}
    rows = [
        {"account": "1", "kind": kind, "action": "x", **counted, "chunks": n, "messages": 3, "bytes_out": 5}
        for kind, n in (("", 1_000_000), ("standard", 1_000_000), ("fifo", 2_000_000))
    ]
    table = summed([pa.Table.from_pylist(rows)], ["account", "kind", "action"])
    month = Month(2026, 11)
    assert used(table, month, None, {}) == {"1": {"requests": 4_000_000, "messages": 9, "bytes_out": 15}}
    prices, gb_month = Prices(BOOK, Customers("standard")), 10**9 * 30 * 24 * 3_600_000
    assert used(table, month, prices, {})["1"]["cost"] == Decimal("1.68")  # 0.40 for the second million, 2 x 0.50, 20 %
    amounts = used(table, month, prices, {"1": {"storage": 10 * gb_month}, "2": {"storage": 20 * gb_month}})
    assert amounts["1"]["cost"] == prices.cost(
        "1", month, {"requests_standard": 2 * 10**6, "requests_fifo": 2 * 10**6, "storage": 10 * gb_month}
    )
    assert amounts["1"]["cost"] > Decimal("1.68")
    rows = [
        {"account": "1", "kind": "stream", "action": "x", **counted, "chunks": 7, "bytes_in": 10**9, "bytes_out": 2}
    ]
    of_streams = summed([pa.Table.from_pylist(rows)], ["account", "kind", "action"])
    charged = used(
        of_streams, month, Prices(book("streams"), Customers("plain")), {"1": {"stream_storage": 3 * gb_month}}
    )
    assert charged["1"] == {
        "requests": 7,
        "messages": 0,
        "bytes_out": 2,
        "cost": Decimal("0.13"),  # 0.08 for the second GB-month and 0.05 for the third
    }
    assert set(amounts["2"]) == {"cost"}, "who only stores is charged as well"


def test_arguments_are_checked(lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stream", "--lake", lake.root, "--once"]) == 0
    assert "no records in the lake yet" in capsys.readouterr().out
    budgets = tmp_path / "budgets.yaml"
    budgets.write_text("budgets: [{name: money, measure: cost, limit: 1}]")
    for given, message in (
        (["--budgets", str(budgets)], "give the price book"),
        (["--budgets", str(tmp_path / "none")], "cannot be read"),
        (["--webhook", "here"], "the webhook is not a URL"),
        (["--every", "0"], "1 or more"),
    ):
        with pytest.raises(SystemExit):
            main(["stream", "--lake", lake.root, *given])
        assert message in capsys.readouterr().err
