"""The price book and the plans of accounts, as given to commands: checked before Spark runs for minutes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.settings import SettingsError

if TYPE_CHECKING:
    from billing.lake.months import Month
    from billing.pricing.plans import Customers, PriceBook


def read_prices(plan: Path, accounts: Path | None, month: Month) -> tuple[PriceBook, Customers]:
    """Read the price book and the plans of accounts, and check that all prices for the month exist.

    Raises :class:`SettingsError`, and :class:`ImportError` if billing's packages are not installed.
    """
    from billing.pricing.plans import NoPrice, load_book, load_customers
    from billing.pricing.strict_yaml import YamlError

    try:
        book = load_book(plan)
        customers = load_customers(accounts, book)
        for name in customers.plans():
            book.plan(name).segments(month)
    except OSError as error:
        raise SettingsError(f"{error.filename} cannot be read: {error.strerror}") from None
    except (YamlError, NoPrice) as error:
        raise SettingsError(str(error)) from None
    return book, customers
