"""Determines the moment of a backup of a service in Cassandra: the end of every log, and entries consistent
with it.

Cassandra cannot be locked as a whole, and logs keep growing.  So each log is *held* for a moment
(:meth:`~metadata_service.cassandra.entries.CassandraEntries.hold`): its writer still writes rows, but does not
answer, because its fence reads say that it is held.  While all are held,

1. the entries of the logs are read, then those of the shards, at SERIAL; 2. the end of each log is determined,
at a quorum; 3. the entries of the shards are read again, and must be unchanged;

and then the holds are ended, by transactions that find them, which proves that all lasted from the first step
to the last.

**Why this is a state that a kill of all processes could have left.**  Suppose that a row in one log depends on
a row of another log.  Then an answer or a message to another node had left the process that wrote the latter.
Before that, its fence had been read as open, by a read sent after the row was on a quorum, and before the hold:
so the row is found in step 2.  Within a process the same holds because a log is copied from its front.  Data on
which the shards' entries depend were durable before the entries were committed (step 1), so they are found,
too; and since the entries are unchanged in step 3, no row that was found belongs to an owner unknown to them.
Floors of logs are read before the shards, so none is ahead of the checkpoints it depends on.

If a hold does not last (its writer waits for about a second, and then ends it), or an entry has changed, the
attempt is repeated.  Nothing depends on clocks here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar, cast

import msgspec

from backend.journal.cassandra.table_interface import Unanswered
from backend.journal.cassandra.tables import CassandraTables
from backend.journal.cassandra.tail import CassandraTail, End
from backend.journal.rows import SEGMENT_MAX
from holdfast.backup.kept import CannotBackUp, Report, now_ms
from metadata_service.cassandra.entries import CassandraEntries
from metadata_service.models import BackendCluster, BackupPin, LogEntry, ShardEntry
from metadata_service.store import ConditionFailed, StoreUnavailable

T = TypeVar("T")

PIN_SECONDS: Final = 600.0
"""Time after which the pin of a killed backup is void."""
TRIES: Final = 20
PAUSE_SECONDS: Final = (0.2, 3.0)
"""The first and the longest pause between two attempts, which lets the service make progress."""
PIN_TRIES: Final = 20
FILES_MAX: Final = (1 << 31) - 1
"""Maximum number of a log's checkpoint file."""


class Moment(NamedTuple):
    """State of one backend cluster at the moment."""

    logs: list[LogEntry]
    """All logs that are needed, or not sealed."""
    shards: list[ShardEntry]
    ends: dict[int, End]
    """Ends of the logs that are not sealed."""
    seqs: dict[int, int]
    """Last rows of the logs that are not sealed."""


class ClusterHold:
    """A backend cluster whose logs can be held, with the pin that protects the data being copied."""

    def __init__(
        self, cluster: BackendCluster, entries: CassandraEntries, tables: CassandraTables, backup: str
    ) -> None:
        self.cluster = cluster
        self.entries = entries
        self.tables = tables
        self._backup = backup
        self._pin = BackupPin(backup, 0, ())
        self._tails: dict[int, CassandraTail] = {}
        self._held: set[int] = set()

    # --- the pin ------------------------------------------------------------------------------------------

    async def pin(self, logs: Iterable[tuple[int, int, int]]) -> None:
        """Pin these logs, each up to this segment and checkpoint file.  Raises :class:`StoreError`."""
        self._pin = BackupPin(self._backup, now_ms() + int(PIN_SECONDS * 1000), tuple(logs))
        await self._change_pins(self._pin)

    async def narrow(self, logs: Iterable[tuple[int, int, int]]) -> None:
        """Reduce the pin to this.  Raises as :meth:`put_off` does."""
        await self._say_again(tuple(logs))

    async def put_off(self) -> None:
        """Extend the pin.

        Raises :class:`CannotBackUp` if it is gone or was void for a while, and :class:`StoreError`.
        """
        await self._say_again(self._pin.logs)

    async def _say_again(self, logs: tuple[tuple[int, int, int], ...]) -> None:
        if not self._pin.logs:
            return  # nothing was pinned
        before, self._pin = self._pin, BackupPin(self._backup, now_ms() + int(PIN_SECONDS * 1000), logs)
        if not await self._change_pins(self._pin, again=True) or before.until_ms < now_ms():
            raise CannotBackUp(
                f"the pin that protects the copied data of the cluster {self.cluster.name} was removed "
                "meanwhile, or was not renewed in time.  Take the backup again"
            )

    async def unpin(self) -> None:
        """Remove the pin.  Raises :class:`StoreError`."""
        await self._change_pins(None)

    async def _change_pins(self, pin: BackupPin | None, *, again: bool = False) -> bool:
        """Set, replace or remove (None) the backup's pin, and remove void ones; ``again``: only replace.
        Returns True if the backup had one."""
        for left in reversed(range(PIN_TRIES)):
            entry = await self.entries.cluster()
            own = any(one.name == self._backup for one in entry.pins)
            others = [one for one in entry.pins if one.name != self._backup and one.until_ms > now_ms()]
            pins = (*others, pin) if pin is not None and (own or not again) else tuple(others)
            if pins == entry.pins:
                return own
            try:
                await self.entries.update_cluster(msgspec.structs.replace(entry, pins=pins))
                return own
            except ConditionFailed:  # the cluster's manager has just changed it
                if not left:
                    raise
        raise AssertionError("one of the tries ends it")

    # --- the moment ---------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Pin everything that the moment may need, and do the long reads before answers are delayed.

        Raises :class:`CannotBackUp`, :class:`StoreError` and :class:`Unanswered`.
        """
        while True:
            logs = needed(await self.entries.logs(), await self.entries.shards())
            known = {entry.log_id for entry in logs} <= {log_id for log_id, _, _ in self._pin.logs}
            if known and (not logs or self._pin.until_ms > now_ms() + PIN_SECONDS * 500):
                break
            await self.pin((entry.log_id, SEGMENT_MAX, FILES_MAX) for entry in logs)  # before listing the content
        await asyncio.gather(*(tail.catch_up() for tail in self._follow(logs)))

    async def hold(self, name: str) -> None:
        """Hold all open logs.  Raises :class:`StoreError`."""
        self._held = set()
        logs = [entry.log_id for entry in await self.entries.logs() if entry.state == "open"]
        self._held = set(logs)  # a failed hold may have taken effect, and has to be ended, too
        held = await together(self.entries.hold(log_id, name) for log_id in logs)
        self._held = {log_id for log_id, one in zip(logs, held, strict=True) if one}

    async def find(self) -> Moment | None:
        """Take steps 1 to 3; None if something has changed.  Raises :class:`StoreError` and :class:`Unanswered`."""
        known = await self.entries.logs()
        shards = await self.entries.shards()
        logs = needed(known, shards)
        owners = {entry.owner_log for entry in shards}
        if any(log.state == "open" and log.log_id in owners and log.log_id not in self._held for log in logs):
            return None  # started after the holds
        if not {entry.log_id for entry in logs} <= {log_id for log_id, _, _ in self._pin.logs}:
            return None
        tails = self._follow(logs)
        await asyncio.gather(*(tail.catch_up() for tail in tails))
        if await self.entries.shards() != shards:
            return None
        return Moment(logs, shards, {tail.log_id: tail.end for tail in tails}, {})

    async def release(self, name: str) -> bool:
        """End the holds; True if all lasted until now."""
        lasted = await asyncio.gather(*(self.entries.release(one, name) for one in self._held), return_exceptions=True)
        self._held = set()
        return all(one is True for one in lasted)

    async def seqs(self, moment: Moment) -> dict[int, int]:
        """The last row of each log that is not sealed.  Raises :class:`Unanswered`."""
        floors = {entry.log_id: entry.floor_seq for entry in moment.logs}
        found = {}
        for log_id in moment.ends:
            seq = await self._tails[log_id].seq()
            found[log_id] = seq if seq is not None else max(0, floors[log_id] - 1)
        return found

    def _follow(self, logs: list[LogEntry]) -> list[CassandraTail]:
        """Followers of the logs that are not sealed."""
        found = []
        for entry in logs:
            if entry.state == "sealed":
                continue
            if entry.log_id not in self._tails:
                self._tails[entry.log_id] = CassandraTail(self.tables, entry.log_id, entry.floor_segment)
            found.append(self._tails[entry.log_id])
        return found


def needed(logs: Iterable[LogEntry], shards: Sequence[ShardEntry]) -> list[LogEntry]:
    """The logs that a copy needs: those not sealed, and those that a shard refers to."""
    mentioned = {log_id for shard in shards for log_id in shard.mentions()}
    return [entry for entry in logs if entry.state != "sealed" or entry.log_id in mentioned]


async def find(clusters: Sequence[ClusterHold], name: str, report: Report) -> tuple[int, float, list[Moment]]:
    """Find the moment: its time, the longest time that answers had to wait, and the state of each cluster.

    Raises :class:`CannotBackUp`, :class:`StoreError` and :class:`Unanswered`.
    """
    loop = asyncio.get_running_loop()
    pause, why = PAUSE_SECONDS[0], ""
    for tries in range(TRIES):
        if tries:
            report(f"no consistent moment was found ({why}): trying again")
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS[1])
        await asyncio.gather(*(one.prepare() for one in clusters))
        hold, found, why = f"{name} {tries}", [], "the entries have changed"
        started_at = loop.time()
        try:
            try:
                await together(one.hold(hold) for one in clusters)
                found = await together(one.find() for one in clusters)
                moment_ms = now_ms()
            finally:
                lasted = await asyncio.gather(*(one.release(hold) for one in clusters))
        except (StoreUnavailable, ConditionFailed, Unanswered) as error:
            why = str(error)
            continue
        if not all(lasted):
            why = "the logs could not be held for long enough"
            continue
        waited = loop.time() - started_at
        moments = [one for one in found if one is not None]
        if len(moments) == len(clusters):
            for at, (cluster, moment) in enumerate(zip(clusters, moments, strict=True)):
                moments[at] = moment._replace(seqs=await cluster.seqs(moment))
            return moment_ms, waited, moments
    raise CannotBackUp(
        f"no consistent moment was found: {why}.  Nothing was changed; try again under less load, or when the "
        "backends are stable"
    )


async def together(work: Iterable[Awaitable[T]]) -> list[T]:
    """Run all, and return their results; if one fails, raise its error when all have ended."""
    done = await asyncio.gather(*work, return_exceptions=True)
    for one in done:
        if isinstance(one, BaseException):
            raise one
    return cast(list[T], done)
