"""Requirements of FOCUS 1.2 for the columns of the export, which are a table: ``focus.yaml``.

PyPI's validator (focus-validator 1.0.0) is not used: it supports FOCUS only up to 1.0, and needs numpy 1, which
conflicts with our version.
"""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Context, Decimal
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from tests.tables import beside

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
    valid: Callable[[Any], bool]
    """Check of its value."""


def every(row: Any) -> bool:
    return True


def _is_usage(row: Row) -> bool:
    return bool(row["ChargeCategory"] == "Usage")


CONDITIONS: Final[Mapping[str, Callable[[Row], bool]]] = {
    "always": every,
    "never": lambda row: False,
    "usage": lambda row: _is_usage(row) and row["ChargeClass"] is None,  # no correction
    "not usage": lambda row: not _is_usage(row),
    "tax": lambda row: bool(row["ChargeCategory"] == "Tax"),
}
TYPES: Final = {"number": Decimal, "text": str, "time": datetime}


def _matches(pattern: str, value: str) -> bool:
    return re.fullmatch(pattern, value) is not None


def _key_values(text: str) -> bool:
    """Return whether the text is in key-value format: a JSON object of plain values.

    Keys begin with x_, or are the user's tags.
    """
    return all(isinstance(value, str | int | float | bool) for value in msgspec.json.decode(text, type=dict).values())


def _details(text: str) -> bool:
    return _key_values(text) and all(key.startswith("x_") for key in msgspec.json.decode(text))


CHECKS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "filled": bool,
    "not negative": lambda value: bool(value >= 0),
    "key-value": _key_values,
    "details": _details,
}


def condition(name: str) -> Callable[[Row], bool]:
    """Return the rows of a name: of a kind of charge, or with or without a value in a column."""
    word, _, column = name.partition(" ")
    if word in ("with", "without"):
        return lambda row: (row[column] is None) is (word == "without")
    return CONDITIONS[name]


def column_of(given: dict[str, Any]) -> Column:
    valid = CHECKS.get(given.get("valid", ""), every)
    if "one_of" in given:
        valid = given["one_of"].__contains__
    elif "pattern" in given:
        valid = partial(_matches, given["pattern"])
    required, empty = (condition(given.get(name, "never")) for name in ("required", "empty"))
    return Column(given["level"], TYPES[given["type"]], required, empty, valid)


TABLES: Final = beside(__file__, "focus.yaml")
COLUMNS: Final[Mapping[str, Column]] = {name: column_of(given) for name, given in TABLES["columns"].items()}


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
