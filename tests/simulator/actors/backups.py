"""Backups of a simulated cluster, taken while it is in trouble.

The moment is found as it is (:mod:`holdfast.backup.cassandra_moment`), by a process of its own.  What that names is
copied while the cluster goes on, and folded as a recovery would fold it: what clients had been told by then has to be
true of it, for everything that they were told later may never have happened.
"""

from __future__ import annotations

import asyncio
import contextlib
from random import Random
from typing import TYPE_CHECKING, Any, cast

import msgspec

from backend.api import Unavailable
from backend.engine.blocks import DEAD, MOVING
from backend.journal.cassandra.journal import CassandraJournal
from backend.journal.cassandra.retrying_tables import RetryingTables
from backend.journal.cassandra.table_interface import BLOCK_BYTES, Unanswered
from backend.journal.rows import RecordView
from backend.recovery.replay import JournalDamaged, Replay
from backend.recovery.takeover import recover
from holdfast.backup.cassandra_moment import ClusterHold, Moment, find
from holdfast.backup.cassandra_take import _bounds, _check_still_there, _Part, _parts
from holdfast.backup.kept import CannotBackUp
from metadata_service.models import BackendCluster
from metadata_service.store import StoreError
from tests.simulator.checks.history import CertainFacts, RunHistory
from tests.simulator.checks.model import Violation
from tests.simulator.world.machines import HostTables
from tests.simulator.world.quorum import Machines, QuorumTables

if TYPE_CHECKING:
    from tests.simulator.world.cluster import ClusterWorld

NAME = "backup"
"""Name of the process."""
CLUSTER = BackendCluster("main", 0)


class Backups:
    """One backup after the other."""

    def __init__(self, world: ClusterWorld, random: Random) -> None:
        self._world = world
        self._random = random

    async def run(self) -> None:
        while not self._world.over:
            await self._take()
            await asyncio.sleep(self._random.random())

    async def _take(self) -> None:
        world = self._world
        tables = HostTables(world.machines, NAME, world.entries(NAME).end_hold)
        held = _Held(tables, world.entries(NAME), world.history)
        try:
            _, _, (moment,) = await find([held], NAME, lambda text: None)
            await held.narrow(_bounds(moment))
            await asyncio.sleep(3 * self._random.random())
            machines = await self._copied(held, moment, tables)
        except (CannotBackUp, StoreError, Unanswered, Unavailable):
            world.event("no backup")
        else:
            await self._check(machines, moment, held.certain_facts)
            world.event("backup")
        finally:
            with contextlib.suppress(StoreError):
                await held.unpin()

    async def _copied(self, held: ClusterHold, moment: Moment, tables: HostTables) -> Machines:
        """Machines that have what the backup has."""
        parts, missing = await _parts(held, moment)
        if missing:
            raise Violation(f"a backup does not find {missing}, and nothing of it was lost")
        machines = Machines(Random(0))
        for part in parts:
            if part.size_bytes is None:
                await self._copy_rows(part, tables, machines)
            else:
                await self._copy_pieces(part, part.size_bytes, tables, machines)
        await held.put_off()
        try:
            await _check_still_there(parts)
        except CannotBackUp as error:
            raise Violation(f"what a backup holds is dropped: {error}") from error
        return machines

    async def _copy_rows(self, part: _Part, tables: HostTables, machines: Machines) -> None:
        log_id, segment = part.log.log_id, part.number
        numbers = [one for one in await tables.numbers(log_id, segment, 0) if one < part.end_row]
        found = await RetryingTables(tables).get_rows(log_id, segment, numbers)
        for machine in machines.machines:
            machine.store(("segments", log_id, segment), (segment,), 1, True)
            for row, data in found.items():
                machine.store(("journal", log_id, segment), (row,), 1, data)

    async def _copy_pieces(self, part: _Part, size_bytes: int, tables: HostTables, machines: Machines) -> None:
        log_id, file = part.log.log_id, part.number
        data = await RetryingTables(tables).get_bytes(log_id, file, 0, size_bytes)
        for machine in machines.machines:
            machine.store(("files", log_id, file), (file,), 1, size_bytes)
            for number, at in enumerate(range(0, size_bytes, BLOCK_BYTES)):
                machine.store(("pieces", log_id, file), (number,), 1, data[at : at + BLOCK_BYTES])

    async def _check(self, machines: Machines, moment: Moment, certain_facts: CertainFacts) -> None:
        """Check the copy against the answers that clients had had at the moment of the backup."""
        journal = CassandraJournal(QuorumTables(machines))
        logs = [
            msgspec.structs.replace(log, state="sealed", sealed_seq=moment.seqs.get(log.log_id, log.sealed_seq))
            for log in moment.logs
        ]
        shards = {entry.shard: entry for entry in moment.shards}
        try:
            replay = await recover(journal, cast(Any, None), [], logs, shards, shards, 0)
        except JournalDamaged as error:
            raise Violation(f"a backup is damaged: {error}") from error
        if harm := [*replay.shard_damage.values(), *replay.partition_damage.values()]:
            raise Violation(f"a backup is damaged: {harm[0]}")
        stored, moving = await _messages(replay, journal)
        if twice := {one for one in stored if stored.count(one) > 1}:
            raise Violation(f"{len(twice)} messages are in several places of a backup: {sorted(twice)[:5]}")
        if lost := certain_facts.stored - {*stored, *moving}:
            raise Violation(f"{len(lost)} messages were stored, and are not in a backup: {sorted(lost)[:5]}")
        if back := certain_facts.deleted & {*stored}:
            raise Violation(f"{len(back)} messages were deleted, and are in a backup: {sorted(back)[:5]}")


class _Held(ClusterHold):
    """Remembers the answers that clients had at the moment."""

    def __init__(self, tables: HostTables, entries: Any, history: RunHistory) -> None:
        super().__init__(CLUSTER, entries, cast(Any, tables), NAME)
        self._history = history
        self.certain_facts = CertainFacts(frozenset(), frozenset())

    async def find(self) -> Moment | None:
        moment = await super().find()
        self.certain_facts = self._history.certain_facts()  # no log answers before the holds are taken away
        return moment


async def _messages(replay: Replay, journal: CassandraJournal) -> tuple[list[bytes], list[bytes]]:
    """The payloads that are stored, and of those that are on their way from one queue to another."""
    places: list[tuple[int, bool]] = []
    for fold in replay.folds.values():
        for block in fold.blocks.values():
            for position, state in zip(block.positions, block.states, strict=True):
                if state != DEAD:
                    places.append((position, state == MOVING))
    views = await journal.read_many([position for position, _ in places])
    stored: list[bytes] = []
    moving: list[bytes] = []
    for view, (_, moves) in zip(views, places, strict=True):
        if not isinstance(view, RecordView):
            raise Violation(f"a message is not in a backup: {view}")
        (moving if moves else stored).append(view.body)
    return stored, moving
