"""Which of several processes holds an office, such as that of the out-cluster manager: the one that is named in the
office's entry, whose version it raises every other second.

Whoever sees the version stand still for long puts itself in its place.  There is no lease: two may take themselves for
the manager for a moment, and all that either does to a queue is a change from the version that it has read.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from metadata_service.models import Decision, ManagerEntry
from metadata_service.store import ConditionFailed

TAKE_OVER_SECONDS = 10.0
GAP_SECONDS = 5.0
"""A longer time between two looks does not count: who knows what went on."""
DECISIONS_KEPT = 50

log = logging.getLogger("holdfast.manager")


class Office(Protocol):
    """Where it is written down who holds it.  Implemented by :class:`~metadata_service.store.ClusterRegistry`."""

    async def manager(self) -> ManagerEntry: ...

    async def update_manager(self, entry: ManagerEntry) -> ManagerEntry:
        """Raises :class:`~metadata_service.store.ConditionFailed`."""


class Election:
    """One process's part in it."""

    def __init__(
        self,
        office: Office,
        name: str,
        *,
        title: str = "the out-cluster manager",
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._office = office
        self._title = title
        self._name = name
        self._start = secrets.token_hex(8)
        self._clock = clock
        self._wall = wall
        self._seen = -1
        """The version at the last look."""
        self._looked_at = 0.0
        self._still_s = 0.0
        self._unsaid: list[Decision] = []

    def tell(self, text: str) -> None:
        """A decision, to be in the entry from the next :meth:`stand` on."""
        self._unsaid.append(Decision(self._now_ms(), text))
        del self._unsaid[:-DECISIONS_KEPT]

    async def stand(self) -> ManagerEntry | None:
        """The entry, if this process is the manager now; to be called every other second.

        Raises :class:`~metadata_service.store.StoreError`; until it does not, this process is not the manager.
        """
        entry = await self._office.manager()
        mine = entry.start == self._start
        if not mine and not self._vacant(entry):
            return None
        try:
            entry = await self._office.update_manager(self._signed(entry, self._name, self._start))
        except ConditionFailed:  # another was elected, or an operator has changed it: seen at the next look
            return entry if mine else None
        if not mine:
            log.info("%s is %s", self._name, self._title)
        self._unsaid.clear()
        return entry

    async def resign(self) -> None:
        """Let another one be elected at once.  Raises :class:`~metadata_service.store.StoreError`."""
        entry = await self._office.manager()
        if entry.start == self._start:
            await self._office.update_manager(self._signed(entry, "", ""))

    def _signed(self, entry: ManagerEntry, name: str, start: str) -> ManagerEntry:
        """The entry in the name of this manager, with what is to be told."""
        told = (*entry.decisions, *self._unsaid)[-DECISIONS_KEPT:]
        return msgspec.structs.replace(entry, manager=name, start=start, decisions=told, time_ms=self._now_ms())

    def _now_ms(self) -> int:
        return int(self._wall() * 1000)

    def _vacant(self, entry: ManagerEntry) -> bool:
        now = self._clock()
        passed, self._looked_at = now - self._looked_at, now
        if entry.version != self._seen:
            self._seen, self._still_s = entry.version, 0.0
        elif passed <= GAP_SECONDS:
            self._still_s += passed
        return not entry.start or self._still_s >= TAKE_OVER_SECONDS
