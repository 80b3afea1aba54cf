"""The service in parts: a backend, which has the journal, and frontends, which have the clients.

All of them have the metadata file open, so they are on one machine; between them is :mod:`backend.wire`.  A frontend
keeps nothing that an answer rests on: what is in its memory is a second old at most, and counts of what strangers
tried.  So any of them serves any call, and when one dies its clients go on with another.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from auth.audit import AuditLog
from auth.lookup import Credentials
from auth.sealed_store import sealed
from backend.address import UNIX_PATH_BYTES_MOST, Address
from backend.client import RemoteBackend
from backend.hello import Refused
from backend.server import serve_backend
from frontend.admin.removal import finish_deletions
from frontend.app import create_app
from frontend.bodies import ROOM_BYTES, Room
from frontend.services import Services
from frontend.sqs.queues import Queues
from holdfast.certificate import Certificate
from holdfast.compose import StoreResolver, frontend_settings, limiter_of, oidc_of, open_audit, open_node
from holdfast.declared import declare
from holdfast.keyring import naming_secret, read_keyring
from holdfast.listen import Server
from holdfast.root import ensure_root
from holdfast.serve import CannotStart, server_of, settle
from holdfast.settings import Settings
from metadata_service.changes import ChangeWatch
from metadata_service.client import MetadataClient
from metadata_service.sqlite import SQLiteStore

BODIES_BYTES_LEAST = 64 << 20
"""Of each frontend, for bodies that are arriving; what one process has is divided among them."""
SOCKET = "backend.sock"
"""In the data folder: where the frontends of the same machine find the backend."""


def socket_in(data: Path) -> Address:
    """The address of the socket in the data folder, however long the folder's path is."""
    path = os.fspath(data / SOCKET)
    if len(os.fsencode(path)) > UNIX_PATH_BYTES_MOST:
        folder = os.open(data, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)  # for the life of the process
        path = f"/proc/self/fd/{folder}/{SOCKET}"
    return Address(path=path)


async def run_backend(
    settings: Settings,
    address: Address,
    secret: bytes,
    stop: asyncio.Event,
    started: Callable[[Address], None],
    *,
    name: str,
) -> int:
    """Serve the journal to frontends until ``stop``, and return the exit code: 3 if it cannot go on.

    ``started`` gets the address with the port that was taken.  Raises :class:`CannotStart`.
    """
    store = SQLiteStore(settings.metadata_file)
    try:
        frontend = frontend_settings(settings)
        resolver = StoreResolver(store, frontend.region)
        node = await open_node(settings, store, resolver)
        try:
            services = Services(frontend, Credentials(store), MetadataClient(store), node)
            resolver.queues.set_result(Queues(services))
            try:
                server = await serve_backend(
                    node,
                    secret=secret,
                    path=address.path or None,
                    host=address.host or None,
                    port=address.port,
                    name=name,
                )
            except OSError as error:
                raise CannotStart(f"{address} cannot be listened on: {error.strerror}") from error
            started(server.address)
            settle()
            waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(stop.wait()), node.lost]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            waiting[0].cancel()
            node.drain()
            await server.drain(settings.drain_seconds)
            return 3 if node.lost.done() else 0
        finally:
            await node.close()
    finally:
        await store.close()


class Frontend:
    """Implements :class:`holdfast.serve.Service` over a backend in another process.  Made by :meth:`start`."""

    def __init__(
        self, services: Services, store: SQLiteStore, backend: RemoteBackend, audit: AuditLog, changes: ChangeWatch
    ) -> None:
        self.app = create_app(services)
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Stays as it is: what a frontend misses may come back."""
        self._services = services
        self._store = store
        self._backend = backend
        self._audit = audit
        self._changes = changes

    @classmethod
    async def start(
        cls, settings: Settings, address: Address, secret: bytes, *, name: str, processes: int = 1, first: bool = True
    ) -> Frontend:
        """A frontend of the backend at this address, one of so many ``processes`` behind one port.

        The ``first`` one does what a start of the service has to: it finishes deletions that were cut off, and declares
        the queues of the settings.  Raises :class:`CannotStart`, :class:`~auth.master_keys.KeyringError` and
        :class:`~metadata_service.store.StoreError`.
        """
        store = SQLiteStore(settings.metadata_file)
        try:
            keyring = await read_keyring(settings, store)
            if keyring is None:
                raise CannotStart(f"the data folder {settings.data} has no keyring yet: start the backend first")
            credentials = Credentials(sealed(store, keyring))
            naming = await naming_secret(credentials.store)
            audit = open_audit(settings)
            backend = await RemoteBackend.connect(address, secret=secret, name=name)
        except BaseException:
            await store.close()
            raise
        metadata = MetadataClient(store)
        services = Services(
            dataclasses.replace(frontend_settings(settings, processes), shared=True),
            credentials,
            metadata,
            backend,
            serving=lambda: backend.connected,
            audit=audit,
            keyring=keyring,
            limiter=limiter_of(settings, processes),
            oidc=oidc_of(settings),
            bodies=Room(max(BODIES_BYTES_LEAST, ROOM_BYTES // processes)),
            naming=naming,
        )
        made = cls(services, store, backend, audit, ChangeWatch(store, metadata))
        try:
            await made._begin(settings, first)
        except BaseException:
            await made.close()
            raise
        return made

    async def _begin(self, settings: Settings, first: bool) -> None:
        try:
            await self._backend.ready(math.inf)  # a journal with a large backlog takes its time
        except Refused as error:
            raise CannotStart(
                f"the backend at {self._backend.address} does not let this frontend in: {error}"
            ) from error
        await self._services.limiter.start()
        await self._changes.start()
        if first:
            await finish_deletions(self._services)
            root, _ = await ensure_root(self._services.credentials.store, settings)
            await declare(self._services, root, settings.queues)

    async def drain(self) -> None:
        self.app.begin_drain()

    async def close(self) -> None:
        await self._changes.close()
        await self._backend.close()
        await self._services.limiter.close()
        await self._services.credentials.close()
        if self._services.oidc is not None:
            await self._services.oidc.close()
        self._audit.close()
        await self._store.close()


async def run_frontend(
    settings: Settings,
    service: Frontend,
    certificate: Certificate | None,
    sockets: list[socket.socket],
    stop: asyncio.Event,
    started: Callable[[Server], None],
    *,
    processes: int = 1,
) -> int:
    """Serve clients until ``stop``, and return the exit code.  Without sockets they come by :meth:`Server.take`."""
    try:

        def ready() -> None:
            started(server)
            settle()

        server = server_of(settings, service, certificate, stop, ready, processes=processes)
        await server.serve(sockets)
        return 0
    finally:
        await service.close()
