"""The marker ``long``: cases that ``make test`` leaves to ``make test-all``."""

from collections.abc import Iterable
from typing import Any

import pytest


def all_but(kept: Iterable[object], values: Iterable[Any]) -> list[Any]:
    """Return parameters of a test, of which all are long except ``kept``."""
    short, values = list(kept), list(values)
    missing = [value for value in short if value not in values]
    assert not missing, f"not among the values: {missing}"
    return [pytest.param(value, marks=() if value in short else pytest.mark.long) for value in values]
