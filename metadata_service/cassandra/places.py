"""Marks that map the ids of queues and streams to their accounts and names.

An object is a row under its name, and in addition a mark maps its id to that name.  Creation and deletion therefore
have two phases:

* creation: first the id's mark, then the object under its name.  If the process ends in between, the mark leads
  to a name that is free or another object's; readers compare the ids, so they ignore the mark.
* deletion: first the object is removed, then the id's mark.  The same holds in between.

A collector removes orphaned marks.  Before that it raises the account's *floor*: a creation whose id is below can no
longer finish (it takes another id: :class:`BelowFloor`), so the mark of an object still being created is never removed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec

from metadata_service.cassandra.credentials import text
from metadata_service.cassandra.driver.records import Records
from metadata_service.store import StoreUnavailable

ID_COUNTER: Final = "queue"
"""Counter of the ids of queues and streams."""
_IDS_TOGETHER: Final = 1000
"""Number of ids whose marks are one space."""


class BelowFloor(Exception):
    """The collector raised the floor above the id of this creation."""


class IdPlace(msgspec.Struct, frozen=True, array_like=True):
    """Value of a mark."""

    account: str
    name: str


_decode = msgspec.json.Decoder(IdPlace).decode


class IdPlaces:
    """Marks of one kind of objects, in the spaces that begin with ``prefix``."""

    def __init__(self, records: Records, prefix: str) -> None:
        self._records = records
        self._prefix = prefix

    async def get(self, number: int) -> IdPlace | None:
        space, key = place_key(self._prefix, number)
        found = await self._records.some_marks(space, [key])
        return _decode(found[key]) if found else None

    async def set(self, number: int, account: str, name: str) -> None:
        await self._records.mark(*place_mark(self._prefix, number, account, name))

    async def remove(self, number: int) -> None:
        """Remove the mark of an id that is never used again."""
        await self._records.unmark(*place_key(self._prefix, number))

    async def forget(self, number: int) -> None:
        """Remove a mark if Cassandra answers; otherwise the collector removes it, because it leads to nothing."""
        try:
            await self.remove(number)
        except StoreUnavailable:
            pass

    async def pages(self) -> AsyncIterator[list[tuple[int, IdPlace]]]:
        """All ids with their places, some at a time."""
        for number in range(await self._records.count(ID_COUNTER) // _IDS_TOGETHER + 1):
            space = place_space(self._prefix, number)
            yield [(int(key), _decode(value)) async for key, value in self._records.all_marks(space)]


def place_space(prefix: str, number: int) -> str:
    return f"{prefix}/{number}"


def place_key(prefix: str, number: int) -> tuple[str, str]:
    """Space and key of an id's mark."""
    return place_space(prefix, number // _IDS_TOGETHER), f"{number:020d}"


def place_mark(prefix: str, number: int, account: str, name: str) -> tuple[str, str, str]:
    """Space, key and value of an id's mark."""
    return (*place_key(prefix, number), text(IdPlace(account, name)))
