"""Composition of the listener of Kafka's protocol from settings and services, for every process that serves clients."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from frontend.app import FrontendApp
from holdfast.http.answers import UnreadAnswers
from holdfast.http.certificate import Certificate
from holdfast.http.connection_limits import slots_of
from holdfast.kafka.address import advertised
from holdfast.runtime.errors import CannotStart
from holdfast.settings import Settings
from metadata_service.store import StreamStore

if TYPE_CHECKING:
    from frontend.kafka.listener import KafkaListener
    from frontend.kafka.request.context import KafkaSettings


class KafkaClients:
    """Kafka's clients of a process, from the start of its listener to the end of its drain.

    A process without ``kafka_port`` has none: :meth:`start` is not called, and the other methods do nothing.
    """

    def __init__(self, settings: Settings, app: FrontendApp, store: StreamStore) -> None:
        """``store``: source of producer ids."""
        self._settings = settings
        self._app = app
        self._store = store
        self._listener: KafkaListener | None = None
        self._stop: asyncio.Task[int] | None = None

    def start(self, sockets: Sequence[socket.socket], certificate: Certificate | None, *, processes: int = 1) -> None:
        """Listen on bound sockets, which the drain closes; without sockets, connections arrive by :meth:`take`.

        ``processes``: number of processes that share the limits on connections.  Raises :class:`CannotStart`.
        """
        # Imported on demand: a process without Kafka's clients starts sooner, and is smaller.
        from frontend.kafka.listener import KafkaListener
        from frontend.kafka.request.context import KafkaContext
        from frontend.streams.metadata_catalog import MetadataCatalog

        settings, services, throttle = self._settings, self._app.services, self._app.context.throttle
        context = KafkaContext(
            services,
            MetadataCatalog(services, self._store, throttle),
            services.backend,
            kafka_settings(settings),
            guesses=self._app.pipeline.guesses,
            throttle=throttle,
        )
        listener = KafkaListener(
            context,
            slots_of(settings.connections_limit, settings.connections_per_client_limit, processes),
            UnreadAnswers(),
            certificate=None if certificate is None else lambda: certificate.context,
        )
        try:
            listener.start(sockets)
        except OSError as error:
            raise CannotStart(f"Kafka's clients cannot be served on port {settings.kafka_port}: {error}") from error
        self._listener = listener

    def take(self, accepted: socket.socket) -> None:
        """Serve a connection that another process has accepted."""
        if self._listener is None:
            accepted.close()
        else:
            self._listener.take(accepted)

    @property
    def connections(self) -> int:
        """Number of connections, including those in a handshake."""
        return 0 if self._listener is None else self._listener.connection_count

    def start_drain(self) -> None:
        """Begin to drain, within ``drain_seconds``; :meth:`close` waits for the end."""
        if self._listener is not None and self._stop is None:
            self._stop = asyncio.create_task(self._listener.stop(self._settings.drain_seconds))

    async def close(self) -> None:
        """Drain and close all connections."""
        self.start_drain()
        if self._stop is not None:
            await self._stop


def kafka_settings(settings: Settings) -> KafkaSettings:
    """Return the settings of the listener."""
    from frontend.kafka.request.context import KafkaSettings

    address = advertised(settings)
    return KafkaSettings(
        host=address.host,
        port=address.port,
        auto_create_topics=settings.kafka_auto_create_topics,
        partitions_default=settings.kafka_partitions,
    )
