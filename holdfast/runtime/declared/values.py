"""Values of declared attributes."""

from __future__ import annotations

import json
from collections.abc import Mapping

from holdfast.settings import DeclaredValue


def texts(attributes: Mapping[str, DeclaredValue]) -> dict[str, str]:
    """Convert the values of attributes to the text form that SQS and SNS have."""
    return {name: _text(value) for name, value in attributes.items()}


def _text(value: DeclaredValue) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return json.dumps(value, separators=(",", ":"))
    return str(value)
