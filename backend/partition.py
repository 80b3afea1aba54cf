"""A queue partition as a node holds it: the fold and what is beside it, which a restart may forget."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from backend.api import PartitionGone, SettingsStale, Target
from backend.engine.fold import Fold
from backend.engine.ids import Handles
from backend.engine.queue import Queue
from backend.engine.records import Message
from backend.engine.timers import NEVER


class Partition:
    """One open partition."""

    def __init__(self, fold: Fold, shard: int, epoch: int) -> None:
        assert fold.settings is not None
        self.id = fold.partition
        self.shard = shard
        self.epoch = epoch
        self.fold = fold
        self.queue = Queue(fold, Handles(fold.partition, fold.settings.handle_key))
        self.waiters: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        """Long polls, the longest waiting first."""
        self.window: dict[int, tuple[Message, bytes]] = {}
        """Heads and payloads of messages that are likely to be received soon."""
        self.alarm = NEVER
        """When the node looks after this partition next."""
        self.ferry: asyncio.Task[None] | None = None
        self.mover: asyncio.Task[None] | None = None

    def check(self, target: Target) -> None:
        """Raises :class:`PartitionGone` and :class:`SettingsStale`."""
        settings = self.fold.settings
        assert settings is not None
        if settings.queue_id != target.queue_id or self.fold.dropped:
            raise PartitionGone(f"partition {self.id} is of another queue now")
        if settings.version < target.version:
            raise SettingsStale(f"partition {self.id} has settings {settings.version}, the caller {target.version}")
