"""Stored bytes of each account on this node, for quotas.

No sum is maintained for an account: each queue has its own (:attr:`~backend.engine.state.State.stored_bytes`), and they
are summed on demand if the last sums are too old.  So it costs a command nothing, however many queues there are, and no
second count can drift from the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from backend.serving.partition import OpenPartition

KEPT_SECONDS = 0.5
"""Maximum age of the sums, without the time to compute them."""
AT_ONCE = 5_000
"""Partitions summed before other tasks get a turn: about half a millisecond."""


class AccountUsage:
    """The sums of all accounts."""

    def __init__(self, partitions: Mapping[int, OpenPartition]) -> None:
        self._partitions = partitions
        self._sums: dict[str, int] = {}
        self._due = 0.0

    async def stored_bytes(self, account: str) -> int:
        """Return the bytes of all messages in the account's queues here."""
        now = asyncio.get_running_loop().time()
        if now >= self._due:
            self._due = now + KEPT_SECONDS  # concurrent callers get the last sums
            self._sums = await self._added_up()
        return self._sums.get(account, 0)

    async def _added_up(self) -> dict[str, int]:
        sums: dict[str, int] = {}
        for count, partition in enumerate(list(self._partitions.values()), 1):
            sums[partition.account] = sums.get(partition.account, 0) + partition.fold.stored_bytes
            if not count % AT_ONCE:
                await asyncio.sleep(0)
        return sums
