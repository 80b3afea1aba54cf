"""The topics of Kafka's protocol as the metadata keep them, behind the frontend's cache."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from frontend.request.throttle import Throttle
from frontend.services import Services
from frontend.streams.catalog import CatalogRefusal
from frontend.streams.deletion import delete_stream
from frontend.streams.errors import ErrorCode
from metadata_service.clusters.policy import NoCluster
from metadata_service.nodes.cached_streams import StreamClient
from metadata_service.nodes.producer_ids import ProducerIds
from metadata_service.store import ConditionFailed, StreamExists, StreamNotFound, StreamStore, TooManyStreams
from metadata_service.streams import NewStream, Stream

PAGE: Final = 1000
"""Topics read from the store at once."""

log = logging.getLogger("holdfast.kafka")


class MetadataCatalog:
    """Implements :class:`frontend.streams.catalog.StreamCatalog`."""

    def __init__(self, services: Services, store: StreamStore | None, throttle: Throttle) -> None:
        """``store``: source of ids of producers, None where none are needed; topics are read through
        ``services.streams``.
        """
        assert services.streams is not None
        self._services = services
        self._streams: StreamClient = services.streams
        self._throttle = throttle
        self._producer_ids = None if store is None else ProducerIds(store)

    # --- reads ---

    def cached(self, account: str, name: str) -> Stream | None:
        return self._streams.cached(account, name)

    async def reread(self, account: str, name: str) -> Stream | None:
        try:
            return await self._streams.get(account, name)
        except StreamNotFound:
            return None

    async def find_by_id(self, account: str, topic_id: bytes) -> Stream | None:
        found = self._streams.cached_topic(account, topic_id)
        if found is not None:
            return found
        try:
            return await self._streams.get_topic(account, topic_id)
        except StreamNotFound:
            return None

    async def list_streams(self, account: str) -> list[Stream]:
        found: list[Stream] = []
        while page := await self._streams.list_streams(account, after=found[-1].name if found else "", limit=PAGE):
            found += page
        return found

    # --- changes ---

    async def create(self, account: str, name: str, settings: Mapping[str, str], partitions: int) -> Stream:
        streams_max, partitions_max = await self._throttle.topics_max(account)
        now_ms, clusters = self._services.now_ms(), self._clusters(account, name, partitions)
        try:
            created = await self._streams.create(
                NewStream(account, name, dict(settings), {}, now_ms, clusters, streams_max, partitions_max)
            )
        except StreamExists:
            raise CatalogRefusal(ErrorCode.TOPIC_ALREADY_EXISTS) from None
        except TooManyStreams as error:
            raise CatalogRefusal(ErrorCode.POLICY_VIOLATION, str(error)) from None
        except ValueError as error:
            raise CatalogRefusal(ErrorCode.INVALID_PARTITIONS, str(error)) from None
        await self._check_owner(created)
        return created

    async def delete(self, stream: Stream) -> None:
        try:
            await delete_stream(self._services, stream)
        except StreamNotFound:
            raise CatalogRefusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) from None

    async def add_partitions(self, stream: Stream, count: int) -> Stream:
        _, partitions_max = await self._throttle.topics_max(stream.account)
        clusters = self._clusters(stream.account, stream.name, count)[stream.partitions :]
        try:
            return await self._streams.add_partitions(stream, clusters, partitions_max=partitions_max)
        except StreamNotFound:
            raise CatalogRefusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) from None
        except TooManyStreams as error:
            raise CatalogRefusal(ErrorCode.POLICY_VIOLATION, str(error)) from None
        except ConditionFailed:
            raise self._changed_meanwhile(stream) from None
        except ValueError as error:
            raise CatalogRefusal(ErrorCode.INVALID_PARTITIONS, str(error)) from None

    async def set_settings(self, stream: Stream, settings: Mapping[str, str]) -> Stream:
        try:
            return await self._streams.update(stream, now_ms=self._services.now_ms(), settings=settings)
        except StreamNotFound:
            raise CatalogRefusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) from None
        except ConditionFailed:
            raise self._changed_meanwhile(stream) from None

    # --- groups and producers ---

    async def group_cluster(self, account: str) -> int:
        return await self._streams.group_cluster(account, self._clusters(account, "", 1)[0])

    async def next_producer_id(self) -> int:
        assert self._producer_ids is not None
        return await self._producer_ids.allocate()

    # --- parts ---

    def _clusters(self, account: str, name: str, partitions: int) -> tuple[int, ...]:
        try:
            return tuple(self._services.clusters_for(account, name, partitions))
        except NoCluster as error:
            log.error("topic %r of account %s gets no partitions: %s", name, account, error)
            raise CatalogRefusal(
                ErrorCode.REQUEST_TIMED_OUT, "No new partitions can be created at the moment. Try again."
            ) from None

    def _changed_meanwhile(self, stream: Stream) -> CatalogRefusal:
        self._streams.invalidate(stream.account, stream.name)
        return CatalogRefusal(ErrorCode.INVALID_REQUEST, "The topic was changed at the same time. Try again.")

    async def _check_owner(self, stream: Stream) -> None:
        """Delete a new topic again if its account was deleted meanwhile: it would never be deleted otherwise."""
        tenant = await self._services.credentials.store.get_tenant(stream.account)
        if tenant is None or tenant.state not in ("deleting", "deleted"):
            return
        with suppress(StreamNotFound):  # the deletion of the account has deleted it
            await self._streams.delete(stream)
        raise CatalogRefusal(ErrorCode.POLICY_VIOLATION, "The account was deleted.")
