"""Price books of estimates, for which the cases are in ``tests/billing/cases/costs.yaml``."""

from pathlib import Path

import pytest

from billing.pricing.estimate import Prices
from billing.pricing.plans import Customers
from tests.billing import books


def test_an_account_has_its_plans_currency() -> None:
    assert Prices(books.book("estimate"), Customers("standard")).currency("000000000001") == "USD"


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        Prices.load(tmp_path / "prices.yaml", None)
