"""What opening a store raises, before there is one to call."""

from __future__ import annotations

from metadata_service.store import StoreError


class CannotOpen(StoreError):
    """What is there cannot be used as a metadata store; the text says why."""
