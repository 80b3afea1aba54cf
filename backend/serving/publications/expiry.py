"""Deliveries of publications that are given up: counted, and logged once a minute."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from backend import instruments
from backend.serving.partition import OpenPartition

NOTE_SECONDS: Final = 60.0

logger = logging.getLogger(__name__)


class ExpiredDeliveries:
    """Deliveries of one partition that were given up, because their publications were too old or unreadable."""

    def __init__(self, source: OpenPartition) -> None:
        self._source = source
        self._due = 0.0

    def note(self, *, last: bool = False) -> None:
        """Count and log those since the last line, if that was a minute ago; ``last``: in any case."""
        source, now = self._source, asyncio.get_running_loop().time()
        given_up = source.fold.dropped_deliveries - source.dropped_noted
        if not given_up or (now < self._due and not last):
            return
        self._due = now + NOTE_SECONDS
        source.dropped_noted += given_up
        instruments.EXPIRED_DELIVERIES.add(count=given_up)
        settings = source.fold.settings
        assert settings is not None
        logger.warning(
            "deliveries from partition %d (%s) were given up, because their publications are older than the retention, "
            "or cannot be read: %d",
            *(source.id, settings.arn, given_up),
        )
