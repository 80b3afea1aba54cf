"""Columns of FOCUS 1.2 in the export, and the specification's requirements for each, as a table.

PyPI's validator (focus-validator 1.0.0) is not used: it supports FOCUS only up to 1.0, and needs numpy 1, which
conflicts with our version.

Source: FOCUS specification 1.2, https://focus.finops.org/focus-specification/v1-2/
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Context, Decimal
from typing import Any, Final, NamedTuple

import msgspec

Row = Mapping[str, Any]
_EXACT: Final = Context(prec=76)


class Column(NamedTuple):
    """A column with its requirements."""

    level: str
    type: type
    never_null: Callable[[Row], bool]
    """Rows in which it must have a value."""
    always_null: Callable[[Row], bool]
    """Rows in which it must be null."""
    valid: Callable[[Any], bool] = lambda value: True
    """Check of its value."""


def every(row: Row) -> bool:
    return True


def no(row: Row) -> bool:
    return False


def usage(row: Row) -> bool:
    """Return whether the row is usage that is not a correction."""
    return bool(row["ChargeCategory"] == "Usage" and row["ChargeClass"] is None)


def not_usage(row: Row) -> bool:
    return bool(row["ChargeCategory"] != "Usage")


def tax(row: Row) -> bool:
    return bool(row["ChargeCategory"] == "Tax")


def one_of(*values: str) -> Callable[[Any], bool]:
    return lambda value: value in values


def matches(pattern: str) -> Callable[[Any], bool]:
    return lambda value: re.fullmatch(pattern, value) is not None


def _key_values(text: str) -> bool:
    """Return whether the text is in key-value format: a JSON object of plain values.

    Keys begin with x_, or are the user's tags.
    """
    return all(isinstance(value, str | int | float | bool) for value in msgspec.json.decode(text, type=dict).values())


def _details(text: str) -> bool:
    return _key_values(text) and all(key.startswith("x_") for key in msgspec.json.decode(text))


def positive(value: Decimal) -> bool:
    return value > 0


UNIT: Final = r"(\d+ )?(Requests|GB|GB-Hours|GB-Months)"
COLUMNS: Final[Mapping[str, Column]] = {
    "BilledCost": Column("mandatory", Decimal, every, no),
    "BillingAccountId": Column("mandatory", str, every, no, matches(r"\d{12}")),
    "BillingAccountName": Column("mandatory", str, no, no, bool),
    "BillingCurrency": Column("mandatory", str, every, no, matches("[A-Z]{3}")),
    "BillingPeriodEnd": Column("mandatory", datetime, every, no),
    "BillingPeriodStart": Column("mandatory", datetime, every, no),
    "ChargeCategory": Column("mandatory", str, every, no, one_of("Usage", "Purchase", "Tax", "Credit", "Adjustment")),
    "ChargeClass": Column("mandatory", str, no, no, one_of("Correction")),
    "ChargeDescription": Column("mandatory", str, every, no, bool),
    "ChargeFrequency": Column("recommended", str, every, no, one_of("One-Time", "Recurring", "Usage-Based")),
    "ChargePeriodEnd": Column("mandatory", datetime, every, no),
    "ChargePeriodStart": Column("mandatory", datetime, every, no),
    "ConsumedQuantity": Column("conditional", Decimal, usage, not_usage),
    "ConsumedUnit": Column("conditional", str, usage, not_usage, matches(UNIT)),
    "ContractedCost": Column("mandatory", Decimal, every, no),
    "ContractedUnitPrice": Column("conditional", Decimal, usage, tax, lambda value: value >= 0),
    "EffectiveCost": Column("mandatory", Decimal, every, no),
    "InvoiceId": Column("recommended", str, no, no, bool),
    "InvoiceIssuerName": Column("mandatory", str, every, no, bool),
    "ListCost": Column("mandatory", Decimal, every, no),
    "ListUnitPrice": Column("conditional", Decimal, usage, tax, lambda value: value >= 0),
    "PricingCategory": Column("conditional", str, usage, tax, one_of("Standard", "Dynamic", "Committed", "Other")),
    "PricingQuantity": Column("mandatory", Decimal, usage, tax),
    "PricingUnit": Column("mandatory", str, usage, tax, matches(UNIT)),
    "ProviderName": Column("mandatory", str, every, no, bool),
    "PublisherName": Column("mandatory", str, every, no, bool),
    "ResourceId": Column("conditional", str, no, no, bool),
    "ResourceName": Column("conditional", str, no, lambda row: row["ResourceId"] is None, bool),
    "ResourceType": Column("conditional", str, lambda row: row["ResourceId"] is not None, no, bool),
    "ServiceCategory": Column("mandatory", str, every, no, one_of("Integration")),
    "ServiceName": Column("mandatory", str, every, no, bool),
    "ServiceSubcategory": Column("recommended", str, every, no, one_of("Messaging")),
    "SkuId": Column("conditional", str, usage, tax, bool),
    "SkuMeter": Column("conditional", str, usage, lambda row: row["SkuId"] is None, bool),
    "SkuPriceDetails": Column("conditional", str, no, lambda row: row["SkuPriceId"] is None, _details),
    "SkuPriceId": Column("conditional", str, usage, tax, bool),
    "Tags": Column("conditional", str, no, no, _key_values),
}
MANDATORY: Final = {
    *("BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd"),
    *("BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd"),
    *("ChargePeriodStart", "ContractedCost", "EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingQuantity"),
    *("PricingUnit", "ProviderName", "PublisherName", "ServiceCategory", "ServiceName"),
}
"""Columns that every dataset must have."""


def breaches(rows: list[dict[str, Any]]) -> list[str]:
    """Describe all violations of FOCUS 1.2; empty if there are none."""
    found = []
    for number, row in enumerate(rows):
        for name, column in COLUMNS.items():
            value = row[name]
            if value is None and column.never_null(row):
                found.append(f"row {number}: {name} is null")
            elif value is not None and column.always_null(row):
                found.append(f"row {number}: {name} is {value}, and has to be null")
            elif value is not None and not (isinstance(value, column.type) and column.valid(value)):
                found.append(f"row {number}: {name} is {value!r}")
        found += [f"row {number}: {name} is a column of nobody's" for name in row if not _known(name)]
        found += [f"row {number}: {text}" for text in _sums(row)]
    for sku_price in {row["SkuPriceId"] for row in rows} - {None}:
        of_price = [row for row in rows if row["SkuPriceId"] == sku_price]
        for name in ("SkuId", "SkuMeter", "SkuPriceDetails", "PricingUnit"):
            if len({row[name] for row in of_price}) != 1:
                found.append(f"{sku_price} has more than one {name}")
    return found


def _known(name: str) -> bool:
    return name in COLUMNS or name.startswith("x_")


def _sums(row: Row) -> list[str]:
    """Check products of quantities and unit prices, and periods."""
    found = []
    if row["ChargeClass"] is None and row["PricingQuantity"] is not None:
        for price, cost in (("ListUnitPrice", "ListCost"), ("ContractedUnitPrice", "ContractedCost")):
            if _EXACT.multiply(row[price], row["PricingQuantity"]) != row[cost]:
                found.append(f"{price} times PricingQuantity is not {cost}")
        if row["ConsumedQuantity"] <= 0:
            found.append("ConsumedQuantity is not positive")
    if row["ChargePeriodStart"] >= row["ChargePeriodEnd"] or row["BillingPeriodStart"] >= row["BillingPeriodEnd"]:
        found.append("a period ends before it begins")
    if row["ChargeClass"] is None and not (
        row["BillingPeriodStart"] <= row["ChargePeriodStart"] and row["ChargePeriodEnd"] <= row["BillingPeriodEnd"]
    ):
        found.append("it is charged outside its billing period and corrects nothing")
    return found
