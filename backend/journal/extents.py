"""The interface of the stores of extents (:mod:`backend.streams.extents` has their format).

An extent is written by one owner, in order: each append begins where the one before it ended, and bytes never change.
So a store may keep an extent as a file, or as rows of chunks that are written once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from typing import Protocol

from backend.extent_ids import ExtentId


class ExtentStore(Protocol):
    """Stores extents."""

    async def append(self, extent: ExtentId, offset: int, data: bytes) -> None:
        """Append data to an extent, of which ``offset`` bytes exist (0: create it), and make it durable.

        Raises :class:`~backend.api.StorageFull` and :class:`~backend.api.Unavailable`: then some of the data may be
        stored, and the caller must not append to this extent again.
        """

    async def read(self, extent: ExtentId, size_bytes: int, offset: int) -> bytes:
        """Return a range; fewer bytes if the extent ends before, or is missing.

        Bytes that the device has lost are other bytes than those written; the format's checksums show it.  Raises
        :class:`~backend.api.Unavailable` when the range cannot be read now.
        """

    async def delete(self, extents: Sequence[ExtentId]) -> None:
        """Delete extents durably.  Repeatable.  Raises :class:`~backend.api.Unavailable`."""

    def list_extents(self, shards: Collection[int]) -> AsyncIterator[list[ExtentId]]:
        """Yield all stored extents of partitions of these shards in parts, also those of other owners.

        Raises :class:`~backend.api.Unavailable`.
        """
