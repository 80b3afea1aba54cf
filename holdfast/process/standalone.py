"""``holdfast backend`` and ``holdfast frontend``: parts of the service, each run by a process manager.

They are on one machine and share the data folder: the backend owns it, and the frontends use its metadata.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Coroutine
from typing import Any

import uvloop

from backend.rpc.address import Address
from backend.rpc.client import RemoteBackend
from holdfast import __version__, logs
from holdfast.http.certificate import Certificate
from holdfast.http.listener import bind
from holdfast.process.backend import BackendRole, alone, run_backend
from holdfast.process.frontend import Connect, Frontend, run_frontend
from holdfast.process.serve import allow_open_files, certificate_of, log, prepare, publish_endpoint, stop_or_quit
from holdfast.runtime.data_folder import Claim, Use
from holdfast.runtime.endpoint_file import EndpointFile
from holdfast.runtime.observability import Observed
from holdfast.runtime.peer_tls import listening
from holdfast.settings import Settings, cluster_secret
from metadata_service.sqlite.store import SQLiteStore


def backend(settings: Settings) -> int:
    """Serve the journal until a signal; returns the exit code.  Raises as :func:`holdfast.process.serve.serve`."""
    secret = cluster_secret(settings)
    listen = listening(settings)
    logs.set_up(settings, "backend")
    claim = Claim(settings.data)
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

    observed = await Observed.start(settings, "backend")
    try:
        code = await run_backend(settings, alone(listen), secret, stop_of_signals(), started, observed)
    finally:
        await observed.close()
    log.info("stopped")
    return code


def frontend(settings: Settings, backend: Address) -> int:
    """Serve clients until a signal; returns the exit code.  Raises as :func:`holdfast.process.serve.serve`."""
    secret = cluster_secret(settings)
    logs.set_up(settings, "frontend")
    use = Use(settings.data)
    try:
        allow_open_files(settings.connections_limit)
        return run(_frontend(settings, backend, secret))
    finally:
        use.release()


async def _frontend(settings: Settings, backend: Address, secret: bytes) -> int:
    certificate = certificate_of(settings)
    sockets = bind(settings.host, settings.port)

    async def connect(_: SQLiteStore) -> RemoteBackend:
        return await RemoteBackend.connect(backend, secret=secret, name=f"frontend {os.getpid()}")

    observed = await Observed.start(settings, "frontend")
    try:
        return await _serve(settings, backend, certificate, sockets, connect, observed)
    finally:
        await observed.close()


async def _serve(
    settings: Settings,
    backend: Address,
    certificate: Certificate | None,
    sockets: list[socket.socket],
    connect: Connect,
    observed: Observed,
) -> int:
    service = await Frontend.start(settings, connect)
    endpoint_file = EndpointFile(settings.data)
    if certificate is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, certificate.reload)

    def started(_: object) -> None:
        publish_endpoint(endpoint_file, settings, sockets)
        port = sockets[0].getsockname()[1]
        log.info("started %s", logs.facts(version=__version__, port=port, backend=backend, pid=os.getpid()))

    try:
        code = await run_frontend(settings, service, certificate, sockets, stop_of_signals(), started, observed)
    finally:
        endpoint_file.remove()
    log.info("stopped")
    return code


def run(role: Coroutine[Any, Any, int]) -> int:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(role)


def stop_of_signals() -> asyncio.Event:
    """Make an event that the first signal sets; the second signal ends the process."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop_or_quit, stop, number)
    return stop
