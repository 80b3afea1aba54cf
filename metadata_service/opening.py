"""Errors of opening a store."""

from __future__ import annotations

from metadata_service.store import StoreError


class CannotOpen(StoreError):
    """The stored data cannot be used as a metadata store; the text says why."""
