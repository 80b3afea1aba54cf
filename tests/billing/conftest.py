"""An empty lake."""

from pathlib import Path

import pytest

from billing.lake.lake import Lake


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))
