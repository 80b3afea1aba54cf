"""The FOCUS export against the specification, column by column, for invoices of every kind."""

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Context, Decimal
from typing import Any

import pytest

from billing.lake.lake import Lake
from billing.pricing.invoices import Invoice, Invoices
from billing.pricing.plans import STREAM_METERS, TOPIC_METERS
from billing.reports import focus
from tests.billing import books
from tests.billing.focus_columns import COLUMNS, TABLES, breaches
from tests.billing.rated_lines import Used, rate

SHOP, YEN, QUIET = "000000000042", "000000000043", "000000000044"


@pytest.fixture(scope="module")
def invoices(tmp_path_factory: pytest.TempPathFactory) -> list[Invoice]:
    """Two months of three accounts in two currencies, with corrections, a credit, minimums and taxes."""
    lake = Lake(str(tmp_path_factory.mktemp("lake")))
    book = books.book("focus")
    shop = {"plan": "plain", "name": 'Shop, Ltd "x"', "discount": 2.5}
    who = books.customers(book, accounts={SHOP: shop, YEN: {"plan": "yen"}, QUIET: {"plan": "plain"}})
    used = [
        Used(SHOP, 1_000_000),
        Used(SHOP, 1_000_000, tier=2, queue="mails", tags={"team": "größe"}),
        Used(SHOP, 777_777_777_777, "storage"),
        Used(SHOP, 10**18 + 12_345, "storage", tier=2),
        Used(SHOP, 7, "storage", tier=2, queue="tiny"),
        Used(SHOP, 1_234_567_891, "bytes_out", queue=""),
        Used(SHOP, 31, "requests_fair"),
        *(Used(SHOP, 3_141_592_653, meter, queue="topic", tags={"team": "a"}) for meter in STREAM_METERS),
        *(Used(SHOP, 3_141_592, meter, queue="news", tags={"team": "a"}) for meter in TOPIC_METERS),
        *(Used(SHOP, 2_000_000_000, meter, queue="news", tags={"team": "a"}) for meter in ("storage", "bytes_out")),
        Used(YEN, 999_999),
        Used(YEN, 2_718_281, tier=3),
    ]
    rate(lake, "2026-11", book, who, *used)
    Invoices(lake).close("2026-11", datetime(2026, 12, 2, tzinfo=UTC))
    late = [Used(SHOP, 10_000_001, tier=3, queue="late"), *used[:-1], Used(YEN, 1_718_281, tier=3)]
    rate(lake, "2026-11", book, who, *late)
    rate(lake, "2026-12", book, who, Used(SHOP, 10, queue="<b>"))
    Invoices(lake).close("2026-12", datetime(2027, 1, 2, tzinfo=UTC))
    rate(lake, "2027-01", book, who, Used(SHOP, 3 * 10**16 + 1, "storage", tier=2))
    months = [invoice for period in ("2026-11", "2026-12") for invoice in Invoices(lake).all_of(period)]
    return [*months, Invoices(lake).draft(SHOP, "2027-01")]


@pytest.fixture
def rows(invoices: list[Invoice]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = focus.table_of(invoices).to_pylist()
    return found


def test_every_row_is_allowed_by_focus(rows: list[dict[str, Any]]) -> None:
    kinds = {(row["ChargeCategory"], row["ChargeClass"]) for row in rows}
    assert kinds == {
        *(("Usage", None), ("Adjustment", None), ("Tax", None)),
        *(("Usage", "Correction"), ("Adjustment", "Correction"), ("Tax", "Correction")),
    }
    assert {row["BillingCurrency"] for row in rows} == {"EUR", "JPY"}
    assert any(row["BilledCost"] < 0 and row["ChargeCategory"] == "Usage" for row in rows), "a credit"
    assert any(row["InvoiceId"] is None for row in rows), "a draft"
    assert breaches(rows) == []


def test_streams_are_resources_of_their_own_type(rows: list[dict[str, Any]]) -> None:
    found = {row["SkuId"]: row for row in rows if row["ResourceName"] == "topic" and row["ChargeClass"] is None}
    assert set(found) == set(STREAM_METERS)
    assert {row["ResourceType"] for row in found.values()} == {"Stream"}
    assert {row["ResourceType"] for row in rows if row["ResourceName"] == "mails"} == {"Queue"}
    assert {name: (row["ConsumedUnit"], row["PricingUnit"]) for name, row in found.items()} == {
        "requests_stream": ("Requests", "1000000 Requests"),
        "stream_storage": ("GB-Hours", "GB-Months"),
        "stream_bytes_in": ("GB", "GB"),
        "stream_bytes_out": ("GB", "GB"),
    }
    assert found["stream_bytes_in"]["PricingQuantity"] == Decimal("3.141592653")


def test_topics_are_resources_of_their_own_type(rows: list[dict[str, Any]]) -> None:
    found = {row["SkuId"]: row for row in rows if row["ResourceName"] == "news" and row["ChargeClass"] is None}
    assert {row["ResourceType"] for row in found.values()} == {"Topic"}
    assert {name: (row["ConsumedUnit"], row["PricingUnit"], row["PricingQuantity"]) for name, row in found.items()} == {
        "requests_topic": ("Requests", "1000000 Requests", Decimal("3.141592")),
        "deliveries_sqs": ("Requests", "1000000 Requests", Decimal("3.141592")),
        "deliveries_http": ("Requests", "100000 Requests", Decimal("31.41592")),
        "storage": ("GB-Hours", "GB-Months", Decimal("0.000000000771605")),
        "bytes_out": ("GB", "GB", Decimal(2)),
    }
    others = {row["ResourceType"] for row in rows if row["SkuId"] == "storage" and row["ResourceName"] != "news"}
    assert others == {"Queue"}


def test_the_columns_are_those_of_the_table() -> None:
    own = [name for name in focus.SCHEMA.names if name.startswith("x_")]
    assert [*COLUMNS, *own] == focus.SCHEMA.names, "in the order of their names, ours last"
    assert {name for name, column in COLUMNS.items() if column.level == "mandatory"} == set(TABLES["mandatory"])


@pytest.mark.parametrize(("name", "wrong", "message"), TABLES["wrong"])
def test_a_row_that_focus_does_not_allow_is_noticed(
    rows: list[dict[str, Any]], name: str, wrong: Any, message: str
) -> None:
    (one, *_) = [row for row in rows if row["SkuPriceId"] == "requests_standard/from-0"]
    one[name] = Decimal(str(wrong)) if isinstance(one.get(name), Decimal) and wrong is not None else wrong
    assert any(message in text for text in breaches(rows)), breaches(rows)


def test_a_sku_is_the_same_for_all_accounts_plans_and_months(rows: list[dict[str, Any]]) -> None:
    def of(wanted: Callable[[dict[str, Any]], bool]) -> set[tuple[str, str]]:
        found = [row for row in rows if row["SkuId"] == "requests_standard" and wanted(row)]
        return {(row["SkuId"], row["SkuPriceId"]) for row in found}

    third = ("requests_standard", "requests_standard/from-2000000")
    assert third in of(lambda row: row["x_Plan"] == "plain")
    assert third in of(lambda row: row["x_Plan"] == "yen")
    assert {row["x_PlanVersion"] for row in rows if row["SkuId"]} == {"2026-01-01"}
    plans = ("plain", "yen", "2026")
    assert not [row for row in rows if row["SkuPriceId"] and any(plan in row["SkuPriceId"] for plan in plans)]


def test_storage_costs_what_its_quantity_times_its_price_does(rows: list[dict[str, Any]]) -> None:
    storage = [row for row in rows if row["SkuId"] == "storage" and row["ListUnitPrice"]]
    assert len(storage) >= 3
    context = Context(prec=76)
    for row in storage:
        assert context.multiply(row["ListUnitPrice"], row["PricingQuantity"]) == row["ListCost"]
        assert context.multiply(row["ContractedUnitPrice"], row["PricingQuantity"]) == row["ContractedCost"]
        assert abs(row["ContractedCost"] - row["BilledCost"]) <= Decimal("0.000000000000001")


def test_other_charges_cost_to_the_last_place_what_is_billed(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["ListUnitPrice"] is None:
            assert row["ListCost"] == row["ContractedCost"] == row["BilledCost"]


def test_costs_sum_up_to_the_invoices(invoices: list[Invoice], rows: list[dict[str, Any]]) -> None:
    for invoice in invoices[:-1]:
        of_invoice = [row for row in rows if row["InvoiceId"] == invoice.number]
        assert len(of_invoice) == len(invoice.lines)
        assert sum(row["BilledCost"] for row in of_invoice) == invoice.total
        assert sum(row["BilledCost"] for row in of_invoice if row["ChargeCategory"] == "Tax") == invoice.tax
