"""Pieces of checkpoints that are read before the shards come that they are of.

A shard that is handed over is served by nobody until its heir has read it.  The checkpoint that it comes with names
mostly pieces that the one before it named, too.  So whoever is to have a shard reads those while its owner serves on,
and makes blocks of them as far as it can.

Nothing rests on it: a piece never changes, and what is not here is read when it is needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from backend.api import Unavailable
from backend.checkpointer import decode_manifest
from backend.engine import snapshot
from backend.engine.blocks import Ref
from backend.engine.snapshot import ReadyBlock
from backend.journal.checkpoints import PieceDamaged, PieceReader
from backend.replay import SHARDS_TOGETHER, one_by_one
from backend.shards import as_piece, as_ref
from metadata_service.models import LogEntry, PieceRef, ShardEntry

logger = logging.getLogger(__name__)

BYTES_MOST = 64 << 20
"""So many bytes of pieces are kept at most: the blocks of three million messages, which take 110 MB when they are made,
as they do afterwards."""

Look = Callable[[Iterable[LogEntry]], Awaitable[Any]]
"""Has to be done before anything of these logs is read (:meth:`~backend.journal.interface.Journal.look`)."""
Start = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
"""Runs a task until it ends, or all that is done for this incarnation does."""


class ReadAhead:
    """What has been read of the shards that are on their way to this node."""

    def __init__(self, look: Look, pieces: PieceReader, start: Start, bytes_most: int = BYTES_MOST) -> None:
        self._look = look
        self._pieces = pieces
        self._start = start
        self._bytes_most = bytes_most
        self._reads: dict[int, _Read] = {}
        self._free = asyncio.Semaphore(SHARDS_TOGETHER)

    def expect(
        self, entries: Iterable[ShardEntry], logs: Collection[LogEntry], given: Collection[int] = frozenset()
    ) -> None:
        """These shards are on their way, those were ``given`` and are about to come (:meth:`come`), and no others: what
        was read of others is let go of.

        To be said again when a checkpoint was taken of one, so that what is new in it is read, too.  ``logs`` are those
        that there are.
        """
        coming = {entry.shard: entry for entry in entries}
        for shard in self._reads.keys() - coming.keys() - set(given):
            self._reads.pop(shard).stop()
        for shard, entry in coming.items():
            if entry.checkpoint is None:
                continue
            read = self._reads.setdefault(shard, _Read())
            if read.checkpoint == entry.checkpoint and not 0 < read.skipped_bytes <= self._room():
                read.version = entry.version
            elif read.task is None or read.task.done():
                read.checkpoint, read.version, read.finished = entry.checkpoint, entry.version, False
                read.task = self._start(self._read(read, entry.checkpoint, logs), f"reading shard {shard} ahead")

    def finished(self) -> dict[int, int]:
        """The shards of which all was read that there is room for, and the versions of their entries that name it."""
        return {shard: read.version for shard, read in self._reads.items() if read.finished}

    def come(self, shards: Collection[int]) -> tuple[PieceReader, Mapping[Ref, ReadyBlock]]:
        """These shards are here; by what is returned their checkpoints are read, once."""
        known: dict[PieceRef, bytes] = {}
        ready: dict[Ref, ReadyBlock] = {}
        for shard in shards:
            read = self._reads.pop(shard, None)
            if read is not None:
                read.stop()
                known.update(read.pieces)
                ready.update(read.ready)
        return _Known(known, self._pieces) if known else self._pieces, ready

    async def _read(self, read: _Read, checkpoint: PieceRef, logs: Collection[LogEntry]) -> None:
        def fetch(refs: list[Ref]) -> AsyncGenerator[bytes, None]:
            return one_by_one(_Known(read.pieces, self._pieces), [as_piece(ref) for ref in refs])

        try:
            async with self._free:
                await self._look(logs)
                partitions = [ref for _, ref in decode_manifest(await self._pieces.get(checkpoint)).partitions]
                await self._keep(read, partitions)
                hanging = [await snapshot.blocks_and_others(ref, fetch) for ref in partitions]
                read.forget_but({*partitions, *(ref for both in hanging for refs in both for ref in refs)})
                for blocks, others in hanging:
                    await self._keep(read, others)
                    await self._keep(read, blocks, blocks=True)
            read.finished = True
        except (Unavailable, OSError) as error:
            logger.debug("not read ahead, this time: %s", error)
            read.checkpoint = None
        except (PieceDamaged, msgspec.MsgspecError, ValueError, OverflowError) as error:
            # Its owner has taken another checkpoint meanwhile, or whoever needs the piece will say what is wrong.
            logger.debug("not read ahead: %s", error)
        except Exception:
            logger.exception("a shard could not be read ahead")
        finally:
            read.count()

    def _room(self) -> int:
        return self._bytes_most - sum(one.size_bytes for one in self._reads.values())

    async def _keep(self, read: _Read, refs: Iterable[Ref], *, blocks: bool = False) -> None:
        missing = []
        room = self._room()
        for ref in refs:
            piece = as_piece(ref)
            if piece in read.pieces or ref in read.ready:
                continue
            if piece.length > room:
                read.skipped_bytes = piece.length
                continue
            missing.append(piece)
            room -= piece.length
            read.size_bytes += piece.length
        arriving = iter(missing)
        async for data in one_by_one(self._pieces, missing):
            piece = next(arriving)
            made = snapshot.ready(data) if blocks else None
            if made is None:
                read.pieces[piece] = data
            else:
                read.ready[as_ref(piece)] = made


class _Read:
    """What was read of one shard."""

    def __init__(self) -> None:
        self.pieces: dict[PieceRef, bytes] = {}
        self.ready: dict[Ref, ReadyBlock] = {}
        """What was made of others."""
        self.size_bytes = 0
        """Of all these, and of those that are being read."""
        self.checkpoint: PieceRef | None = None
        """The one that was, or is being, read."""
        self.version = 0
        """Of the entry that names it."""
        self.finished = False
        self.task: asyncio.Task[None] | None = None

    def forget_but(self, named: Collection[Ref]) -> None:
        """Keep no others than these.  Nothing has been skipped of them yet."""
        self.pieces = {piece: data for piece, data in self.pieces.items() if as_ref(piece) in named}
        self.ready = {ref: made for ref, made in self.ready.items() if ref in named}
        self.skipped_bytes = 0
        self.count()

    def count(self) -> None:
        """Nothing is being read."""
        self.size_bytes = sum(piece.length for piece in self.pieces) + sum(as_piece(ref).length for ref in self.ready)

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()


class _Known:
    """Implements :class:`~backend.journal.checkpoints.PieceReader`: some pieces are known."""

    def __init__(self, known: dict[PieceRef, bytes], others: PieceReader) -> None:
        self._known = known
        self._others = others

    async def get(self, ref: PieceRef) -> bytes:
        return (await self.get_many([ref]))[0]

    async def get_many(self, refs: Sequence[PieceRef]) -> list[bytes]:
        missing = [ref for ref in refs if ref not in self._known]
        read = dict(zip(missing, await self._others.get_many(missing), strict=True)) if missing else {}
        return [read[ref] if ref in read else self._known[ref] for ref in refs]
