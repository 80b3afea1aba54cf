"""Length limits for foreign values in log lines and error texts."""

from __future__ import annotations

VALUE_LENGTH_MAX = 300
"""Maximum length of one value."""
TEXT_LENGTH_MAX = 1_000
"""Maximum length of a whole text, which may contain several values."""


def shown(value: object, length_max: int = VALUE_LENGTH_MAX) -> str:
    """Format a value, truncated to the maximum length."""
    text = str(value)
    return text if len(text) <= length_max else text[:length_max] + "..."
