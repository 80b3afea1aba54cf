"""The frontend's view of streams: a store behind a cache.

Cache entries may be stale, as those of queues (:mod:`metadata_service.nodes.cached_client`): partitions are never
removed, so a stale entry names partitions that exist, and a deleted stream's partitions refuse calls.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from metadata_service.nodes.named_cache import NamedCache
from metadata_service.store import StreamExists, StreamNotFound, StreamStore
from metadata_service.streams import NewStream, Stream, stream_id_of
from telemetry import caches


class StreamClient(NamedCache[Stream]):
    """Cache of streams by account and name, and by topic id.  Keeps the ``limit`` most recently used streams."""

    def __init__(self, store: StreamStore, *, limit: int = 10_000) -> None:
        super().__init__("streams", limit)
        self._store = store
        self._names: OrderedDict[bytes, tuple[str, str]] = OrderedDict()
        """Account and name of streams by topic id, also of some that are no longer cached."""
        self._group_clusters: dict[str, int] = {}

    def _id(self, record: Stream) -> int:
        return record.stream_id

    # --- reads ---

    async def get(self, account: str, name: str) -> Stream:
        """Read the stream from the store.  Raises :class:`StreamNotFound`."""
        forgotten = self._forgotten
        caches.counts[self._miss] += 1
        try:
            stream = await self._store.get_stream(account, name)
        except StreamNotFound:
            self.invalidate(account, name)
            raise
        return self.remember(stream) if forgotten == self._forgotten else stream

    def cached_topic(self, account: str, topic_id: bytes) -> Stream | None:
        """The account's stream with this topic id, as cached; None if it is not cached."""
        key = self._names.get(topic_id)
        if key is None or key[0] != account:
            return None
        stream = self.cached(*key)
        return stream if stream is not None and stream.topic_id == topic_id else None

    async def get_topic(self, account: str, topic_id: bytes) -> Stream:
        """Read the account's stream with this topic id from the store.  Raises :class:`StreamNotFound`."""
        forgotten = self._forgotten
        caches.counts[self._miss] += 1
        stream_id = stream_id_of(topic_id)
        stream = await self._store.get_stream_by_id(stream_id) if 0 < stream_id < 1 << 62 else None
        if stream is None or stream.topic_id != topic_id or stream.account != account:
            raise StreamNotFound(topic_id.hex())
        return self.remember(stream) if forgotten == self._forgotten else stream

    async def by_id(self, stream_id: int) -> Stream | None:
        """Delegate to :meth:`StreamStore.get_stream_by_id`."""
        return await self._store.get_stream_by_id(stream_id)

    async def list_streams(self, account: str, *, after: str = "", limit: int) -> list[Stream]:
        """Call :meth:`StreamStore.list_streams` and cache the streams."""
        forgotten = self._forgotten
        streams = await self._store.list_streams(account, after=after, limit=limit)
        if forgotten == self._forgotten:
            for stream in streams:
                self.remember(stream)
        return streams

    # --- changes ---

    async def create(self, new: NewStream) -> Stream:
        """Call :meth:`StreamStore.create_stream` and cache the stream."""
        try:
            created = await self._store.create_stream(new)
        except StreamExists as error:
            self.remember(error.stream)
            raise
        return self.remember(created)

    async def update(
        self,
        stream: Stream,
        *,
        now_ms: int,
        settings: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Stream:
        """Call :meth:`StreamStore.update_stream` for the version of ``stream``, and cache the result."""
        return self.remember(
            await self._store.update_stream(
                stream.stream_id, stream.version, now_ms=now_ms, settings=settings, tags=tags
            )
        )

    async def add_partitions(
        self, stream: Stream, clusters: Sequence[int], *, partitions_max: int | None = None
    ) -> Stream:
        """Call :meth:`StreamStore.add_partitions` for the version of ``stream``, and cache the result."""
        return self.remember(
            await self._store.add_partitions(stream.stream_id, stream.version, clusters, partitions_max=partitions_max)
        )

    async def delete(self, stream: Stream) -> Stream:
        """Call :meth:`StreamStore.delete_stream` and drop the cached stream."""
        self.invalidate(stream.account, stream.name)
        deleted = await self._store.delete_stream(stream.stream_id)
        self.invalidate(stream.account, stream.name)
        return deleted

    # --- groups ---

    async def group_cluster(self, account: str, proposed: int) -> int:
        """Call :meth:`StreamStore.group_cluster` once for each account: its answer never changes."""
        known = self._group_clusters.get(account)
        if known is None:
            known = await self._store.group_cluster(account, proposed)
            assert known is not None
            if len(self._group_clusters) >= self._limit:
                self._group_clusters.clear()
            self._group_clusters[account] = known
        return known

    def remember(self, record: Stream) -> Stream:
        self._names[record.topic_id] = (record.account, record.name)
        self._names.move_to_end(record.topic_id)
        if len(self._names) > self._limit:
            self._names.popitem(last=False)
        return super().remember(record)
