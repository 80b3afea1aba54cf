"""Offline report of journal damage, and its acceptance as lost by an operator, while all nodes are down."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from backend.journal.interface import Journal
from backend.recovery.replay import JournalDamaged, Replay, ShardDamage, replay_log
from backend.recovery.takeover import in_order, known_seq
from metadata_service.store import EntryStore


class Survey(NamedTuple):
    """All damage that keeps something from being served."""

    shard_damage: list[ShardDamage]
    logs: list[JournalDamaged]
    """Damaged logs for which the lost records' shards are unknown."""

    def __str__(self) -> str:
        return "\n".join(str(one) for one in (*self.logs, *self.shard_damage))


async def survey(journal: Journal, entries: EntryStore) -> Survey:
    """Fold everything as a start would, and change nothing.

    Raises :class:`~backend.journal.types.LogInUse` while a node runs on local files, and the errors of the
    metadata store and the journal.
    """
    return (await examine(journal, entries))[1]


async def examine(journal: Journal, entries: EntryStore) -> tuple[Replay, Survey]:
    """Fold everything like :func:`survey`, and also return the folds: all that a start would serve."""
    logs = await entries.logs()
    damaged: list[JournalDamaged] = []
    try:
        started = await journal.find(logs)
        shards = {entry.shard: entry for entry in await entries.shards()}
        replay = Replay(shards)
        await replay.load_checkpoints(journal.chunks)
        for entry in in_order(logs, shards.values()):
            if entry.state == "sealed" and not replay.chained(entry.log_id):
                continue
            try:
                await replay_log(journal, entry, started, replay, known_seq(entry.log_id, shards.values()))
            except JournalDamaged as error:
                damaged.append(error)
    finally:
        journal.release()
    return replay, Survey([*replay.shard_damage.values(), *replay.partition_damage.values()], damaged)


async def accept(found: Survey, entries: EntryStore) -> None:
    """Let the next start skip this damage: the damaged data are lost, the rest of those queues is served.

    More damage may follow behind it; another survey finds it.
    """
    damaged = {error.log_id for error in found.logs}
    for entry in await entries.logs():
        if entry.log_id in damaged:
            await entries.update_log(msgspec.structs.replace(entry, accepted=True))
    marks: dict[int, list[str]] = {}
    for damage in found.shard_damage:
        marks.setdefault(damage.shard, []).append(damage.mark)
    await entries.update_shards(
        [
            msgspec.structs.replace(entry, accepted=(*entry.accepted, *marks[entry.shard]))
            for entry in await entries.shards()
            if entry.shard in marks
        ]
    )
