"""Immutable chunks of shards' states: the interface of their stores, and the manifest of a shard's checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from backend.engine.blocks import Ref
from metadata_service.models import ChunkRef


class ChunkDamaged(Exception):
    """A chunk differs from what was written."""

    def __init__(self, file: str, offset: int, what: str) -> None:
        super().__init__(f"{file}:{offset}: {what}")
        self.file = file
        self.offset = offset


class ChunkFile(NamedTuple):
    log_id: int
    file: int
    size_bytes: int


class ChunkWriter(Protocol):
    """Collects chunks.  The reference of each is known at once, so that chunks can name each other."""

    def add(self, chunk: bytes) -> ChunkRef:
        """Add a chunk; return its reference, valid once :meth:`finish` has returned."""

    async def finish(self) -> None:
        """Make the chunks durable.  Raises :class:`StorageFull`, :class:`Unavailable`; then none of them exists."""


class ChunkReader(Protocol):
    """Reads checkpoint chunks."""

    async def get(self, ref: ChunkRef) -> bytes:
        """Return a chunk.  Raises :class:`ChunkDamaged`, :class:`Unavailable`."""

    async def get_many(self, refs: Sequence[ChunkRef]) -> list[bytes]:
        """Return the chunks in the order of ``refs``.  Raises the errors of :meth:`get`."""


class ChunkStore(ChunkReader, Protocol):
    """Stores checkpoint chunks."""

    async def create_file(self, log_id: int) -> ChunkWriter:
        """Create a file of chunks."""

    async def drop_file(self, log_id: int, file: int) -> None:
        """Delete one writer's file.  Repeatable."""

    async def list_files(self, log_id: int) -> list[ChunkFile]:
        """Return the files of chunks of one log."""


class ShardManifest(msgspec.Struct, array_like=True):
    """The first chunk of a shard's checkpoint: references to the chunks of its partitions."""

    format: int
    partitions: list[tuple[int, Ref]]
    time_ms: int = 0
    """The shard's time."""
    clock_ms: int = 0
    """The owner's clock."""


MANIFEST_FORMAT = 1
encode_manifest = msgspec.msgpack.Encoder().encode
decode_manifest = msgspec.msgpack.Decoder(ShardManifest).decode
