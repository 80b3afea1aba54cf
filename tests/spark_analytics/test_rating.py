"""The rating, against sums done by hand, and against one that takes a month unit by unit."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from billing.lake.lake import Lake
from billing.lake.months import Month
from billing.lake.tables import SCHEMAS, STORAGE_HOURLY, USAGE_HOURLY, DayInput, LakeTables, PublishedDay, days_of
from billing.metering.usage import BYTES_OUT, CHUNKS
from billing.pricing.invoices import Invoices
from billing.pricing.plans import Customers, NoPrice, PriceBook, book_of, customers_of
from billing.pricing.rated import Rated
from spark_analytics import rating
from spark_analytics.__main__ import main
from spark_analytics.batch import batch
from spark_analytics.quality import check
from spark_analytics.rating import (
    Rates,
    hours_in_order,
    lines_of,
    named_of,
    placed,
    published,
    rate,
    rates_of,
    to_rate,
    units_of,
)
from tests.spark_analytics.lakes import bring, calls

MILLION = 10**6
GB = 10**9
KINDS = {"standard": "requests_standard", "fair": "requests_fair", "fifo": "requests_fifo", "": "requests_standard"}
AFTER = "20300101T000000"
"""Time of the batch, after everything else."""


class Hour(NamedTuple):
    """Usage of one action by a queue in an hour."""

    account: str
    at: str
    """Such as ``2026-11-07T05``, UTC."""
    chunks: int = 0
    bytes_out: int = 0
    stored: int = 0
    """Byte-milliseconds."""
    kind: str = "standard"
    queue: str = "orders"
    queue_id: int = 1
    tags: Mapping[str, str] = MappingProxyType({})
    action: str = "SendMessage"

    @property
    def hour(self) -> datetime:
        return datetime.fromisoformat(self.at + ":00:00+00:00")


def publish(lake: Lake, hours: Iterable[Hour], first: str, last: str, run: str = f"{AFTER}-00000000") -> None:
    """Let this be what the batch has made of these days."""
    hours = list(hours)
    tables = LakeTables(lake)
    for day in days_of(datetime.fromisoformat(first).date(), datetime.fromisoformat(last).date()):
        mine = [one for one in hours if one.hour.date() == day]
        for name in (USAGE_HOURLY, STORAGE_HOURLY):
            rows: list[dict[str, Any]] = []
            for one in mine:
                of = {
                    "account": one.account,
                    "queue": one.queue,
                    "queue_id": one.queue_id,
                    "kind": one.kind,
                    "tags": list(one.tags.items()),
                    "hour": one.hour,
                }
                if name == USAGE_HOURLY and (one.chunks or one.bytes_out):
                    rows.append({**of, "action": one.action, "chunks": one.chunks, "bytes_out": one.bytes_out})
                if name == STORAGE_HOURLY and one.stored:
                    rows.append({**of, "byte_milliseconds": one.stored})
            files: tuple[str, ...] = ()
            if rows:
                files = (f"{LakeTables.folder(name, run, day)}/part-0.parquet",)
                lake.write_table(files[0], pa.Table.from_pylist(rows, schema=SCHEMAS[name]))
            tables.publish(
                name, day, PublishedDay(run, files, len(rows), {}, DayInput(0, 0, 0, "")), over=tables.day(name, day)
            )


def rated(spark: SparkSession, lake: Lake, month: str, book: PriceBook, customers: Customers) -> list[dict[str, Any]]:
    """The lines, as dictionaries."""
    rate(spark, lake, Rates(Month.parse(month), book, customers))
    found = Rated(lake).of(Month.parse(month))
    assert found is not None
    rows: list[dict[str, Any]] = found.lines.to_pylist()
    return rows


def short(rows: list[dict[str, Any]]) -> dict[str, list[tuple[Any, ...]]]:
    """Lines of each account: meter, tier, queue, units, cost."""
    found = defaultdict(list)
    for row in rows:
        found[row["account"]].append(
            (row["meter"], row["tier"], row["queue"], int(row["units"]), row["amount"].normalize())
        )
    return {account: sorted(lines) for account, lines in found.items()}


def account(number: int) -> str:
    return f"{number:012}"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


TIERS = """
issuer: {name: We}
plans:
  plain:
    currency: EUR
    minor_places: 2
    versions:
      - from: 2026-01-01
        prices:
          requests_standard: {free: 1000, tiers: [{up_to: 3000, price: 0.40}, {up_to: 10000, price: 0.3}, {price: 0.2}]}
          requests_fair: {tiers: [{up_to: 1000, price: 0.50}, {price: 0.45}]}
          requests_fifo: {free: 5, tiers: [{price: 0.60}]}
          storage: {free: 1, tiers: [{up_to: 2.5, price: 0.10}, {price: 0.08}]}
          bytes_out: {free: 1, tiers: [{up_to: 2, price: 0.09}, {price: 0.07}]}
"""


def test_tiers_at_their_edges(spark: SparkSession, lake: Lake) -> None:
    """Each account is a case: hours in the order of time, and the lines done by hand."""
    month = 30 * 24 * 3_600_000  # November's milliseconds
    cases: list[tuple[list[Hour], list[tuple[Any, ...]]]] = [
        # 999 of 1,000 free requests; all of them; and one more.
        ([Hour("", "2026-11-01T00", 999)], [("requests_standard", 1, "orders", 999, Decimal(0))]),
        ([Hour("", "2026-11-30T23", 1000)], [("requests_standard", 1, "orders", 1000, Decimal(0))]),
        (
            [Hour("", "2026-11-01T00", 1000), Hour("", "2026-11-01T01", 1)],
            [
                ("requests_standard", 1, "orders", 1000, Decimal(0)),
                ("requests_standard", 2, "orders", 1, Decimal("0.0000004")),
            ],
        ),
        # An hour that ends where a tier does, and the next one begins there.
        (
            [Hour("", "2026-11-02T00", 3000), Hour("", "2026-11-02T01", 7000), Hour("", "2026-11-02T02", 1)],
            [
                ("requests_standard", 1, "orders", 1000, Decimal(0)),
                ("requests_standard", 2, "orders", 2000, Decimal("0.0008")),
                ("requests_standard", 3, "orders", 7000, Decimal("0.0021")),
                ("requests_standard", 4, "orders", 1, Decimal("0.0000002")),
            ],
        ),
        # One hour over all tiers: 1,000 at 0, 2,000 at 0.40, 7,000 at 0.30 and 90,000 at 0.20 a million.
        (
            [Hour("", "2026-11-03T00", 100_000)],
            [
                ("requests_standard", 1, "orders", 1000, Decimal(0)),
                ("requests_standard", 2, "orders", 2000, Decimal("0.0008")),
                ("requests_standard", 3, "orders", 7000, Decimal("0.0021")),
                ("requests_standard", 4, "orders", 90_000, Decimal("0.018")),
            ],
        ),
        # Queues in one hour: by name, then id, then tags.  a has 600; b with id 1 the other 400 that are free, and 200;
        # b with id 2 has 1,800 up to the tier's end at 3,000, and 200 above it.
        (
            [
                Hour("", "2026-11-04T09", 2000, queue="b", queue_id=2),
                Hour("", "2026-11-04T09", 400, queue="b"),
                Hour("", "2026-11-04T09", 200, queue="b", action="ReceiveMessage"),
                Hour("", "2026-11-04T09", 600, queue="a"),
            ],
            [
                ("requests_standard", 1, "a", 600, Decimal(0)),
                ("requests_standard", 1, "b", 400, Decimal(0)),
                ("requests_standard", 2, "b", 200, Decimal("0.00008")),
                ("requests_standard", 2, "b", 1800, Decimal("0.00072")),
                ("requests_standard", 3, "b", 200, Decimal("0.00006")),
            ],
        ),
        # What came first is in the first tier, whatever its name.
        (
            [Hour("", "2026-11-05T10", 1000, queue="a"), Hour("", "2026-11-05T09", 1000, queue="z")],
            [
                ("requests_standard", 1, "z", 1000, Decimal(0)),
                ("requests_standard", 2, "a", 1000, Decimal("0.0004")),
            ],
        ),
        # Kinds have meters of their own; calls about no queue are those of standard queues.
        (
            [
                Hour("", "2026-11-06T00", 1001, kind="fair"),
                Hour("", "2026-11-06T00", 6, kind="fifo", queue="f"),
                Hour("", "2026-11-06T00", 7, kind="", queue="", queue_id=0),
            ],
            [
                ("requests_fair", 1, "orders", 1000, Decimal("0.0005")),
                ("requests_fair", 2, "orders", 1, Decimal("0.00000045")),
                ("requests_fifo", 1, "f", 5, Decimal(0)),
                ("requests_fifo", 2, "f", 1, Decimal("0.0000006")),
                ("requests_standard", 1, "", 7, Decimal(0)),
            ],
        ),
        # A byte more than a free GB, and than the 2 GB where a tier ends.
        (
            [Hour("", "2026-11-07T00", bytes_out=GB + 1), Hour("", "2026-11-07T01", bytes_out=GB)],
            [
                ("bytes_out", 1, "orders", GB, Decimal(0)),
                ("bytes_out", 2, "orders", GB, Decimal("0.09")),
                ("bytes_out", 3, "orders", 1, Decimal("0.00000000007")),
            ],
        ),
        # 3 GB for all of November are 3 GB-months: 1 free, 1.5 at 0.10, and 0.5 at 0.08.
        (
            [Hour("", "2026-11-08T00", stored=3 * GB * month)],
            [
                ("storage", 1, "orders", GB * month, Decimal(0)),
                ("storage", 2, "orders", 3 * GB * month // 2, Decimal("0.15")),
                ("storage", 3, "orders", GB * month // 2, Decimal("0.04")),
            ],
        ),
        # A byte-millisecond more than is free: 0.10 / (10^9 x 2,592,000,000) is less than half of the 15th place.
        (
            [Hour("", "2026-11-09T00", stored=GB * month), Hour("", "2026-11-09T05", stored=1)],
            [("storage", 1, "orders", GB * month, Decimal(0)), ("storage", 2, "orders", 1, Decimal(0))],
        ),
        # One byte for a third of the month: 0.10 x (1/3) / 10^9 is 0.0000000000333..., in the second tier.
        (
            [Hour("", "2026-11-10T00", stored=GB * month), Hour("", "2026-11-10T01", stored=month // 3)],
            [
                ("storage", 1, "orders", GB * month, Decimal(0)),
                ("storage", 2, "orders", month // 3, Decimal("0.000000000033333")),
            ],
        ),
        # Hours of other months are not November's.
        (
            [
                Hour("", "2026-10-31T23", 5000),
                Hour("", "2026-11-01T00", 1),
                Hour("", "2026-12-01T00", 5000, stored=1, bytes_out=1),
            ],
            [("requests_standard", 1, "orders", 1, Decimal(0))],
        ),
    ]
    book = book_of(TIERS, "prices.yaml")
    hours = [hour._replace(account=account(at)) for at, (given, _) in enumerate(cases) for hour in given]
    publish(lake, hours, "2026-10-31", "2026-12-01")
    found = short(rated(spark, lake, "2026-11", book, Customers("plain")))
    assert found == {account(at): lines for at, (_, lines) in enumerate(cases)}


PLANS = """
issuer: {name: We}
plans:
  york:
    currency: USD
    minor_places: 2
    time_zone: America/New_York
    versions:
      - from: 2026-01-01
        prices: &first
          requests_standard: {free: 10, tiers: [{up_to: 100, price: 1}, {price: 0.5}]}
          requests_fair: {tiers: [{price: 1}]}
          requests_fifo: {tiers: [{price: 1}]}
          storage: {tiers: [{price: 0.10}]}
          bytes_out: {tiers: [{price: 1}]}
      - from: 2026-03-08 # the day on which summer time begins
        prices:
          requests_standard: {free: 20, tiers: [{up_to: 50, price: 10}, {price: 5}]}
          requests_fair: {tiers: [{price: 10}]}
          requests_fifo: {tiers: [{price: 10}]}
          storage: {tiers: [{price: 1}]}
          bytes_out: {tiers: [{price: 10}]}
        discounts: {bytes_out: 12.5}
  world:
    currency: EUR
    minor_places: 2
    versions:
      - from: 2024-01-01
        prices: *first
        discount: 10
"""


def test_prices_that_change_in_the_month_of_a_time_zone(spark: SparkSession, lake: Lake) -> None:
    """March in New York: from 5:00 UTC on the 1st to 4:00 UTC on April 1st, an hour less than 31 days; prices change
    on the 8th at midnight, 5:00 UTC, two hours before the clocks do."""
    york, world = account(1), account(2)
    march = (31 * 24 - 1) * 3_600_000
    hours = [
        Hour(york, "2026-03-01T04", 7),  # February's
        Hour(york, "2026-03-01T05", 8),  # 8 of 10 free
        Hour(york, "2026-03-08T04", 7),  # 2 free, and 5 at 1
        Hour(york, "2026-03-08T05", 10),  # the 16th to 25th: up to 20 are free now, 5 at 10
        Hour(york, "2026-04-01T03", 35),  # the 26th to 60th: up to 50 at 10, and 10 at 5
        Hour(york, "2026-04-01T04", 9),  # April's
        Hour(york, "2026-03-08T04", stored=GB * march, bytes_out=GB),
        Hour(york, "2026-03-08T05", stored=GB * march, bytes_out=GB),
        Hour(world, "2026-03-01T04", 11),  # of UTC's March, 10 free
        Hour(world, "2026-04-01T03", 100),  # of UTC's April
    ]
    publish(lake, hours, "2026-03-01", "2026-04-01")
    book = book_of(PLANS, "prices.yaml")
    who = customers_of(f"default: york\naccounts: {{'{world}': {{plan: world, discount: 2.5}}}}", "accounts.yaml", book)
    rows = rated(spark, lake, "2026-03", book, who)
    assert short(rows) == {
        york: [
            ("bytes_out", 1, "orders", GB, Decimal(1)),
            ("bytes_out", 1, "orders", GB, Decimal("8.75")),
            ("requests_standard", 1, "orders", 5, Decimal(0)),  # at the new prices
            ("requests_standard", 1, "orders", 10, Decimal(0)),
            ("requests_standard", 2, "orders", 5, Decimal("0.000005")),
            ("requests_standard", 2, "orders", 30, Decimal("0.0003")),
            ("requests_standard", 3, "orders", 10, Decimal("0.00005")),
            ("storage", 1, "orders", GB * march, Decimal("0.1")),
            ("storage", 1, "orders", GB * march, Decimal(1)),
        ],
        world: [
            ("requests_standard", 1, "orders", 10, Decimal(0)),
            ("requests_standard", 2, "orders", 1, Decimal("0.000000875")),  # less 12.5 percent
        ],
    }
    midnight = datetime(2026, 3, 8, 5, tzinfo=UTC)
    for row in rows:
        if row["account"] == york:
            assert row["starts" if row["version"].month == 3 else "ends"] == midnight
    (dear,) = [row for row in rows if row["meter"] == "bytes_out" and row["version"].month == 3]
    assert (dear["list"], dear["price"], dear["discount"]) == (10, 10, 1250)


@pytest.mark.parametrize(("month", "days"), [("2027-02", 28), ("2028-02", 29)])
def test_a_leap_day_is_a_day_more(spark: SparkSession, lake: Lake, month: str, days: int) -> None:
    """1 GB kept for 28 days is a GB-month in February, but for a leap day; what it costs is 10 percent less."""
    stored = GB * 28 * 24 * 3_600_000
    publish(lake, [Hour(account(1), f"{month}-{days}T23", 11, stored=stored)], f"{month}-01", f"{month}-{days}")
    rows = rated(spark, lake, month, book_of(PLANS, "prices.yaml"), Customers("world"))
    (storage,) = [row["amount"] for row in rows if row["meter"] == "storage"]
    assert storage == (Decimal("0.09") if days == 28 else Decimal("0.086896551724138"))  # 0.09 x 28 / 29
    assert sum(row["units"] for row in rows if row["meter"] == "requests_standard") == 11


def by_units(
    book: PriceBook, customers: Customers, month: Month, hours: list[Hour]
) -> dict[tuple[Any, ...], list[Fraction]]:
    """An independent rating: everybody's usage in its order, taken into tiers bit by bit."""
    used: defaultdict[tuple[str, str], defaultdict[tuple[Any, ...], int]] = defaultdict(lambda: defaultdict(int))
    for one in hours:
        tags = msgspec.json.encode(dict(sorted(one.tags.items()))).decode()
        key = (one.hour, one.queue, one.queue_id, tags)
        used[one.account, KINDS[one.kind]][key] += one.chunks
        used[one.account, "bytes_out"][key] += one.bytes_out
        used[one.account, "storage"][key] += one.stored
    lines: defaultdict[tuple[Any, ...], list[Fraction]] = defaultdict(lambda: [Fraction(0), Fraction(0)])
    for (who, meter), amounts in used.items():
        customer = customers.of(who)
        plan = book.plans[customer.plan]
        unit = Fraction(plan.units_per(meter, month))  # type: ignore[arg-type]
        place = Fraction(0)
        for (hour, queue, queue_id, tags), units in sorted(amounts.items()):
            for starts, ends, version in plan.segments(month):
                if not starts <= hour < ends:
                    continue
                left = Fraction(units)
                for number, tier in enumerate(version.prices[meter], 1):  # type: ignore[index]
                    scale = Fraction(1) if meter.startswith("requests") else unit
                    until = None if tier.ends is None else Fraction(tier.ends) * scale
                    if until is not None and place >= until:
                        continue
                    taken = left if until is None else min(left, until - place)
                    if taken:
                        line = lines[who, version.starts, meter, number, queue, queue_id, tags]
                        line[0] += taken
                        off = version.discounts[meter] + customer.discount  # type: ignore[index]
                        line[1] += taken * Fraction(tier.price) / unit * (10_000 - off) / 10_000
                    place += taken
                    left -= taken
    return lines


def test_a_month_of_chance_is_as_unit_by_unit(spark: SparkSession, lake: Lake) -> None:
    chance = random.Random(7)
    first = datetime(2026, 3, 1, tzinfo=UTC)
    hours = [
        Hour(
            account(chance.randrange(4)),
            f"{first + timedelta(hours=chance.randrange(31 * 24 + 12)):%Y-%m-%dT%H}",
            chance.choice([0, 1, 3, 17]),
            chance.choice([0, chance.randrange(GB)]),
            chance.choice([0, chance.randrange(10**16)]),
            chance.choice(list(KINDS)),
            chance.choice(["a", "b", 'sil"ly', "größe"]),
            chance.randrange(2),
            chance.choice([{}, {"team": "a", "env": "b"}, {"env": "b", "team": "ä/\\"}]),
            chance.choice(["SendMessage", "ReceiveMessage"]),
        )
        for _ in range(3000)
    ]
    publish(lake, hours, "2026-03-01", "2026-04-01")
    book = book_of(PLANS, "prices.yaml")
    who = customers_of(
        f"default: york\naccounts: {{'{account(3)}': {{plan: world, discount: 3.33}}}}", "accounts.yaml", book
    )
    expected = by_units(book, who, Month(2026, 3), hours)
    found = rated(spark, lake, "2026-03", book, who)
    names = ("account", "version", "meter", "tier", "queue", "queue_id", "tags")
    lines = {tuple(row[name] for name in names): row for row in found}
    assert len(lines) == len(found) > 500
    assert {key: Fraction(row["units"]) for key, row in lines.items()} == {key: of[0] for key, of in expected.items()}
    half = Fraction(1, 2 * 10**15)
    assert all(-half < Fraction(row["amount"]) - expected[key][1] <= half for key, row in lines.items())
    assert sum(
        row["units"] for row in found if row["meter"].startswith("requests") and row["account"] == account(3)
    ) == sum(one.chunks for one in hours if one.account == account(3) and one.hour < datetime(2026, 4, 1, tzinfo=UTC))


def test_late_usage_from_the_tables_to_the_next_invoice(spark: SparkSession, lake: Lake) -> None:
    """Lake = rating = invoices, to the last unit, before and after usage that came late."""
    book, who = book_of(TIERS, "prices.yaml"), Customers("plain")
    november, december = Rates(Month(2026, 11), book, who), Rates(Month(2026, 12), book, who)
    on_time = [Hour(account(1), "2026-11-10T10", 3_000_000), Hour(account(2), "2026-11-11T10", bytes_out=9 * GB)]
    late = [Hour(account(1), "2026-11-10T09", 500_000, queue="late"), Hour(account(3), "2026-11-20T00", 7_000_000)]
    then = [Hour(account(1), "2026-12-05T10", 2_000_000)]
    publish(lake, on_time, "2026-11-01", "2026-11-30")
    assert to_rate(lake, november) == [november]
    rate(spark, lake, november)
    invoices = Invoices(lake)
    invoices.close("2026-11", datetime(2026, 12, 1, 6, tzinfo=UTC))
    assert to_rate(lake, november) == [], "it is closed, and nothing is new"

    dearer = book_of(TIERS.replace("0.40", "4").replace("0.2}", "2}"), "prices.yaml")
    december = december._replace(book=dearer)
    publish(lake, on_time + late, "2026-11-01", "2026-11-30", f"{AFTER}-00000001")
    publish(lake, then, "2026-12-01", "2026-12-31")
    assert to_rate(lake, december) == [november, december], "November by the prices of when it was closed"
    for by in to_rate(lake, december):
        rate(spark, lake, by)
    invoices.close("2026-12", datetime(2027, 1, 1, 6, tzinfo=UTC))
    assert to_rate(lake, december) == []

    lines = [line for head in invoices.list() for line in invoices.get(head.account, head.period).lines]
    for month, hours in (("2026-11", on_time + late), ("2026-12", then)):
        usage = [line for line in lines if line.month == month and line.category == "usage"]
        requests = sum(line.units for line in usage if line.meter == "requests_standard")
        assert requests == sum(one.chunks for one in hours)
        sent = sum(line.units for line in usage if line.meter == "bytes_out")
        assert sent == sum(one.bytes_out for one in hours)
    # By hand: 500,000 came an hour before, so the free 1,000 and the first tiers are theirs now; what is added costs
    # 0.2 a million.  Account 3: 2,000 at 0.40, 7,000 at 0.30, 6,990,000 at 0.20: 1.4009, in cents 1.40.
    first, third = invoices.get(account(1), "2026-12"), invoices.get(account(3), "2026-12")
    assert sum(line.amount for line in first.lines if line.month == "2026-11" and line.category == "usage") == Decimal(
        "0.1"
    )
    assert (third.total, third.corrects) == (Decimal("1.40"), ("2026-11",))
    assert [head.account for head in invoices.list(period="2026-12")] == [account(1), account(3)]


def test_each_hour_is_in_one_month_whatever_time_zones_plans_change_to(spark: SparkSession, lake: Lake) -> None:
    """March is closed with who is where; in April one has moved east, one west, and one has never been named."""
    book = book_of(PLANS, "prices.yaml")
    east, west, stays, new = map(account, range(1, 5))
    march = customers_of(f"default: york\naccounts: {{'{west}': {{plan: world}}}}", "accounts.yaml", book)
    april = customers_of(
        f"default: york\naccounts: {{'{east}': {{plan: world}}, '{west}': {{plan: york}}, '{new}': {{plan: world}}}}",
        "accounts.yaml",
        book,
    )
    # Of the days around the end of March, in both time zones, and of those around April's.
    at = [f"2026-03-31T{hour:02}" for hour in (22, 23)] + [f"2026-04-01T{hour:02}" for hour in range(6)]
    at += ["2026-04-30T23", "2026-05-01T00", "2026-05-01T03", "2026-05-01T04"]
    hours = [Hour(whose, hour, 2**number) for number, hour in enumerate(at) for whose in (east, west, stays)]
    hours += [Hour(new, "2026-04-20T10", 2)]
    publish(lake, hours, "2026-03-01", "2026-05-02")
    units: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for month, who in ((Month(2026, 3), march), (Month(2026, 4), april)):
        (by,) = to_rate(lake, Rates(month, book, who))
        rate(spark, lake, by)
        Invoices(lake).close(str(month), datetime(2026, 6, 1, tzinfo=UTC))
        for invoice in Invoices(lake).all_of(str(month)):
            units[str(month)][invoice.account] = sum(int(line.units) for line in invoice.lines)
            assert all(invoice.starts <= line.starts for line in invoice.lines if line.category == "usage")
        _, findings = check(spark, lake, month, None)
        assert [one.verdict for one in findings if not one.between.startswith("lake and")] == 2 * ["equal"]
    # March ends at 4:00 UTC on April 1st in New York, and April at 4:00 UTC on May 1st.
    assert units["2026-03"] == {east: 0b00111111, west: 0b11, stays: 0b111111}
    assert units["2026-04"] == {east: 0b1_11000000, west: 0b111_11111100, stays: 0b111_11000000, new: 2}
    assert to_rate(lake, Rates(Month(2026, 4), book, april)) == []


def test_a_month_that_was_closed_while_it_was_rated_by_other_prices_is_rated_by_its_own(
    spark: SparkSession, lake: Lake
) -> None:
    book, who = book_of(TIERS, "prices.yaml"), Customers("plain")
    november = Rates(Month(2026, 11), book, who)
    publish(lake, [Hour(account(1), "2026-11-10T10", 3_000_000)], "2026-11-01", "2026-11-30")
    rate(spark, lake, november)
    Invoices(lake).close("2026-11", datetime(2026, 12, 1, 6, tzinfo=UTC))
    rate(spark, lake, november._replace(book=book_of(TIERS.replace("0.40", "4"), "prices.yaml")))
    assert to_rate(lake, november) == [november]


def test_from_records_to_invoices_nothing_is_lost_or_counted_twice(spark: SparkSession, lake: Lake) -> None:
    chance, day = random.Random(3), date(2024, 2, 29)
    records = calls(chance, day, 200)
    bring(lake, records)
    bring(lake, records[50:])  # some again
    batch(spark, lake, date(2024, 2, 1), day)
    by = Rates(Month(2024, 2), book_of(PLANS, "prices.yaml"), Customers("world"))
    rate(spark, lake, by)
    invoices = Invoices(lake)
    invoices.close("2024-02", datetime(2024, 3, 1, tzinfo=UTC))
    found: Counter[tuple[str, str]] = Counter()
    for invoice in invoices.all_of("2024-02"):
        for line in invoice.lines:
            if line.category == "usage":
                found[invoice.account, line.meter] += int(line.units)
    expected: Counter[tuple[str, str]] = Counter()
    for record in records:
        expected[record.key.account, KINDS[record.key.kind]] += record.counts[CHUNKS]
        expected[record.key.account, "bytes_out"] += record.counts[BYTES_OUT]
    assert found == expected


def test_how_far_the_usage_goes_that_is_rated(lake: Lake) -> None:
    by = Rates(Month(2026, 11), book_of(TIERS, "prices.yaml"), Customers("plain"))
    publish(lake, [], "2026-11-01", "2026-11-29")
    assert published(lake, by)[1] == datetime(2026, 11, 30, tzinfo=UTC)
    publish(lake, [], "2026-11-30", "2026-11-30", "20261130T221500-00000000")
    assert published(lake, by)[1] == datetime(2026, 11, 30, 22, 15, tzinfo=UTC)
    publish(lake, [], "2026-11-30", "2026-11-30", "20261201T000000-00000000")
    runs, covers = published(lake, by)
    assert covers == datetime(2026, 12, 1, tzinfo=UTC)
    assert runs["usage_hourly"]["2026-11-30"] == "20261201T000000-00000000"


def test_a_month_without_usage(spark: SparkSession, lake: Lake) -> None:
    by = Rates(Month(2026, 11), book_of(TIERS, "prices.yaml"), Customers("plain"))
    publish(lake, [], "2026-11-01", "2026-11-29")
    found = rate(spark, lake, by)
    assert (found.covers, found.lines, found.amount) == (datetime(2026, 11, 30, tzinfo=UTC), 0, Decimal(0))


def test_a_month_without_prices_is_not_rated(spark: SparkSession, lake: Lake) -> None:
    by = Rates(Month(2025, 12), book_of(TIERS, "prices.yaml"), Customers("plain"))
    with pytest.raises(NoPrice, match="no prices for all of 2025-12"):
        rate(spark, lake, by)
    assert Rated(lake).of(Month(2025, 12)) is None


def test_the_command(
    spark: SparkSession, lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_analytics.rating.session", lambda *_, **__: spark)
    plan, accounts = tmp_path / "prices.yaml", tmp_path / "accounts.yaml"
    plan.write_text(PLANS)
    accounts.write_text("default: world")
    publish(lake, [Hour(account(1), "2026-11-10T10", 3_000_000)], "2026-11-01", "2026-11-30")
    command = ["rate", "--lake", lake.url, "--plan", str(plan), "--period", "2026-11"]
    for given, said in (
        ([*command, "--accounts", f"{tmp_path}/none.yaml"], "none.yaml cannot be read: No such file or directory"),
        (command, "the price book has the plans world, york: say in a file who has which"),
        ([*command[:-1], "november"], "argument --period: 'november' is no month: write it like 2"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(given)
        assert ended.value.code == 2
        assert said in capsys.readouterr().err
    assert main([*command, "--accounts", str(accounts)]) == 0
    assert "2026-11 rated: 3 lines in " in capsys.readouterr().out
    Invoices(lake).close("2026-11", datetime(2026, 12, 1, 6, tzinfo=UTC))
    assert main([*command, "--accounts", str(accounts)]) == 0
    assert capsys.readouterr().out == "2026-11 is closed, and no usage has come for it since it was rated\n"


def test_a_refresh_with_prices_of_another_time_zone_rates_all_hours_of_the_month(
    spark: SparkSession, lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_analytics.rating.session", lambda *_, **__: spark)
    monkeypatch.setattr("spark_analytics.batch.session", lambda *_, **__: spark)
    plan = tmp_path / "prices.yaml"
    plan.write_text(TIERS.replace("    minor_places: 2\n", "    minor_places: 2\n    time_zone: Europe/Berlin\n"))
    chance = random.Random(4)
    first, second = date(2026, 9, 30), date(2026, 10, 10)
    records = [*calls(chance, first, 300), *calls(chance, second, 100)]
    bring(lake, records)
    hours = datetime(2026, 9, 30, 22, tzinfo=UTC).timestamp()
    expected = sum(one.counts[CHUNKS] for one in records if one.minute_s >= hours)
    without = sum(one.counts[CHUNKS] for one in records if one.minute_s >= hours + 2 * 3600)
    rated = ["rate", "--lake", lake.url, "--period", "2026-10", "--plan", str(plan)]
    assert main(["batch", "--lake", lake.url, "--month", "2026-10"]) == 0
    assert main(rated) == 0
    said = capsys.readouterr().err
    assert "rated without 2026-09-30" in said
    assert "run `python -m spark_analytics batch --day 2026-09-30`" in said
    assert _requests(lake) == without
    assert main(["batch", "--lake", lake.url, "--month", "2026-10", "--plan", str(plan)]) == 0
    assert main(rated) == 0
    assert "without" not in capsys.readouterr().err
    assert _requests(lake) == expected > without
    Path(lake.root, "tables", USAGE_HOURLY, "days", "2026-09-30.json").unlink()
    assert main(rated) == 1
    assert "the usage of 2026-09-30 is not summed up, and the rating of" in capsys.readouterr().err
    assert _requests(lake) == expected, "the rating that had more stays"


def _requests(lake: Lake) -> int:
    """All requests in the rating of October."""
    found = Rated(lake).of(Month(2026, 10))
    assert found is not None
    return sum(int(row["units"]) for row in found.lines.to_pylist() if row["meter"].startswith("requests"))


def test_no_row_is_handled_by_python(spark: SparkSession) -> None:
    """Plan of the query, as Spark prints it."""
    book, who = book_of(TIERS, "prices.yaml"), Customers("plain")
    calls = spark.createDataFrame([], rating.SCHEMAS[USAGE_HOURLY])
    storage = spark.createDataFrame([], rating.SCHEMAS[STORAGE_HOURLY])
    by = Rates(Month(2026, 11), book, who)
    rates, named = rates_of(spark, by), named_of(spark, by)
    units = units_of(calls, storage)
    hours = hours_in_order(units, rates, named, by)
    plan = lines_of(placed(units, hours, True), rates, named, by)._jdf.queryExecution().toString()
    assert "Python" not in plan
