"""Errors of processes that start."""

from __future__ import annotations


class CannotStart(Exception):
    """The service cannot start; the text says why."""
