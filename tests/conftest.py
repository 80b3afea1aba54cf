"""What all tests share."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings in the developer's own environment must not leak into tests."""
    for name in list(os.environ):
        if name.startswith(("HOLDFAST_", "AWS_")):
            monkeypatch.delenv(name)
