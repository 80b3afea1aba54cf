"""Checkpoint chunks on Cassandra: files of bytes, split into blocks, under the log that wrote them.

The file numbers of a log increase and are never reused, so late writes of a file that failed do not appear in another
file.  Only the incarnation that owns a log creates files under it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from isal.isal_zlib import crc32

from backend.api import Unavailable
from backend.journal.cassandra.table_interface import BLOCK_BYTES, Tables, Unanswered
from backend.journal.checkpoints import ChunkDamaged, ChunkFile
from metadata_service.models import ChunkRef

GAP_BYTES = 64 << 10
SPAN_BYTES = 2 << 20
"""Maximum distance of chunks that are read together, and maximum size of such a read."""
SPANS_AT_ONCE = 4
"""Number of these reads in progress together."""


class CassandraChunkWriter:
    """Writes one file of chunks."""

    def __init__(self, tables: Tables, log_id: int, number: int) -> None:
        self._tables = tables
        self._log_id = log_id
        self._number = number
        self._blocks: list[bytes] = []
        self._rest = bytearray()
        """Bytes that do not fill a block yet."""
        self._offset = 0

    def add(self, chunk: bytes) -> ChunkRef:
        ref = ChunkRef(self._log_id, self._number, self._offset, len(chunk), crc32(chunk))
        self._offset += len(chunk)
        self._rest += chunk
        if len(self._rest) >= BLOCK_BYTES:
            whole = len(self._rest) // BLOCK_BYTES * BLOCK_BYTES
            self._blocks += [bytes(self._rest[at : at + BLOCK_BYTES]) for at in range(0, whole, BLOCK_BYTES)]
            del self._rest[:whole]
        return ref

    async def finish(self) -> None:
        if self._rest:
            self._blocks.append(bytes(self._rest))
        if not self._blocks:
            return
        try:
            await self._tables.put_file(self._log_id, self._number, self._blocks)
        except Unanswered as error:
            raise Unavailable(f"a checkpoint cannot be written: {error}") from error


class CassandraChunks:
    """Implements :class:`backend.journal.checkpoints.ChunkStore`."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._next: dict[int, int] = {}

    async def create_file(self, log_id: int) -> CassandraChunkWriter:
        number = self._next[log_id] = self._next.get(log_id, 0) + 1
        return CassandraChunkWriter(self._tables, log_id, number)

    async def get(self, ref: ChunkRef) -> bytes:
        return (await self.get_many([ref]))[0]

    async def get_many(self, refs: Sequence[ChunkRef]) -> list[bytes]:
        found: dict[ChunkRef, bytes] = {}
        spans = _spans(refs)
        try:
            for at in range(0, len(spans), SPANS_AT_ONCE):
                for chunks in await asyncio.gather(*map(self._get_span, spans[at : at + SPANS_AT_ONCE])):
                    found.update(chunks)
        except Unanswered as error:
            raise Unavailable(f"a checkpoint cannot be read: {error}") from error
        return [found[ref] for ref in refs]

    async def _get_span(self, span: list[ChunkRef]) -> dict[ChunkRef, bytes]:
        first, last = span[0], span[-1]
        length = last.offset + last.length - first.offset
        data = memoryview(await self._tables.get_bytes(first.log_id, first.file, first.offset, length))
        if len(data) < length:  # a single replica may have the rest
            data = memoryview(
                await self._tables.at_consistency_all().get_bytes(first.log_id, first.file, first.offset, length)
            )
        found = {}
        for ref in span:
            chunk = bytes(data[ref.offset - first.offset :][: ref.length])
            if len(chunk) != ref.length or crc32(chunk) != ref.crc:
                what = "the chunk is damaged" if len(chunk) == ref.length else "the chunk is missing"
                raise ChunkDamaged(f"checkpoints, log {ref.log_id}, file {ref.file}", ref.offset, what)
            found[ref] = chunk
        return found

    async def drop_file(self, log_id: int, file: int) -> None:
        try:
            for number, size_bytes in await self._tables.files(log_id):
                if number == file:
                    await self._tables.drop_file(log_id, file, size_bytes)
        except Unanswered as error:
            raise Unavailable(f"a checkpoint cannot be deleted: {error}") from error

    async def list_files(self, log_id: int) -> list[ChunkFile]:
        try:
            return [ChunkFile(log_id, number, size_bytes) for number, size_bytes in await self._tables.files(log_id)]
        except Unanswered as error:
            raise Unavailable(f"checkpoints cannot be listed: {error}") from error


def _spans(refs: Sequence[ChunkRef]) -> list[list[ChunkRef]]:
    """Split references into runs of one file that are worth reading together."""
    spans: list[list[ChunkRef]] = []
    for ref in sorted(set(refs), key=lambda one: (one.log_id, one.file, one.offset)):
        if spans:
            first, last = spans[-1][0], spans[-1][-1]
            if (
                (ref.log_id, ref.file) == (last.log_id, last.file)
                and ref.offset <= last.offset + last.length + GAP_BYTES
                and ref.offset + ref.length <= first.offset + SPAN_BYTES
            ):
                spans[-1].append(ref)
                continue
        spans.append([ref])
    return spans
