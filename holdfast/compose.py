"""Composes the service."""

from __future__ import annotations

from holdfast.serve import Service
from holdfast.settings import Settings
from metadata_service.sqlite import SQLiteStore


class CannotStart(Exception):
    """The service cannot start; the text says why."""


async def compose(settings: Settings, store: SQLiteStore) -> Service:
    raise CannotStart("not built yet")
