"""``holdfast serve``: the whole service in one process, from its start to its drain."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol

import uvloop

from auth.credentials import AccessKey
from auth.keyring import Keyring
from auth.sealed_store import seal_older_secrets, sealed
from holdfast import __version__, logs
from holdfast.certificate import Certificate
from holdfast.door import Limits
from holdfast.exchange import App
from holdfast.folder import Claim
from holdfast.keyring import open_keyring
from holdfast.listen import Server, bind
from holdfast.proxies import Forwarded, parse_networks
from holdfast.root import endpoint, ensure_root, shell_lines
from holdfast.settings import Settings
from metadata_service.sqlite import SQLiteStore

log = logging.getLogger("holdfast")

_FILES_BESIDE_CONNECTIONS = 512
"""Open files that the journal, the metadata and the libraries need."""
_FILES_MOST = 1 << 20


class Service(Protocol):
    """What answers the requests, behind the listener."""

    @property
    def app(self) -> App:
        """The ASGI application."""

    @property
    def failed(self) -> asyncio.Future[None]:
        """Gets an exception when the service cannot go on."""

    async def drain(self) -> None:
        """End long polls and say "not ready"; calls under way are answered."""

    async def close(self) -> None:
        """Nothing is under way any more: write what remains and let go of the files."""


class CannotStart(Exception):
    """The service cannot start; the text says why."""


Compose = Callable[[Settings, SQLiteStore, AccessKey, Keyring], Awaitable[Service]]
"""Makes the service of these settings, metadata, root access key and keyring.  Raises :class:`CannotStart`."""


def serve(settings: Settings, compose: Compose) -> int:
    """Run until a signal, and return the exit code: 0 after a drain, 3 if the service could not go on.

    Raises what keeps it from starting: :class:`~holdfast.folder.FolderUnusable`,
    :class:`~holdfast.certificate.CertificateUnusable`, :class:`~holdfast.listen.CannotListen`,
    :class:`~metadata_service.store.StoreError`, :class:`~auth.master_keys.KeyringError`,
    :class:`~holdfast.settings.SettingsError` and :class:`CannotStart`.
    """
    logs.set_up(settings.log_level)
    claim = Claim(settings.data)
    try:
        certificate = None
        if settings.tls_cert is not None and settings.tls_key is not None:
            certificate = Certificate(settings.tls_cert, settings.tls_key)
        sockets = bind(settings.host, settings.port)
        _allow_open_files(settings.connections_limit)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(settings, compose, sockets, certificate))
    finally:
        claim.release()


async def _run(
    settings: Settings, compose: Compose, sockets: list[socket.socket], certificate: Certificate | None
) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _stop_or_quit, stop, number)
    if certificate is not None:
        loop.add_signal_handler(signal.SIGHUP, certificate.reload)
    store = SQLiteStore(settings.metadata_file)
    try:
        keyring = await open_keyring(settings, store)
        await seal_older_secrets(store, keyring)
        key, new = await ensure_root(sealed(store, keyring), settings)
        service = await compose(settings, store, key, keyring)
        try:

            def started() -> None:
                url = endpoint(settings, sockets[0].getsockname()[1])
                log.info("started %s", logs.facts(version=__version__, url=url, data=settings.data, pid=os.getpid()))
                lines = shell_lines(key, url, settings.region)
                print(_greeting(settings, url, lines, key.access_key_id, new), flush=True)
                gc.collect()
                gc.freeze()

            def failed(why: asyncio.Future[None]) -> None:
                if not stop.is_set():
                    log.error("the service cannot go on: %s", why.exception())
                    stop.set()

            service.failed.add_done_callback(failed)
            server = Server(
                service.app,
                _limits(settings),
                certificate,
                _forwarded(settings, service.app),
                stop=stop,
                started=started,
                drain=service.drain,
            )
            await server.serve(sockets)
            return 3 if service.failed.done() else 0
        finally:
            await service.close()
    finally:
        await store.close()
        log.info("stopped")


def _limits(settings: Settings) -> Limits:
    return Limits(
        connections=settings.connections_limit,
        read_seconds=settings.request_read_seconds,
        idle_seconds=settings.idle_seconds,
        drain_seconds=settings.drain_seconds,
        connections_per_client=settings.connections_per_client_limit,
    )


def _forwarded(settings: Settings, app: App) -> Forwarded | None:
    networks = parse_networks(settings.trusted_proxies)
    return Forwarded(app, networks, settings.forwarded_header) if networks else None


def _stop_or_quit(stop: asyncio.Event, number: int) -> None:
    """The first signal drains; the second ends the process at once, which loses nothing that was acknowledged."""
    if stop.is_set():
        log.warning("stopped at once, by a second signal")
        os._exit(128 + number)
    stop.set()


def _greeting(settings: Settings, url: str, lines: list[str], access_key_id: str, new: bool) -> str:
    if new:
        return f"Holdfast is at {url}.  To use it from this shell:\n\n" + "\n".join(lines) + "\n"
    show = f"holdfast key show --data {settings.data}"
    return f"Holdfast is at {url}.  Access key {access_key_id}; its secret, and how to use it: {show}"


def _allow_open_files(connections: int) -> None:
    """Raise the soft limit of open files to the hard one: connections that are being refused need some too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _FILES_BESIDE_CONNECTIONS
    allowed = _FILES_MOST if hard == resource.RLIM_INFINITY else min(_FILES_MOST, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning("open files are limited %s", logs.facts(allowed=allowed, connections_limit=connections))
