"""``holdfast backend`` on one machine: it owns the data folder, which the frontends share."""

from __future__ import annotations

import os

from backend.rpc.address import Address
from holdfast import __version__, logs
from holdfast.process.backend import BackendRole, alone, run_backend
from holdfast.process.serve import (
    log,
    prepare,
    run,
    stop_of_signals,
)
from holdfast.runtime.data_folder import FolderLock
from holdfast.runtime.observability import Observability
from holdfast.runtime.peer_tls import listening
from holdfast.settings import Settings, cluster_secret
from metadata_service.sqlite.store import SQLiteStore


def backend(settings: Settings) -> int:
    """Serve the journal until a signal; returns the exit code.  Raises as :func:`holdfast.process.serve.serve`."""
    secret = cluster_secret(settings)
    listen = listening(settings)
    logs.set_up(settings, "backend")
    claim = FolderLock(settings.data)
    try:
        return run(_backend(settings, listen, secret))
    finally:
        claim.release()


async def _backend(settings: Settings, listen: Address, secret: bytes) -> int:
    store = SQLiteStore(settings.metadata_file)
    try:
        await prepare(settings, store)
    finally:
        await store.close()

    def started(role: BackendRole) -> None:
        facts = logs.facts(version=__version__, address=role.address, data=settings.data, pid=os.getpid())
        log.info("started %s", facts)

    observed = await Observability.start(settings, "backend")
    try:
        code = await run_backend(settings, alone(listen), secret, stop_of_signals(), started, observed)
    finally:
        await observed.close()
    log.info("stopped")
    return code
