"""``holdfast frontend`` beside a backend of the same machine, whose data folder it uses for the metadata."""

from __future__ import annotations

import asyncio
import os
import signal
import socket

from backend.rpc.address import Address
from backend.rpc.client import RemoteBackend
from holdfast import __version__, logs
from holdfast.http.certificate import Certificate
from holdfast.http.listener import bind
from holdfast.kafka.address import bind_kafka
from holdfast.process.frontend import Connect, Frontend, run_frontend
from holdfast.process.serve import (
    allow_open_files,
    certificate_of,
    connections_of,
    log,
    publish_endpoint,
    run,
    stop_of_signals,
)
from holdfast.runtime.data_folder import Use
from holdfast.runtime.endpoint_file import EndpointFile
from holdfast.runtime.observability import Observability
from holdfast.settings import Settings, cluster_secret
from metadata_service.sqlite.store import SQLiteStore


def frontend(settings: Settings, backend: Address) -> int:
    """Serve clients until a signal; returns the exit code.  Raises as :func:`holdfast.process.serve.serve`."""
    secret = cluster_secret(settings)
    logs.set_up(settings, "frontend")
    use = Use(settings.data)
    try:
        allow_open_files(connections_of(settings))
        return run(_frontend(settings, backend, secret))
    finally:
        use.release()


async def _frontend(settings: Settings, backend: Address, secret: bytes) -> int:
    certificate = certificate_of(settings)
    sockets = bind(settings.host, settings.port)
    kafka_sockets = bind_kafka(settings)

    async def connect(_: SQLiteStore) -> RemoteBackend:
        return await RemoteBackend.connect(backend, secret=secret, name=f"frontend {os.getpid()}")

    observed = await Observability.start(settings, "frontend")
    try:
        return await _serve(settings, backend, certificate, sockets, kafka_sockets, connect, observed)
    finally:
        await observed.close()


async def _serve(
    settings: Settings,
    backend: Address,
    certificate: Certificate | None,
    sockets: list[socket.socket],
    kafka_sockets: list[socket.socket],
    connect: Connect,
    observed: Observability,
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
        stop = stop_of_signals()
        code = await run_frontend(settings, service, certificate, sockets, kafka_sockets, stop, started, observed)
    finally:
        endpoint_file.remove()
    log.info("stopped")
    return code
