"""``holdfast damage``: list the damaged parts of the journal, and accept their loss."""

from __future__ import annotations

import asyncio
import sys

from backend.api import BackendError
from backend.cluster.liveness import live_nodes
from backend.journal.types import LogInUse
from backend.recovery.damage import accept as accept_loss
from backend.recovery.damage import survey
from holdfast.commandline.offline import run_stopped
from holdfast.runtime.stores import Stores
from holdfast.settings import Settings
from metadata_service.store import StoreError


def show_damage(settings: Settings, *, accept: bool) -> int:
    """Print the damage, accept it if requested; returns the exit code: 1 if it cannot be examined.

    Works on a data folder, or in Cassandra on the backend cluster in the settings, all of whose nodes must be down.
    """
    expected = (StoreError, BackendError, LogInUse, OSError)
    if not settings.cassandra:
        return run_stopped(settings, lambda: _show(settings, accept), expected)
    try:
        return asyncio.run(_show(settings, accept))
    except expected as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 1


async def _show(settings: Settings, accept: bool) -> int:
    stores = Stores(settings)
    try:
        entries = await stores.entries()
        if settings.cassandra and (nodes := await live_nodes(entries)):
            print(
                f"holdfast: nodes of cluster {settings.cluster} live: {', '.join(sorted(nodes))}. Stop them "
                "first; nothing was examined",
                file=sys.stderr,
            )
            return 1
        found = await survey((await stores.journal())(), entries)
        if not (found.shard_damage or found.logs):
            print("No damage prevents a queue from being served.")
            return 0
        print(found)
        where = f"with cassandra and cluster {settings.cluster}" if settings.cassandra else f"--data {settings.data}"
        if not accept:
            print(f"\nEverything else is served.  To accept this loss: holdfast damage accept {where}")
            return 0
        await accept_loss(found, entries)
        print("\nAccepted.  Start the service and check again: this may have hidden more damage.")
        return 0
    finally:
        await stores.close()
