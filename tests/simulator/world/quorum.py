"""Tables with quorum semantics, in memory: writes that are late, are lost, or have unknown outcomes.

Each of some machines has its own copy.  A write goes to all of them, arrives at each after a while of its own, or
never, and is answered when a majority has it.  A read asks all, waits for a majority, and brings what it has found to
those of them that lack it, before it answers.  What has no majority in time is :class:`Unanswered`; it goes on all the
same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from copy import copy
from random import Random
from typing import Any

from backend.extent_ids import ExtentId
from backend.journal.cassandra.table_interface import (
    BLOCK_BYTES,
    BLOCKS_PER_READ,
    ExtentBlock,
    StateRead,
    Unanswered,
    Written,
    blocks_of,
)

Key = tuple[Any, ...]


class Machine:
    def __init__(self) -> None:
        self.up = True
        self.cells: dict[Key, dict[Key, tuple[int, Any]]] = {}
        """By partition and row: (timestamp, value)."""
        self.graves: dict[Key, int] = {}
        """Time of the deletion of a partition."""

    def store(self, partition: Key, row: Key, timestamp: int, value: Any) -> None:
        cells = self.cells.setdefault(partition, {})
        if timestamp > self.graves.get(partition, -1) and timestamp >= cells.get(row, (-1,))[0]:
            cells[row] = (timestamp, value)

    def delete(self, partition: Key, timestamp: int) -> None:
        self.graves[partition] = max(timestamp, self.graves.get(partition, -1))
        left = {row: cell for row, cell in self.cells.pop(partition, {}).items() if cell[0] > timestamp}
        if left:
            self.cells[partition] = left

    def partition(self, partition: Key) -> dict[Key, tuple[int, Any]]:
        return dict(self.cells.get(partition, {}))


class Machines:
    """The machines of one cluster, and what goes wrong between them and their clients.

    A chance of 0 never happens.  ``slow_seconds``: how long a message is on its way at most, usually; a ``late`` one
    takes up to a hundred times as long.
    """

    def __init__(
        self, random: Random, count: int = 3, *, lost: float = 0.0, late: float = 0.0, repairs: bool = True
    ) -> None:
        self.random = random
        self.machines = [Machine() for _ in range(count)]
        self.majority = count // 2 + 1
        self.lost = lost
        self.late = late
        self.repairs = repairs
        """Bring rows that a read has found on some machine to the others."""
        self.slow_seconds = 0.01
        self.timeout_seconds = 0.5
        self.statements = 0

    def down(self, *numbers: int) -> None:
        """Only these do not answer."""
        for number, machine in enumerate(self.machines):
            machine.up = number not in numbers

    def set_state(self, log_id: int, state: str, version: int) -> None:
        """Apply a transaction to a log's entry: once it is committed, a majority has it."""
        for machine in self.random.sample(self.machines, self.majority):
            machine.store(("entry", log_id), (), version, state)

    def everywhere(self, partition: Key, row: Key) -> bool:
        return all(row in machine.cells.get(partition, {}) for machine in self.machines)

    def cells(self, partition: Key) -> dict[Key, Any]:
        """Rows that any machine has."""
        found: dict[Key, tuple[int, Any]] = {}
        for machine in self.machines:
            found.update(machine.partition(partition))
        return {row: value for row, (_, value) in sorted(found.items())}

    def delay(self, client: QuorumTables, number: int, *, back: bool) -> float | None:
        """Transit time of a message between a client and a machine; None: it never arrives."""
        if self.random.random() < self.lost:
            return None
        return self.random.random() * self.slow_seconds * (100 if self.random.random() < self.late else 1)

    def ask(
        self,
        client: QuorumTables,
        what: Callable[[Machine], Any],
        done: Callable[[list[tuple[Machine, Any]] | Unanswered], None],
        needed: int | None = None,
        only: int | None = None,
    ) -> None:
        """Have all machines do something; ``done`` gets the answers of the first that are a majority, or ``needed``.

        ``only``: what is sent to the other machines does not arrive.
        """
        loop = asyncio.get_running_loop()
        answers: list[tuple[Machine, Any]] = []
        answered = False
        self.statements += 1
        caller, outside = copy_context(), Context()
        """Messages in transit do not stop when the client does."""

        def report(result: list[tuple[Machine, Any]] | Unanswered) -> None:
            nonlocal answered
            if client.held_until > loop.time():
                loop.call_at(client.held_until + self.random.random() / 1000, report, result)
            elif not answered:
                answered = True
                timeout.cancel()
                loop.call_soon(done, result, context=caller)

        def arrive(number: int) -> None:
            machine = self.machines[number]
            if machine.up:
                answer = what(machine)
                if (back := self.delay(client, number, back=True)) is not None:
                    loop.call_later(back, on_answer, machine, answer)

        def on_answer(machine: Machine, answer: Any) -> None:
            answers.append((machine, answer))
            if len(answers) == (needed or self.majority):
                report(list(answers))

        def send() -> None:
            for number in range(len(self.machines)):
                if only not in (None, number):
                    continue
                if (there := self.delay(client, number, back=False)) is not None:
                    loop.call_at(max(loop.time(), client.waits_until) + there, arrive, number)

        timeout = loop.call_later(self.timeout_seconds, lambda: report(Unanswered("no answer in time")))
        outside.run(send)


class QuorumTables:
    """One client's view of them.  Implements :class:`backend.journal.cassandra.journal.CheckedTables`."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self.held_until = 0.0
        """Answers do not reach this client before: it stands still, or the way back to it is cut."""
        self.waits_until = 0.0
        """Earliest time at which its messages arrive."""
        self._client = self
        self._needed: int | None = None

    def at_consistency_all(self) -> QuorumTables:
        tables = copy(self)
        tables._needed = len(self._machines.machines)
        return tables

    async def check(self) -> None:
        """They lose nothing that they have."""

    def _write(self, change: Callable[[Machine], None], done: Written) -> None:
        self._machines.ask(self, change, lambda found: done(found if isinstance(found, Unanswered) else None))

    async def _written(self, change: Callable[[Machine], None]) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: BaseException | None) -> None:
            if not future.done():
                future.set_result(None) if error is None else future.set_exception(error)

        self._write(change, done)
        await future

    def _select(self, partition: Key, done: Callable[[dict[Key, Any] | Unanswered], None]) -> None:
        """Rows that a majority has, once a majority has all of them."""

        def read(found: list[tuple[Machine, tuple[int, dict[Key, tuple[int, Any]]]]] | Unanswered) -> None:
            if isinstance(found, Unanswered):
                done(found)
                return
            merged: dict[Key, tuple[int, Any]] = {}
            grave = max(buried for _, (buried, _) in found)
            for _, (_, cells) in found:
                for row, cell in cells.items():
                    if cell[0] > grave and (row not in merged or cell[0] > merged[row][0]):
                        merged[row] = cell
            for machine, _ in found if self._machines.repairs else ():
                machine.delete(partition, grave)
                for row, (timestamp, value) in merged.items():
                    machine.store(partition, row, timestamp, value)
            done({row: value for row, (_, value) in sorted(merged.items())})

        self._machines.ask(
            self._client,
            lambda machine: (machine.graves.get(partition, -1), machine.partition(partition)),
            read,
            self._needed,
        )

    async def _selected(self, partition: Key) -> dict[Key, Any]:
        future: asyncio.Future[dict[Key, Any]] = asyncio.get_running_loop().create_future()

        def done(found: dict[Key, Any] | Unanswered) -> None:
            if not future.done():
                future.set_exception(found) if isinstance(found, Unanswered) else future.set_result(found)

        self._select(partition, done)
        return await future

    # --- Tables -------------------------------------------------------------------------------------------

    def put_row(self, log_id: int, segment: int, row: int, data: bytes, done: Written) -> None:
        self._write(lambda machine: machine.store(("journal", log_id, segment), (row,), 1, data), done)

    def put_row_at_all(self, log_id: int, segment: int, row: int, data: bytes, done: Written) -> None:
        self._machines.ask(
            self,
            lambda machine: machine.store(("journal", log_id, segment), (row,), 1, data),
            lambda found: done(found if isinstance(found, Unanswered) else None),
            len(self._machines.machines),
        )

    def read_state(self, log_id: int, done: StateRead) -> None:
        self._select(("entry", log_id), lambda found: done(found if isinstance(found, Unanswered) else found.get(())))

    async def row_sizes(self, log_id: int, segment: int) -> list[tuple[int, int]]:
        return [(row, len(data)) for (row,), data in (await self._selected(("journal", log_id, segment))).items()]

    async def get_rows(self, log_id: int, segment: int, rows: Sequence[int]) -> dict[int, bytes]:
        found = await self._selected(("journal", log_id, segment))
        return {row: found[row,] for row in rows if (row,) in found}

    async def add_segment(self, log_id: int, segment: int) -> None:
        await self._written(lambda machine: machine.store(("segments", log_id, segment), (segment,), 1, True))

    async def segments(self, log_id: int) -> list[int]:
        found: set[int] = set()
        known = {key[2] for one in self._machines.machines for key in one.cells if key[:2] == ("segments", log_id)}
        for segment in known:
            found.update(row for (row,) in await self._selected(("segments", log_id, segment)))
        return sorted(found)

    async def drop_segment(self, log_id: int, segment: int) -> None:
        await self._written(lambda machine: machine.delete(("journal", log_id, segment), 2))
        await self._written(lambda machine: machine.delete(("segments", log_id, segment), 2))

    async def put_file(self, log_id: int, file: int, chunks: Sequence[bytes]) -> None:
        size_bytes = sum(map(len, chunks))
        assert all(len(chunk) == BLOCK_BYTES for chunk in chunks[:-1])
        await self._written(lambda machine: machine.store(("files", log_id, file), (file,), 1, size_bytes))
        for number, chunk in enumerate(chunks):
            await self._written(lambda machine, n=number, c=chunk: machine.store(("pieces", log_id, file), (n,), 1, c))  # type: ignore[misc]

    async def get_bytes(self, log_id: int, file: int, offset: int, length: int) -> bytes:
        wanted = blocks_of(offset, length)
        found = await self._selected(("pieces", log_id, file))
        skipped = offset - wanted.start * BLOCK_BYTES
        return b"".join(found.get((number,), b"") for number in wanted)[skipped : skipped + length]

    async def files(self, log_id: int) -> list[tuple[int, int]]:
        known = {key[2] for one in self._machines.machines for key in one.cells if key[:2] == ("files", log_id)}
        found: list[tuple[int, int]] = []
        for file in sorted(known):
            found += [(file, size) for size in (await self._selected(("files", log_id, file))).values()]
        return found

    async def drop_file(self, log_id: int, file: int, size_bytes: int) -> None:
        await self._written(lambda machine: machine.delete(("pieces", log_id, file), 2))
        await self._written(lambda machine: machine.delete(("files", log_id, file), 2))

    async def add_extent(self, shard: int, extent: ExtentId) -> None:
        await self._written(lambda machine: machine.store(("extents", shard, extent), extent, 1, True))

    async def put_blocks(self, extent: ExtentId, blocks: Sequence[ExtentBlock]) -> None:
        for start, data in blocks:
            await self._written(lambda machine, s=start, d=data: machine.store(("blocks", extent), (s,), 1, d))  # type: ignore[misc]

    async def get_blocks(
        self, extent: ExtentId, start: int, end: int, blocks_max: int = BLOCKS_PER_READ
    ) -> list[ExtentBlock]:
        found = await self._selected(("blocks", extent))
        return [ExtentBlock(at, data) for (at,), data in found.items() if start <= at < end][:blocks_max]

    async def extents(self, shard: int) -> list[ExtentId]:
        known = {key[2] for one in self._machines.machines for key in one.cells if key[:2] == ("extents", shard)}
        return [extent for extent in sorted(known) if await self._selected(("extents", shard, extent))]

    async def drop_extent(self, shard: int, extent: ExtentId) -> None:
        await self._written(lambda machine: machine.delete(("blocks", extent), 2))
        await self._written(lambda machine: machine.delete(("extents", shard, extent), 2))
