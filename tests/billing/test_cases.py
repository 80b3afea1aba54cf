"""Cases of charges (``cases/*.yaml``)."""

import pytest

from billing.lake.lake import Lake
from tests.billing.cases import PricingCase, load


@pytest.mark.parametrize("case", load(), ids=lambda case: case.name)
def test_case(case: PricingCase, lake: Lake) -> None:
    case.run(lake)
