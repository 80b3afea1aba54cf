"""What all tests share."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

settings.register_profile("holdfast", deadline=None)  # a busy machine is no failure
settings.load_profile("holdfast")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings in the developer's own environment must not leak into tests."""
    for name in list(os.environ):
        if name.startswith(("HOLDFAST_", "AWS_")):
            monkeypatch.delenv(name)
