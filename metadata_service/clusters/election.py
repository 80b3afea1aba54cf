"""Election of the holder of an office, such as the out-cluster manager: the process named in the office's
entry, which increments the entry's beats every other second.

A process that sees unchanged beats for too long takes the office.  There is no lease: two processes may be the manager
for a moment, which is safe because every change is conditional on the version that it was computed from.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from metadata_service.models import Candidate, ManagerDecision, ManagerEntry
from metadata_service.store import ConditionFailed

TAKE_OVER_SECONDS = 10.0
GAP_SECONDS = 5.0
"""Maximum time between two polls that counts, because in a longer gap the other process may have been alive."""
DECISIONS_KEPT = 50
STAND_BY_SECONDS = 10.0
"""Interval at which a standby process reports that it is alive."""
FORGOTTEN_MS = 3_600_000
"""Time without a report after which a candidate is removed."""
CANDIDATES_MAX = 32
RESIGN_TRIES = 5

log = logging.getLogger("holdfast.manager")


class Office(Protocol):
    """Storage of the office's entry.  Implemented by :class:`~metadata_service.store.ClusterRegistry`."""

    async def manager(self) -> ManagerEntry: ...

    async def update_manager(self, entry: ManagerEntry) -> ManagerEntry:
        """Store the entry.  Raises :class:`~metadata_service.store.ConditionFailed`."""


class Election:
    """Participation of one process in an election."""

    def __init__(
        self,
        office: Office,
        name: str,
        *,
        title: str = "the out-cluster manager",
        listed: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``listed``: the office's entry lists the candidates."""
        self._office = office
        self._listed = listed
        self._title = title
        self._name = name
        self._start = secrets.token_hex(8)
        self._clock = clock
        self._wall = wall
        self._seen: tuple[str, int] = ("", -1)
        """The manager's start id and beats at the last poll."""
        self._stood_by_at = float("-inf")
        self._polled_at = 0.0
        self._still_s = 0.0
        self._unpublished: list[ManagerDecision] = []

    def publish(self, text: str) -> None:
        """Add a decision to the entry, written by the next :meth:`stand`."""
        self._unpublished.append(ManagerDecision(self._now_ms(), text))
        del self._unpublished[:-DECISIONS_KEPT]

    async def stand(self) -> ManagerEntry | None:
        """Return the entry if this process is the manager now; to be called every other second.

        Raises :class:`~metadata_service.store.StoreError`; this process is not the manager until a later call
        succeeds.
        """
        entry = await self._office.manager()
        is_manager = entry.start == self._start
        if not is_manager and not self._vacant(entry):
            await self._stand_by(entry)
            return None
        try:
            entry = await self._office.update_manager(self._signed(entry, self._name, self._start))
        except ConditionFailed:  # another was elected, or an operator has changed it: seen at the next poll
            return entry if is_manager else None
        if not is_manager:
            log.info("%s is %s", self._name, self._title)
        self._unpublished.clear()
        return entry

    async def resign(self) -> None:
        """Give up the office, so that another process is elected at once.  Raises
        :class:`~metadata_service.store.StoreError`."""
        for _ in range(RESIGN_TRIES):
            entry = await self._office.manager()
            left = tuple(one for one in entry.candidates if one.start != self._start)
            if entry.start == self._start:
                resigned = self._signed(entry, "", "")
            elif left != entry.candidates:
                resigned = entry
            else:
                return
            with contextlib.suppress(ConditionFailed):
                await self._office.update_manager(msgspec.structs.replace(resigned, candidates=left))
                return

    async def _stand_by(self, entry: ManagerEntry) -> None:
        """Report periodically that this process is a candidate; nothing depends on it."""
        if not self._listed or self._clock() - self._stood_by_at < STAND_BY_SECONDS:
            return
        self._stood_by_at = self._clock()
        with contextlib.suppress(ConditionFailed):  # another candidate reported at the same time: retried later
            await self._office.update_manager(msgspec.structs.replace(entry, candidates=self._candidates(entry)))

    def _signed(self, entry: ManagerEntry, name: str, start: str) -> ManagerEntry:
        """The entry signed by this manager, with the pending decisions."""
        decisions = (*entry.decisions, *self._unpublished)[-DECISIONS_KEPT:]
        return msgspec.structs.replace(
            entry,
            manager=name,
            start=start,
            decisions=decisions,
            time_ms=self._now_ms(),
            beats=entry.beats + 1,
            candidates=self._candidates(entry),
        )

    def _candidates(self, entry: ManagerEntry) -> tuple[Candidate, ...]:
        """Return the known candidates with this process's current state, without those silent for too long.  Earlier
        starts of the same name are removed, because the process is back.  A replaced manager is recorded as gone.
        """
        if not self._listed:
            return entry.candidates
        now_ms = self._now_ms()
        kept = [
            one
            for one in entry.candidates
            if one.name != self._name and now_ms - max(one.time_ms, one.gone_ms) < FORGOTTEN_MS
        ]
        if entry.start and entry.start != self._start and self._vacant_now(entry):
            kept = [
                msgspec.structs.replace(one, gone_ms=now_ms, successor=self._name) if one.start == entry.start else one
                for one in kept
            ]
        return (*kept, Candidate(self._name, self._start, now_ms))[-CANDIDATES_MAX:]

    def _now_ms(self) -> int:
        return int(self._wall() * 1000)

    def _vacant(self, entry: ManagerEntry) -> bool:
        now = self._clock()
        passed, self._polled_at = now - self._polled_at, now
        if (entry.start, entry.beats) != self._seen:
            self._seen, self._still_s = (entry.start, entry.beats), 0.0
        elif passed <= GAP_SECONDS:
            self._still_s += passed
        return self._vacant_now(entry)

    def _vacant_now(self, entry: ManagerEntry) -> bool:
        """True if the office is empty, or its holder was silent for long enough at the last poll."""
        return not entry.start or self._still_s >= TAKE_OVER_SECONDS
