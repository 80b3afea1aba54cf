"""Names of the queues with a tag, found in the tags of all queues of an account.

The tags are read from the metadata in pages.  What was found is used for a multiple of the time that it took, and an
account's tags are read by one caller at a time, so that reading costs a bounded share of the time, however many
queues there are.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import Final, NamedTuple, Protocol
from weakref import WeakValueDictionary

from frontend.rest.live.queue_summaries import FRESH_SECONDS, KEPT_QUEUES_MAX, QUEUES_MAX, SHARE, SummaryTooLarge

TAGS_AT_ONCE: Final = 500
"""Queues in one page of tags; 50 tags of the greatest length each are 10 MB."""


class QueueTags(Protocol):
    """The tags of queues (:class:`~metadata_service.store.QueueStore`)."""

    async def list_queue_tags(
        self, account: str, *, after: str = "", limit: int
    ) -> list[tuple[str, dict[str, str]]]: ...


class Tag(NamedTuple):
    """A tag that queues are looked for with."""

    key: str
    value: str | None
    """Its value; None: any."""

    @classmethod
    def parse(cls, text: str) -> Tag:
        """Parse KEY or KEY=VALUE."""
        key, separator, value = text.partition("=")
        return cls(key, value if separator else None)

    def is_in(self, tags: dict[str, str]) -> bool:
        return self.key in tags and self.value in (None, tags[self.key])


class FoundQueues(NamedTuple):
    """Names of the queues with a tag, and the time of the loop until which they are used."""

    names: frozenset[str]
    until: float


class TaggedQueues:
    """Queues by the tags that were asked for last."""

    def __init__(self, metadata: QueueTags) -> None:
        self._metadata = metadata
        self._known: OrderedDict[tuple[str, Tag], FoundQueues] = OrderedDict()
        self._reading: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def names(self, account: str, tag: Tag) -> FoundQueues:
        """Return the names of the account's queues with the tag.

        Raises :class:`SummaryTooLarge` and the store's errors.
        """
        known = self._fresh(account, tag)
        if known is None:
            lock = self._reading.get(account)
            if lock is None:
                lock = self._reading[account] = asyncio.Lock()
            async with lock:  # another caller may have read them meanwhile
                known = self._fresh(account, tag) or await self._read(account, tag)
        return known

    def _fresh(self, account: str, tag: Tag) -> FoundQueues | None:
        known = self._known.get((account, tag))
        if known is None or asyncio.get_running_loop().time() >= known.until:
            return None
        self._known.move_to_end((account, tag))
        return known

    async def _read(self, account: str, tag: Tag) -> FoundQueues:
        started = time.perf_counter()
        names: list[str] = []
        last, count = "", 0
        while True:
            page = await self._metadata.list_queue_tags(account, after=last, limit=TAGS_AT_ONCE)
            names += [name for name, tags in page if tag.is_in(tags)]
            count += len(page)
            if count > QUEUES_MAX:
                raise SummaryTooLarge
            if len(page) < TAGS_AT_ONCE:
                break
            last = page[-1][0]
        used_s = max(FRESH_SECONDS, SHARE * (time.perf_counter() - started))
        found = FoundQueues(frozenset(names), asyncio.get_running_loop().time() + used_s)
        self._known[account, tag] = found
        self._known.move_to_end((account, tag))
        while len(self._known) > 1 and sum(len(one.names) + 100 for one in self._known.values()) > KEPT_QUEUES_MAX:
            self._known.popitem(last=False)
        return found
