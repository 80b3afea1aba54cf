"""What is damaged, and accepting that it is lost: an operator's decision, taken while all nodes are down."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from backend.journal.interface import Journal
from backend.replay import Harm, JournalDamaged, Replay, replay_log
from backend.takeover import in_order, known_seq
from metadata_service.store import EntryStore


class Survey(NamedTuple):
    """All damage that keeps something from being served."""

    harms: list[Harm]
    logs: list[JournalDamaged]
    """Logs of which it cannot be said whose records are lost."""

    def __str__(self) -> str:
        return "\n".join(str(one) for one in (*self.logs, *self.harms))


async def survey(journal: Journal, entries: EntryStore) -> Survey:
    """Fold everything as a start would, and change nothing.

    Raises :class:`~backend.journal.segments.LogInUse` while a node runs on local files, and what store and journal
    raise.
    """
    return (await examine(journal, entries))[1]


async def examine(journal: Journal, entries: EntryStore) -> tuple[Replay, Survey]:
    """The same, with what was folded: all that a start would serve."""
    logs = await entries.logs()
    damaged: list[JournalDamaged] = []
    try:
        begun = await journal.find(logs)
        shards = {entry.shard: entry for entry in await entries.shards()}
        replay = Replay(shards)
        await replay.load_checkpoints(journal.pieces)
        for entry in in_order(logs, shards.values()):
            if entry.state == "sealed" and not replay.chained(entry.log_id):
                continue
            try:
                await replay_log(journal, entry, begun, replay, known_seq(entry.log_id, shards.values()))
            except JournalDamaged as error:
                damaged.append(error)
    finally:
        journal.release()
    return replay, Survey([*replay.shard_harm.values(), *replay.partition_harm.values()], damaged)


async def accept(found: Survey, entries: EntryStore) -> None:
    """Let the next start pass over this damage: what it hit is lost, the rest of those queues is served.

    There may be more behind it, which a further survey finds.
    """
    damaged = {error.log_id for error in found.logs}
    for entry in await entries.logs():
        if entry.log_id in damaged:
            await entries.update_log(msgspec.structs.replace(entry, accepted=True))
    marks: dict[int, list[str]] = {}
    for harm in found.harms:
        marks.setdefault(harm.shard, []).append(harm.mark)
    await entries.update_shards(
        [
            msgspec.structs.replace(entry, accepted=(*entry.accepted, *marks[entry.shard]))
            for entry in await entries.shards()
            if entry.shard in marks
        ]
    )
