"""``holdfast serve``: the whole service in one process, from its start to its drain."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, NamedTuple, Protocol, TypeVar

import uvloop

from auth.credentials import AccessKey
from auth.encryption.encrypted_store import encrypted
from auth.encryption.keyring import Keyring
from holdfast import __version__, logs
from holdfast.http.certificate import Certificate
from holdfast.http.connection import Limits
from holdfast.http.connection_limits import share_of, share_of_client
from holdfast.http.listener import HttpServer, bind
from holdfast.http.proxies import Forwarded
from holdfast.http.request_cycle import App
from holdfast.kafka.address import bind_kafka
from holdfast.networks import parse_networks
from holdfast.runtime.data_folder import FolderLock
from holdfast.runtime.endpoint_file import EndpointFile
from holdfast.runtime.keyring import naming_secret, open_keyring
from holdfast.runtime.observability import Observability, register_server_metrics
from holdfast.runtime.root_tenant import endpoint, ensure_root, shell_lines
from holdfast.settings import Settings
from metadata_service.sqlite.store import SQLiteStore
from telemetry.metrics import Registry

log = logging.getLogger("holdfast")

_FILES_BESIDE_CONNECTIONS = 512
"""Open files for the journal, the metadata and the libraries."""
_FILES_MAX = 1 << 20

_GC_THRESHOLDS = (10_000, 100, 50)
"""Thresholds of the garbage collector.

Nearly all objects of a call are freed by reference counts.  With Python's default of 700 the collector repeatedly
scanned thousands of waiting receives: two fifths of the cost of 5,000 of them.  With a first threshold of 50,000 each
collection of new objects stopped the process for 2 to 29 ms; the second threshold keeps the older ones as rare.
"""


class Service(Protocol):
    """The service behind the listener."""

    @property
    def app(self) -> App:
        """The ASGI application."""

    @property
    def failed(self) -> asyncio.Future[None]:
        """Completes with an exception when the service cannot continue."""

    def register_metrics(self, registry: Registry) -> None:
        """Register the service's metrics."""

    async def drain(self) -> None:
        """End long polls and report "not ready"; calls in progress are answered."""

    async def close(self) -> None:
        """Write remaining data and close the files; no call is in progress any more."""


class ClientService(Service, Protocol):
    """A service of which Kafka's clients may be served too."""

    def serve_kafka(self, sockets: list[socket.socket], certificate: Certificate | None) -> None:
        """Serve Kafka's protocol on bound sockets until the drain.  Raises :class:`CannotStart`."""


Compose = Callable[[Settings, SQLiteStore, AccessKey, Keyring], Awaitable[ClientService]]
"""Function that makes the service from settings, metadata, root access key and keyring.

Raises :class:`CannotStart`.
"""


class Prepared(NamedTuple):
    """Content of the data folder that a start finds or creates before anything is served."""

    keyring: Keyring
    root: AccessKey
    new: bool
    """True if the root key was created now, or is new in the settings."""


async def prepare(settings: Settings, store: SQLiteStore) -> Prepared:
    """Prepare the data folder, which the caller must have claimed.  Raises as :func:`serve`."""
    keyring = await open_keyring(settings, store)
    secrets = encrypted(store.credentials, keyring)
    await naming_secret(secrets)  # while this is the only process that could create it
    root, new = await ensure_root(secrets, settings)
    return Prepared(keyring, root, new)


def certificate_of(settings: Settings) -> Certificate | None:
    """Load the certificate.  Raises :class:`~holdfast.http.certificate.CertificateUnusable`."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return Certificate(settings.tls_cert, settings.tls_key)


def serve(settings: Settings, compose: Compose) -> int:
    """Run until a signal; returns the exit code: 0 after a drain, 3 if the service could not continue.

    Raises :class:`~holdfast.runtime.data_folder.FolderUnusable`,
    :class:`~holdfast.http.certificate.CertificateUnusable`,
    :class:`~holdfast.http.listener.CannotListen`, :class:`~metadata_service.store.StoreError`,
    :class:`~auth.encryption.master_keys.KeyringError`, :class:`~holdfast.settings.SettingsError` and
    :class:`CannotStart` if the start fails.
    """
    logs.set_up(settings, "all")
    claim = FolderLock(settings.data)
    try:
        certificate = certificate_of(settings)
        sockets = bind(settings.host, settings.port)
        kafka_sockets = bind_kafka(settings)
        allow_open_files(connections_of(settings))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(settings, compose, sockets, kafka_sockets, certificate))
    finally:
        claim.release()


async def _run(
    settings: Settings,
    compose: Compose,
    sockets: list[socket.socket],
    kafka_sockets: list[socket.socket],
    certificate: Certificate | None,
) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop_or_quit, stop, number)
    if certificate is not None:
        loop.add_signal_handler(signal.SIGHUP, certificate.reload)
    observed = await Observability.start(settings, "all")
    store = SQLiteStore(settings.metadata_file)
    endpoint_file = EndpointFile(settings.data)
    try:
        prepared = await prepare(settings, store)
        service = await compose(settings, store, prepared.root, prepared.keyring)
        try:
            service.register_metrics(observed.registry)
            if kafka_sockets:
                service.serve_kafka(kafka_sockets, certificate)

            def started() -> None:
                publish_endpoint(endpoint_file, settings, sockets)
                greet(settings, sockets, prepared)
                freeze_heap()
                observed.health.status = "ready"

            def failed(why: asyncio.Future[None]) -> None:
                if not stop.is_set():
                    log.error("the service cannot continue: %s", why.exception())
                    stop.set()

            service.failed.add_done_callback(failed)
            server = server_of(settings, service, certificate, stop, started)
            register_server_metrics(observed.registry, server, certificate)
            observed.health.not_ready_reason = lambda: "draining" if stop.is_set() else ""
            await server.serve(sockets)
            return 3 if service.failed.done() else 0
        finally:
            await service.close()
    finally:
        endpoint_file.remove()
        await observed.close()
        await store.close()
        log.info("stopped")


def server_of(
    settings: Settings,
    service: Service,
    certificate: Certificate | None,
    stop: asyncio.Event,
    started: Callable[[], None],
    *,
    processes: int = 1,
    lingers: Callable[[], bool] = lambda: False,
) -> HttpServer:
    """Make the listener of a service.  ``processes``: number of processes that share the limits on connections."""
    limits = Limits(
        connections=share_of(settings.connections_limit, processes),
        read_seconds=settings.request_read_seconds,
        idle_seconds=settings.idle_seconds,
        drain_seconds=settings.drain_seconds,
        connections_per_client=share_of_client(settings.connections_per_client_limit, processes),
    )
    networks = parse_networks(settings.trusted_proxies)
    forwarded = Forwarded(service.app, networks, settings.forwarded_header) if networks else None
    return HttpServer(
        service.app, limits, certificate, forwarded, stop=stop, started=started, drain=service.drain, lingers=lingers
    )


def publish_endpoint(file: EndpointFile, settings: Settings, sockets: list[socket.socket]) -> None:
    """Write the URL of this service into its data folder, for commands with ``--data``; clients do not use it."""
    try:
        file.write(endpoint(settings, sockets[0].getsockname()[1]))
    except OSError as error:
        log.warning("commands with --data will not find this service %s", logs.facts(error=error))


def greet(settings: Settings, sockets: list[socket.socket], prepared: Prepared) -> None:
    """Report the start: in the log, and to the person at the terminal."""
    url = endpoint(settings, sockets[0].getsockname()[1])
    log.info("started %s", logs.facts(version=__version__, url=url, data=settings.data, pid=os.getpid()))
    lines = shell_lines(prepared.root, url, settings.region, sns=settings.sns)
    new = prepared.new and settings.root_access_key_id is None  # a given key is known, and output may go to a log
    logs.say(_greeting(settings, url, lines, prepared.root.access_key_id, new and not logs.is_json()))


def stop_or_quit(stop: asyncio.Event, number: int) -> None:
    """Drain at the first signal; at the second end the process at once, which loses no acknowledged message."""
    if stop.is_set():
        log.warning("stopped at once by a second signal")
        os._exit(128 + number)
    stop.set()


def _greeting(settings: Settings, url: str, lines: list[str], access_key_id: str, new: bool) -> str:
    if new:
        return f"Holdfast is at {url}.  To use it from this shell:\n\n" + "\n".join(lines) + "\n"
    show = f"holdfast key show --data {settings.data}"
    return f"Holdfast is at {url}.  Access key {access_key_id}; its secret, and how to use it: {show}"


def freeze_heap() -> None:
    """Exclude all objects that exist when a process starts serving from garbage collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def connections_of(settings: Settings, processes: int = 1) -> int:
    """Return the connections of clients, by HTTP and by Kafka's protocol, that one of ``processes`` may have."""
    protocols = 2 if settings.kafka_port else 1
    return share_of(settings.connections_limit, processes) * protocols


def allow_open_files(connections: int) -> None:
    """Raise the soft limit of open files to the hard one: connections being refused need files too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _FILES_BESIDE_CONNECTIONS
    allowed = _FILES_MAX if hard == resource.RLIM_INFINITY else min(_FILES_MAX, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning("open files are limited %s", logs.facts(allowed=allowed, connections_limit=connections))


def run(role: Coroutine[Any, Any, int]) -> int:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(role)


def stop_of_signals() -> asyncio.Event:
    """Make an event that the first signal sets; the second signal ends the process."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop_or_quit, stop, number)
    return stop


class _Closable(Protocol):
    async def close(self) -> None: ...


_T = TypeVar("_T", bound=_Closable)


class Closing(AsyncExitStack):
    """Closes opened resources in reverse order."""

    def later(self, opened: _T) -> _T:
        self.push_async_callback(opened.close)
        return opened
