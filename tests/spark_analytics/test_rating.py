"""The rating, against sums done by hand, and against one that takes a month unit by unit."""

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
import pytest
from pyspark.sql import SparkSession

from billing.lake.lake import Lake
from billing.lake.months import Month
from billing.lake.tables import STORAGE_HOURLY, USAGE_HOURLY, days_of
from billing.metering.usage import BYTES_IN, BYTES_OUT, CHUNKS
from billing.pricing.invoices import Invoices
from billing.pricing.plans import Customers, NoPrice, PriceBook, is_counted
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
from tests.billing.books import book, customers, text_of
from tests.billing.published import publish as publish_day
from tests.spark_analytics.lakes import bring, calls
from tests.tables import beside

MILLION = 10**6
GB = 10**9
KINDS = {
    "standard": "requests_standard",
    "fair": "requests_fair",
    "fifo": "requests_fifo",
    "stream": "requests_stream",
    "topic": "requests_topic",
    "delivery_sqs": "deliveries_sqs",
    "delivery_http": "deliveries_http",
    "": "requests_standard",
}
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
    bytes_in: int = 0

    @property
    def hour(self) -> datetime:
        return datetime.fromisoformat(self.at + ":00:00+00:00")


def publish(lake: Lake, hours: Iterable[Hour], first: str, last: str, run: str = f"{AFTER}-00000000") -> None:
    """Let this be what the batch has made of these days."""
    hours = list(hours)
    for day in days_of(datetime.fromisoformat(first).date(), datetime.fromisoformat(last).date()):
        found: dict[str, list[dict[str, Any]]] = {USAGE_HOURLY: [], STORAGE_HOURLY: []}
        for one in hours:
            row = {name: getattr(one, name) for name in ("account", "queue", "queue_id", "kind", "tags", "hour")}
            if one.hour.date() != day:
                continue
            if one.chunks or one.bytes_out or one.bytes_in:
                calls = {name: getattr(one, name) for name in ("action", "chunks", "bytes_in", "bytes_out")}
                found[USAGE_HOURLY].append({**row, **calls})
            if one.stored:
                found[STORAGE_HOURLY].append({**row, "byte_milliseconds": one.stored})
        for name, rows in found.items():
            publish_day(lake, name, day, rows, run=run)


def rated(spark: SparkSession, lake: Lake, month: str, book: PriceBook, customers: Customers) -> list[dict[str, Any]]:
    """The lines, as dictionaries."""
    rate(spark, lake, Rates(Month.parse(month), book, customers))
    found = Rated(lake).of(Month.parse(month))
    assert found is not None
    rows: list[dict[str, Any]] = found.lines.to_pylist()
    return rows


def account(number: int) -> str:
    return f"{number:012}"


CASES = beside(__file__, "rating.yaml")


def used_in(text: str, month: str, **given: Any) -> Hour:
    at, chunks, *more = text.split()
    for name, value in (word.split("=") for word in more):
        given[name] = value if name in ("queue", "kind", "action") else int(value)
    return Hour(at=at if "-" in at else f"{month}-{at}", chunks=int(chunks), **given)


def line_of(text: str) -> dict[str, Any]:
    meter, tier, queue, units, cost, *more = text.split()
    meter = KINDS.get(meter, meter)
    line = {"meter": meter, "tier": int(tier), "queue": queue.replace("-", ""), "units": int(units)}
    line["amount"] = Decimal(cost)
    for name, value in (word.split("=") for word in more):
        line["version" if name == "from" else name] = date.fromisoformat(value) if name == "from" else Decimal(value)
    return line


@pytest.mark.parametrize(
    "group",
    [pytest.param(group, marks=[pytest.mark.long] * group.get("long", False), id=group["month"]) for group in CASES],
)
def test_usage_is_rated_as_by_hand(spark: SparkSession, lake: Lake, group: dict[str, Any]) -> None:
    """Each account is a case of ``rating.yaml``."""
    month, cases, by = Month.parse(group["month"]), group["cases"], book(group["book"])
    own = {account(at): case["customer"] for at, case in enumerate(cases) if "customer" in case}
    who = customers(by, group["default"], own)
    hours = [
        used_in(text, group["month"], account=account(at)) for at, case in enumerate(cases) for text in case["used"]
    ]
    publish(lake, hours, f"{month.first - timedelta(1)}", f"{month.next.first}")
    rows = rated(spark, lake, group["month"], by, who)
    assert {row["account"] for row in rows} == {account(at) for at in range(len(cases))}
    for at, case in enumerate(cases):
        expected = sorted(map(line_of, case["lines"]), key=in_order)
        found = sorted((row for row in rows if row["account"] == account(at)), key=in_order)
        for row in found:
            assert (row["starts"], row["ends"]) in {
                segment[:2]
                for segment in by.plan(who.of(row["account"]).plan).segments(month)
                if segment.version.starts == row["version"]
            }
        assert len(found) == len(expected), (
            case["says"],
            [(row["meter"], row["tier"], row["units"], row["price"]) for row in found],
        )
        of_lines = [{name: row[name] for name in line} for line, row in zip(expected, found, strict=True)]
        assert of_lines == expected, case["says"]


def in_order(line: dict[str, Any]) -> tuple[Any, ...]:
    return line["meter"], line["tier"], line["queue"], int(line["units"]), line["amount"]


def by_units(
    book: PriceBook, customers: Customers, month: Month, hours: list[Hour]
) -> dict[tuple[Any, ...], list[Fraction]]:
    """An independent rating: each account's usage in order, assigned to tiers step by step."""
    used: defaultdict[tuple[str, str], defaultdict[tuple[Any, ...], int]] = defaultdict(lambda: defaultdict(int))
    for one in hours:
        tags = msgspec.json.encode(dict(sorted(one.tags.items()))).decode()
        key = (one.hour, one.queue, one.queue_id, tags)
        used[one.account, KINDS[one.kind]][key] += one.chunks
        is_stream = one.kind == "stream"
        used[one.account, "stream_bytes_out" if is_stream else "bytes_out"][key] += one.bytes_out
        used[one.account, "stream_storage" if is_stream else "storage"][key] += one.stored
        if is_stream:
            used[one.account, "stream_bytes_in"][key] += one.bytes_in
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
                for number, tier in enumerate(version.tiers(meter), 1):  # type: ignore[arg-type]
                    scale = Fraction(1) if is_counted(meter) else unit
                    until = None if tier.ends is None else Fraction(tier.ends) * scale
                    if until is not None and place >= until:
                        continue
                    taken = left if until is None else min(left, until - place)
                    if taken:
                        line = lines[who, version.starts, meter, number, queue, queue_id, tags]
                        line[0] += taken
                        off = version.discount(meter) + customer.discount  # type: ignore[arg-type]
                        line[1] += taken * Fraction(tier.price) / unit * (10_000 - off) / 10_000
                    place += taken
                    left -= taken
    return lines


@pytest.mark.long
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
            chance.choice([0, chance.randrange(GB)]),
        )
        for _ in range(3000)
    ]
    publish(lake, hours, "2026-03-01", "2026-04-01")
    by = book("changes")
    who = customers(by, "york", {account(3): {"plan": "world", "discount": 3.33}})
    expected = by_units(by, who, Month(2026, 3), hours)
    found = rated(spark, lake, "2026-03", by, who)
    names = ("account", "version", "meter", "tier", "queue", "queue_id", "tags")
    lines = {tuple(row[name] for name in names): row for row in found}
    assert len(lines) == len(found) > 500
    assert {key: Fraction(row["units"]) for key, row in lines.items()} == {key: of[0] for key, of in expected.items()}
    half = Fraction(1, 2 * 10**15)
    assert all(-half < Fraction(row["amount"]) - expected[key][1] <= half for key, row in lines.items())
    assert sum(
        row["units"] for row in found if row["meter"].startswith("requests") and row["account"] == account(3)
    ) == sum(
        one.chunks
        for one in hours
        if one.account == account(3)
        and one.hour < datetime(2026, 4, 1, tzinfo=UTC)
        and KINDS[one.kind].startswith("requests")
    )


def test_late_usage_from_the_tables_to_the_next_invoice(spark: SparkSession, lake: Lake) -> None:
    """Lake = rating = invoices, to the last unit, before and after late usage."""
    prices, who = book("tiers"), Customers("plain")
    november, december = Rates(Month(2026, 11), prices, who), Rates(Month(2026, 12), prices, who)
    on_time = [Hour(account(1), "2026-11-10T10", 3_000_000), Hour(account(2), "2026-11-11T10", bytes_out=9 * GB)]
    late = [Hour(account(1), "2026-11-10T09", 500_000, queue="late"), Hour(account(3), "2026-11-20T00", 7_000_000)]
    then = [Hour(account(1), "2026-12-05T10", 2_000_000)]
    publish(lake, on_time, "2026-11-01", "2026-11-30")
    assert to_rate(lake, november) == [november]
    rate(spark, lake, november)
    invoices = Invoices(lake)
    invoices.close("2026-11", datetime(2026, 12, 1, 6, tzinfo=UTC))
    assert to_rate(lake, november) == [], "it is closed, and nothing is new"

    dearer = book("tiers", {"0.40": "4", "0.2}": "2}"})
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


@pytest.mark.long
def test_each_hour_is_in_one_month_whatever_time_zones_plans_change_to(spark: SparkSession, lake: Lake) -> None:
    """March is closed with who is where; in April one has moved east, one west, and one has never been named."""
    prices = book("changes")
    east, west, stays, new = map(account, range(1, 5))
    march = customers(prices, "york", {west: {"plan": "world"}})
    april = customers(
        prices, "york", {one: {"plan": to} for one, to in ((east, "world"), (west, "york"), (new, "world"))}
    )
    # Of the days around the end of March, in both time zones, and of those around April's.
    at = [f"2026-03-31T{hour:02}" for hour in (22, 23)] + [f"2026-04-01T{hour:02}" for hour in range(6)]
    at += ["2026-04-30T23", "2026-05-01T00", "2026-05-01T03", "2026-05-01T04"]
    hours = [Hour(whose, hour, 2**number) for number, hour in enumerate(at) for whose in (east, west, stays)]
    hours += [Hour(new, "2026-04-20T10", 2)]
    publish(lake, hours, "2026-03-01", "2026-05-02")
    units: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for month, who in ((Month(2026, 3), march), (Month(2026, 4), april)):
        (by,) = to_rate(lake, Rates(month, prices, who))
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
    assert to_rate(lake, Rates(Month(2026, 4), prices, april)) == []


def test_a_month_that_was_closed_while_it_was_rated_by_other_prices_is_rated_by_its_own(
    spark: SparkSession, lake: Lake
) -> None:
    prices, who = book("tiers"), Customers("plain")
    november = Rates(Month(2026, 11), prices, who)
    publish(lake, [Hour(account(1), "2026-11-10T10", 3_000_000)], "2026-11-01", "2026-11-30")
    rate(spark, lake, november)
    Invoices(lake).close("2026-11", datetime(2026, 12, 1, 6, tzinfo=UTC))
    rate(spark, lake, november._replace(book=book("tiers", {"0.40": "4"})))
    assert to_rate(lake, november) == [november]


def test_from_records_to_invoices_nothing_is_lost_or_counted_twice(spark: SparkSession, lake: Lake) -> None:
    chance, day = random.Random(3), date(2024, 2, 29)
    records = calls(chance, day, 200)
    bring(lake, records)
    bring(lake, records[50:])  # some again
    batch(spark, lake, date(2024, 2, 1), day)
    by = Rates(Month(2024, 2), book("changes"), Customers("world"))
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
        if record.key.kind == "stream":
            expected[record.key.account, "stream_bytes_in"] += record.counts[BYTES_IN]
            expected[record.key.account, "stream_bytes_out"] += record.counts[BYTES_OUT]
        else:
            expected[record.key.account, "bytes_out"] += record.counts[BYTES_OUT]
    assert found == expected


def test_a_rating_covers_the_days_that_are_published(lake: Lake) -> None:
    by = Rates(Month(2026, 11), book("tiers"), Customers("plain"))
    publish(lake, [], "2026-11-01", "2026-11-29")
    assert published(lake, by)[1] == datetime(2026, 11, 30, tzinfo=UTC)
    publish(lake, [], "2026-11-30", "2026-11-30", "20261130T221500-00000000")
    assert published(lake, by)[1] == datetime(2026, 11, 30, 22, 15, tzinfo=UTC)
    publish(lake, [], "2026-11-30", "2026-11-30", "20261201T000000-00000000")
    runs, covers = published(lake, by)
    assert covers == datetime(2026, 12, 1, tzinfo=UTC)
    assert runs["usage_hourly"]["2026-11-30"] == "20261201T000000-00000000"


def test_a_month_without_usage(spark: SparkSession, lake: Lake) -> None:
    by = Rates(Month(2026, 11), book("tiers"), Customers("plain"))
    publish(lake, [], "2026-11-01", "2026-11-29")
    found = rate(spark, lake, by)
    assert (found.covers, found.lines, found.amount) == (datetime(2026, 11, 30, tzinfo=UTC), 0, Decimal(0))


def test_a_month_without_prices_is_not_rated(spark: SparkSession, lake: Lake) -> None:
    by = Rates(Month(2025, 12), book("tiers"), Customers("plain"))
    with pytest.raises(NoPrice, match="no prices for all of 2025-12"):
        rate(spark, lake, by)
    assert Rated(lake).of(Month(2025, 12)) is None


def test_the_command(
    spark: SparkSession, lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_analytics.rating.session", lambda *_, **__: spark)
    plan, accounts = tmp_path / "prices.yaml", tmp_path / "accounts.yaml"
    plan.write_text(text_of("changes"))
    accounts.write_text("default: world")
    publish(lake, [Hour(account(1), "2026-11-10T10", 3_000_000)], "2026-11-01", "2026-11-30")
    command = ["rate", "--lake", lake.url, "--plan", str(plan), "--period", "2026-11"]
    for given, message in (
        ([*command, "--accounts", f"{tmp_path}/none.yaml"], "none.yaml cannot be read: No such file or directory"),
        (command, "the price book has the plans world, york: assign them in a file"),
        ([*command[:-1], "november"], "argument --period: 'november' is not a month: write it like 2"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(given)
        assert ended.value.code == 2
        assert message in capsys.readouterr().err
    assert main([*command, "--accounts", str(accounts)]) == 0
    assert "2026-11 rated: 3 lines in " in capsys.readouterr().out
    Invoices(lake).close("2026-11", datetime(2026, 12, 1, 6, tzinfo=UTC))
    assert main([*command, "--accounts", str(accounts)]) == 0
    assert capsys.readouterr().out == "2026-11 is closed, and no usage was recorded for it since it was rated\n"


@pytest.mark.long
def test_a_refresh_with_prices_of_another_time_zone_rates_all_hours_of_the_month(
    spark: SparkSession, lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_analytics.rating.session", lambda *_, **__: spark)
    monkeypatch.setattr("spark_analytics.batch.session", lambda *_, **__: spark)
    plan = tmp_path / "prices.yaml"
    plan.write_text(text_of("tiers", {"minor_places: 2": "minor_places: 2\n    time_zone: Europe/Berlin"}))
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
    message = capsys.readouterr().err
    assert "rated without 2026-09-30" in message
    assert "run `python -m spark_analytics batch --day 2026-09-30`" in message
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
    prices, who = book("tiers"), Customers("plain")
    calls = spark.createDataFrame([], rating.SCHEMAS[USAGE_HOURLY])
    storage = spark.createDataFrame([], rating.SCHEMAS[STORAGE_HOURLY])
    by = Rates(Month(2026, 11), prices, who)
    rates, named = rates_of(spark, by), named_of(spark, by)
    units = units_of(calls, storage)
    hours = hours_in_order(units, rates, named, by)
    plan = lines_of(placed(units, hours, True), rates, named, by)._jdf.queryExecution().toString()
    assert "Python" not in plan
