"""How much each account stores on this node, for quotas.

Nobody keeps a sum for each account: each queue has its own (:attr:`~backend.engine.state.State.stored_bytes`), and they
are added up when somebody asks and the last sums are too old.  So a command costs nothing for it, however many queues
there are, and there is no second count that could drift from the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from backend.partition import Partition

KEPT_SECONDS = 0.5
"""Sums are not older than this, and what it takes to make them."""
AT_ONCE = 5_000
"""Partitions that are added up before others have a turn: about half a millisecond."""


class Usage:
    """The sums of all accounts."""

    def __init__(self, partitions: Mapping[int, Partition]) -> None:
        self._partitions = partitions
        self._sums: dict[str, int] = {}
        self._due = 0.0

    async def stored_bytes(self, account: str) -> int:
        """Of all messages in the account's queues here."""
        now = asyncio.get_running_loop().time()
        if now >= self._due:
            self._due = now + KEPT_SECONDS  # who asks meanwhile gets the last sums
            self._sums = await self._added_up()
        return self._sums.get(account, 0)

    async def _added_up(self) -> dict[str, int]:
        sums: dict[str, int] = {}
        for count, partition in enumerate(list(self._partitions.values()), 1):
            sums[partition.account] = sums.get(partition.account, 0) + partition.fold.stored_bytes
            if not count % AT_ONCE:
                await asyncio.sleep(0)
        return sums
