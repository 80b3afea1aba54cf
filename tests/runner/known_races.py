"""Tests that may fail among others if they pass alone, each with the reason: at most five, and only for a while."""

from typing import Final

KNOWN_RACES: Final[dict[str, str]] = {}
"""Reasons by the test's id.  A test that is not here and passes only when it is repeated fails the run."""
KNOWN_RACES_MAX: Final = 5
