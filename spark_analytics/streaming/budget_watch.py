"""Budgets of tenants, checked against the live tables."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal

import pyarrow as pa

from billing.lake import live
from billing.lake.lake import Lake
from billing.lake.live import StoredMeter
from billing.lake.months import Month
from billing.pricing import budgets as budgeting
from billing.pricing.budgets import Budget, Measured, Receiver
from billing.pricing.estimate import METER_OF, Prices
from billing.pricing.plans import Meter


def used(
    month_to_date: pa.Table, month: Month, prices: Prices | None, stored: Mapping[str, Mapping[StoredMeter, int]]
) -> dict[str, dict[Measured, Decimal]]:
    """Usage of each account, by meter; ``cost`` only with prices.

    ``stored``: byte-milliseconds by account and meter; they count towards ``cost``.
    """
    accounts: dict[str, dict[Measured, Decimal]] = {}
    units: dict[str, dict[Meter, int]] = {account: dict(of.items()) for account, of in stored.items()}
    for row in month_to_date.to_pylist():
        amounts = accounts.setdefault(
            row["account"], {"requests": Decimal(0), "messages": Decimal(0), "bytes_out": Decimal(0)}
        )
        amounts["requests"] += row["chunks"]
        amounts["messages"] += row["messages"]
        amounts["bytes_out"] += row["bytes_out"]
        if prices is not None:
            of = units.setdefault(row["account"], {})
            meter = METER_OF[row["kind"]]
            of[meter] = of.get(meter, 0) + row["chunks"]
            is_stream = row["kind"] == "stream"
            out: Meter = "stream_bytes_out" if is_stream else "bytes_out"
            of[out] = of.get(out, 0) + row["bytes_out"]
            if is_stream:
                of["stream_bytes_in"] = of.get("stream_bytes_in", 0) + row["bytes_in"]
    if prices is not None:
        for account, of in units.items():
            accounts.setdefault(account, {})["cost"] = prices.cost(account, month, of)
    return accounts


class BudgetWatch:
    """Checks whether budgets are passed, and sends alerts."""

    def __init__(self, lake: Lake, budgets: list[Budget], receivers: list[Receiver], prices: Prices | None) -> None:
        self._lake = lake
        self._budgets = budgets
        self._receivers = receivers
        self._prices = prices
        self._to_date = live.ToDate(lake)

    def check(self, now: datetime) -> int:
        """Now; returns how many crossings were new.  Raises :class:`LakeUnavailable` and :class:`NoPrice`."""
        if not self._budgets:
            return 0
        month = Month(now.year, now.month)
        found = []
        for one in (month.previous, month) if now.day == 1 else (month,):  # what comes after midnight
            stored = {} if self._prices is None else self._to_date.stored(one)
            amounts = used(self._to_date.read(one), one, self._prices, stored)
            found += budgeting.passed(self._budgets, one, amounts, now)
        return len(budgeting.watch(self._lake, found, month, self._receivers))
