"""Price books of tests: the files of the folder ``books``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from billing.pricing.plans import Customers, PriceBook, book_of, customers_of

FOLDER = Path(__file__).with_name("books")


def text_of(name: str, changes: Mapping[str, str] | None = None) -> str:
    """Return a book's text, with texts in it changed."""
    text = (FOLDER / f"{name}.yaml").read_text()
    for old, new in (changes or {}).items():
        assert old in text
        text = text.replace(old, new)
    return text


def book(name: str, changes: Mapping[str, str] | None = None) -> PriceBook:
    return book_of(text_of(name, changes), "prices.yaml")


def customers(
    of: PriceBook, default: str = "plain", accounts: Mapping[str, Mapping[str, Any]] | None = None
) -> Customers:
    return customers_of(yaml.safe_dump({"default": default, "accounts": accounts or {}}), "accounts.yaml", of)


BOOK = text_of("plain")
