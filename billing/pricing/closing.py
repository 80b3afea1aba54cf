"""Record of a month's closing."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

import msgspec

from billing.pricing.plans import Customers, PriceBook


class Closed(msgspec.Struct, frozen=True):
    """Closing of a month."""

    period: str
    closed_at: datetime
    run: str
    """Folder of the run."""
    rated: dict[str, str]
    """Run of the rating that was charged, for this month and for each corrected one."""
    next_number: int
    """Number of the issuer's next invoice."""
    invoices: int
    totals: dict[str, Decimal]
    """Totals by currency."""
    book: PriceBook
    customers: Customers
