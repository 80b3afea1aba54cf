"""Start of an incarnation: recovery of the logs of its predecessors.

A restart is a takeover (:mod:`backend.recovery.takeover`): the new incarnation seals the earlier logs of its node and
takes over the shards that they owned, with the next epoch.  The state is that of the last checkpoint and the records
since, folded by the same code as in normal running.  Other nodes' logs are read only if a shard to be taken was owned
by one of them, or is folded from one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from operator import attrgetter
from typing import NamedTuple

from backend.clocks.cluster_clocks import ELAPSED_MS_MAX, Clocks
from backend.clocks.node_clock import SteadyClock
from backend.journal.interface import Journal, Log
from backend.journal.types import LogInUse
from backend.recovery.replay import Replay
from backend.recovery.takeover import claim, recover, with_owner
from backend.serving.shards import Shards, ShardTime
from metadata_service.models import LOG_ID_LIMIT, Heartbeat, LogEntry
from metadata_service.store import EntryStore, MemberStore

logger = logging.getLogger(__name__)

RECOVERY_SECONDS = 60.0
"""Time that a start waits for another node that recovers a log of this one."""
CLAIM_SECONDS = 0.5
"""Time that a start waits for a locked log that is not, or not yet, marked as recovering."""
RETRY_SECONDS = 0.1
LOG_IDS_RESERVED = LOG_ID_LIMIT // 8
"""Number of remaining log ids below which each start logs an error."""


class RecoveryResult(NamedTuple):
    """Result of a recovery."""

    entry: LogEntry
    log: Log
    shards: Shards
    time_ms: int
    """The last time in any row."""


async def start(
    journal: Journal,
    name: str,
    entries: MemberStore,
    *,
    given: Collection[int],
    clock: SteadyClock,
    on_failure: Callable[[BaseException], None],
    cluster: int = 0,
) -> RecoveryResult:
    """Recover, and begin a new incarnation of the node ``name``.

    It owns the shards that its earlier logs own, and the ``given`` shards, whose owners must have ended.

    Raises :class:`JournalDamaged`, :class:`LogInUse` (another process serves these logs), and the errors of the store
    and the journal; then it may be retried.
    """
    await journal.prepare()
    try:
        earlier = await _find(journal, name, entries)
        shard_entries = {entry.shard: entry for entry in await entries.shards()}
        own_entry = await entries.new_incarnation(name)
        _check_ids(own_entry.log_id)
        own = {entry.log_id for entry in earlier}
        wanted = {number for number, entry in shard_entries.items() if entry.owner_log in own}.union(given)
        logs, beats = await asyncio.gather(entries.logs(), entries.heartbeats())
        known = [entry for entry in logs if entry.log_id != own_entry.log_id]
        owners = {shard_entries[number].owner_log for number in wanted if number in shard_entries}
        ending = [entry for entry in known if entry.log_id in own | owners and entry.state != "sealed"]
        started = await journal.find(ending)
        claimed = await claim(entries, sorted(ending, key=attrgetter("incarnation")), started, own_entry)
        replay = await recover(journal, entries, claimed, known, shard_entries, wanted, own_entry.log_id)
        last_beat = next((beat for beat in beats if beat.node == name), None)
        await clock.open(time_of_node(replay, earlier, last_beat))
        log = await journal.create(own_entry, clock_ms=clock, on_failure=on_failure)
        try:
            shards = Shards(clock, cluster)
            taken = [with_owner(own_entry, number, replay) for number in sorted(wanted)]
            owned = await entries.update_shards(taken) if taken else []
            shards.open(owned, replay, _shard_times(beats, clock))
        except BaseException:
            await log.close()
            raise
    finally:
        journal.release()
    names = {entry.log_id: entry.node for entry in known}
    shards.owners = {
        number: names[entry.owner_log]
        for number, entry in shard_entries.items()
        if number not in wanted and entry.owner_log in names
    }
    partitions = len(replay.folds) + len(replay.streams)
    logger.info("recovered %d partitions, %d records replayed", partitions, replay.replayed)
    return RecoveryResult(own_entry, log, shards, replay.time_ms)


def time_of_node(replay: Replay, earlier: Iterable[LogEntry], last_beat: Heartbeat | None) -> int:
    """Return the node's clock at the end of its last incarnation, or somewhat earlier; 0: there was none.

    ``earlier``: the node's logs.
    """
    if last_beat is None or not last_beat.shard_time_ms:
        return replay.time_ms  # there was never another node, so all of its shards have its own time
    time_ms = last_beat.shard_time_ms
    for entry in sorted(earlier, key=attrgetter("incarnation")):
        row_ms = replay.row_times.get(entry.log_id, 0)
        # The node died before its first heartbeat, or had no cluster.
        if entry.incarnation > last_beat.incarnation:
            time_ms = row_ms or time_ms
        elif entry.incarnation == last_beat.incarnation and row_ms - time_ms <= ELAPSED_MS_MAX:
            # A row that is further ahead was written before the node's clock was stepped back.
            time_ms = max(time_ms, row_ms)
    return time_ms


def _shard_times(beats: Iterable[Heartbeat], clock: SteadyClock) -> ShardTime:
    """Return a function for shards' times, based on the last heartbeats of all nodes."""
    clocks = Clocks()
    clocks.record(beats, clock.wall_ms(), clock.elapsed_ms())
    return lambda shard, former, time_ms: clocks.shard_time_ms(shard, former, time_ms, clock.elapsed_ms())


async def _find(journal: Journal, name: str, entries: EntryStore) -> list[LogEntry]:
    """Find and lock the node's earlier logs.

    Waits while another node recovers one of them, because it declared this node dead before the restart.  Raises
    :class:`LogInUse`.
    """
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    while True:
        earlier = await entries.logs(name)
        try:
            await journal.find(earlier)
            return earlier
        except LogInUse:
            journal.release()
            waited = loop.time() - started_at
            recovering = any(entry.state == "recovering" for entry in earlier)
            if waited >= (RECOVERY_SECONDS if recovering else CLAIM_SECONDS):
                raise
        await asyncio.sleep(RETRY_SECONDS)


def _check_ids(log_id: int) -> None:
    """Log an error when few ids are left: each start takes one, and without ids no node can start."""
    if log_id >= LOG_ID_LIMIT - LOG_IDS_RESERVED:
        logger.error(
            "this start has log id %d, and after %d more starts of the nodes of this cluster no node can start: move"
            " the queues to a new service or backend cluster before that (docs/operations.md)",
            log_id,
            LOG_ID_LIMIT - 1 - log_id,
        )
