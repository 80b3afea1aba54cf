"""The length of what is repeated of somebody else's values: in log lines, and in the texts of errors."""

from __future__ import annotations

VALUE_LENGTH_MAX = 300
"""Characters of one value."""
TEXT_LENGTH_MAX = 1_000
"""Characters of a text as a whole, which may repeat several."""


def shown(value: object, length_max: int = VALUE_LENGTH_MAX) -> str:
    """The value as a text; a longer one is cut."""
    text = str(value)
    return text if len(text) <= length_max else text[:length_max] + "..."
