"""The price book, and who has which of its plans, as commands are given them: read before Spark works for minutes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.settings import SettingsError

if TYPE_CHECKING:
    from billing.months import Month
    from billing.plans import Book, Customers


def read_prices(plan: Path, accounts: Path | None, month: Month) -> tuple[Book, Customers]:
    """The book and who has which plan of it, if all that they need is there for the month.

    Raises :class:`SettingsError`, and :class:`ImportError` where billing's packages are not installed.
    """
    from billing.plans import NoPrice, load_book, load_customers
    from billing.strict_yaml import YamlError

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
