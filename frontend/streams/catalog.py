"""The interface to the metadata of topics, as handlers need it.

Names and topic ids are those of one account; nobody sees another account's topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from frontend.streams.errors import ErrorCode
from metadata_service.streams import Stream


class CatalogRefusal(Exception):
    """A change that was refused, with the error for the client.  Nothing was changed."""

    def __init__(self, code: ErrorCode, text: str = "") -> None:
        super().__init__(text or code.text)
        self.code = code
        self.text = text or code.text


class StreamCatalog(Protocol):
    """Topics of all accounts.  Reads may be up to a second old, unless they say otherwise.

    All methods that wait raise :class:`~metadata_service.store.StoreError` if the metadata cannot be reached.
    """

    def cached(self, account: str, name: str) -> Stream | None:
        """Return a topic without waiting; None: it is not cached, whether or not it exists."""

    async def reread(self, account: str, name: str) -> Stream | None:
        """Return a topic as it is now, for one that is not cached or whose cached state is outdated; None: none."""

    async def find_by_id(self, account: str, topic_id: bytes) -> Stream | None:
        """Return a topic of this account by its id in the protocol; None: there is none."""

    async def list_streams(self, account: str) -> list[Stream]:
        """All topics of the account, ordered by name, as they are now."""

    async def create(self, account: str, name: str, settings: Mapping[str, str], partitions: int) -> Stream:
        """Create a topic; ``settings`` are validated.

        Raises :class:`CatalogRefusal`: TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS,
        POLICY_VIOLATION.
        """

    async def delete(self, stream: Stream) -> None:
        """Delete a topic with its records.  Raises :class:`CatalogRefusal`: UNKNOWN_TOPIC_OR_PARTITION."""

    async def add_partitions(self, stream: Stream, count: int) -> Stream:
        """Give a topic so many partitions in all, if it is still as it was read.

        Raises :class:`CatalogRefusal`: UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS, POLICY_VIOLATION, and
        INVALID_REQUEST if it was changed in between.
        """

    async def set_settings(self, stream: Stream, settings: Mapping[str, str]) -> Stream:
        """Replace all settings, which are validated, if the topic is still as it was read.

        Raises :class:`CatalogRefusal`: UNKNOWN_TOPIC_OR_PARTITION, and INVALID_REQUEST if it was changed in between.
        """

    async def group_cluster(self, account: str) -> int:
        """Backend cluster of the account's consumer groups; it never changes, and is cached."""

    async def next_producer_id(self) -> int:
        """Return an id for an idempotent producer that nobody else has."""
