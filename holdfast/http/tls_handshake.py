"""TLS handshakes: a connection is served once its handshake is complete, and resources used until then are bounded.

uvicorn would leave the handshake to the event loop's server, with a minute for each, any number of them at once, and a
certificate that never changes.  Here the connection is accepted like any other, and its socket is then given back to
the loop to be accepted with TLS.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Any, cast

import uvicorn

from holdfast.http.connection import LINGER_SECONDS, Connection, ConnectionRegistry
from holdfast.logs import facts

HANDSHAKE_SECONDS = 10
HANDSHAKES_LIMIT = 2048
"""Maximum concurrent handshakes: as many as the kernel queues, so that a burst after a restart is admitted."""

log = logging.getLogger("holdfast.http.connection")


class Handshake(asyncio.Protocol):
    """A connection before its handshake.  One over the limit is closed without a handshake."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ConnectionRegistry,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._registry = server_state
        self._loop = _loop or asyncio.get_running_loop()
        self._make = lambda: cast(
            asyncio.Protocol, Connection(config, server_state, app_state, self._loop, handshake=self)
        )
        self._takes = ""
        self._sock: socket.socket | None = None
        """Socket that has not been given to the loop yet."""
        self._shaking: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        registry = self._registry
        client = transport.get_extra_info("peername") or ("",)
        self._takes = registry.client(client[0])
        try:
            if registry.slots.take(self._takes):
                self._sock = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
                self._shaking = self._loop.create_task(self._shake(self._sock, client))
                self._shaking.add_done_callback(lambda _: self.over())
                registry.handshakes[self] = None
                if len(registry.handshakes) > HANDSHAKES_LIMIT:
                    next(iter(registry.handshakes)).drop()  # the oldest one is the least likely to be honest
        finally:
            if self._shaking is None:
                registry.slots.give_back(self._takes)
            transport.abort()  # type: ignore[attr-defined]  # nothing was read; the socket stays open in its copy

    def over(self) -> None:
        """Release the slot: for the resulting connection, or for another handshake."""
        if self._shaking is not None:
            self._shaking = None
            del self._registry.handshakes[self]
            self._registry.slots.give_back(self._takes)
            self._registry.notify_if_empty()

    def drop(self) -> None:
        """Close the connection."""
        if self._shaking is not None:
            self._shaking.cancel()
        if self._sock is not None:
            self._sock.close()
        self.over()

    async def _shake(self, sock: socket.socket, client: Any) -> None:
        assert self._registry.certificate is not None
        self._sock = None
        try:
            await self._loop.connect_accepted_socket(
                self._make,
                sock,
                ssl=self._registry.certificate.context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=LINGER_SECONDS,
            )
        except OSError as error:
            log.debug("a TLS handshake failed %s", facts(client=client, error=error))
