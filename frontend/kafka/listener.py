"""The listener of Kafka's protocol: accepts connections, limits them, and drains them when the service stops."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from frontend.kafka.connection import LINGER_SECONDS, KafkaConnection
from frontend.kafka.request.context import KafkaContext
from frontend.kafka.resources import AnswerMemory, ConnectionCounter
from frontend.kafka.sign_in.mechanisms import Mechanisms

BACKLOG: Final = 2048
HANDSHAKE_SECONDS: Final = 10.0
HANDSHAKES_MAX: Final = 2048
"""Maximum concurrent TLS handshakes: as many as the kernel queues, so that a burst after a restart is admitted."""
SWEEP_SECONDS: Final = 1.0
ACCEPT_PAUSE_SECONDS: Final = 0.1
"""Pause after a connection could not be accepted, for example for lack of file descriptors."""

log = logging.getLogger("holdfast.kafka")


class KafkaListener:
    """The connections of a process."""

    def __init__(
        self,
        context: KafkaContext,
        slots: ConnectionCounter,
        answers: AnswerMemory,
        *,
        certificate: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """``certificate`` returns the context of new connections; None: without TLS."""
        self.context = context
        self.answers: AnswerMemory = answers
        self.mechanisms = Mechanisms(context.services)
        self.connections: set[KafkaConnection] = set()
        self.tasks: set[asyncio.Future[Any]] = set()
        """Requests under way."""
        self.draining = False
        self._slots = slots
        self._certificate = certificate
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._starting: dict[asyncio.Task[None], None] = {}
        """Tasks that make connections, each after its handshake; the oldest first."""
        self._sweeper: asyncio.Task[None] | None = None
        self._emptied = asyncio.Event()

    def start(self, sockets: Sequence[socket.socket]) -> None:
        """Accept on sockets that are bound; without sockets connections arrive only by :meth:`take`.

        Raises :class:`OSError`.
        """
        for bound in sockets:
            bound.setblocking(False)
            bound.listen(BACKLOG)
        self._sockets = list(sockets)
        self._accepting = [asyncio.create_task(self._accept(bound)) for bound in sockets]
        self._sweeper = asyncio.create_task(self._sweep())

    async def stop(self, seconds: float) -> int:
        """Accept no more, answer the requests that were begun, within ``seconds``, and close all connections.

        Waiting fetches end, and members that wait for their group have to join again elsewhere.  Returns the number of
        requests that were given up.
        """
        for task in self._accepting:
            task.cancel()
        for bound in self._sockets:
            bound.close()
        self.draining = True
        self.context.draining.set()
        for connection in list(self.connections):
            connection.shutdown()
        if not self._is_empty:
            try:
                await asyncio.wait_for(self._until_empty(), seconds)
            except TimeoutError:
                pass
        late = set(self.tasks)
        for connection in list(self.connections):
            connection.abort()
        for request in late:
            request.cancel()
        rest = late | set(self._starting) | set(self._accepting)
        for task in self._starting:
            task.cancel()
        if self._sweeper is not None:
            self._sweeper.cancel()
            rest.add(self._sweeper)
        if rest:
            await asyncio.wait(rest, timeout=1)
        self.mechanisms.close()
        if late:
            log.warning("%d requests of Kafka's protocol were given up: they took longer than the drain", len(late))
        return len(late)

    def take(self, accepted: socket.socket) -> None:
        """Serve a connection that was accepted, here or by another process."""
        try:
            accepted.setblocking(False)
            address = str(accepted.getpeername()[0])
        except OSError:
            accepted.close()
            return
        client = self._slots.client(address)
        if not self._slots.take(client) or self.draining:
            self._slots.give_back(client)
            accepted.close()
            return
        given_back = False

        def give_back() -> None:
            nonlocal given_back
            if not given_back:
                given_back = True
                self._slots.give_back(client)
                self._notify_if_empty()

        task = asyncio.create_task(self._serve(accepted, address, give_back))
        self._starting[task] = None
        task.add_done_callback(partial(self._started, accepted, give_back))
        if self._certificate is not None and len(self._starting) > HANDSHAKES_MAX:
            next(iter(self._starting)).cancel()  # the oldest one is the least likely to be honest

    @property
    def connection_count(self) -> int:
        """Number of connections, including those in a handshake."""
        return len(self.connections) + len(self._starting)

    # --- parts ---

    async def _accept(self, bound: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(bound)
            except OSError as error:
                self.context.error_log.say("accept", "a connection cannot be accepted: %r", error)
                await asyncio.sleep(ACCEPT_PAUSE_SECONDS)
                continue
            self.take(accepted)

    async def _serve(self, accepted: socket.socket, address: str, give_back: Callable[[], None]) -> None:
        """Make a connection of a socket, after its handshake if there is TLS."""
        context = None if self._certificate is None else self._certificate()
        secured = {} if context is None else {"ssl_handshake_timeout": HANDSHAKE_SECONDS}
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: KafkaConnection(self, address, give_back),
            accepted,
            ssl=context,
            ssl_shutdown_timeout=LINGER_SECONDS if context is not None else None,
            **secured,
        )

    def _started(self, accepted: socket.socket, give_back: Callable[[], None], task: asyncio.Task[None]) -> None:
        """Close a connection that could not be made."""
        del self._starting[task]
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return
        accepted.close()
        give_back()
        if isinstance(error, OSError):
            log.debug("a connection failed before it was served: %r", error)
        elif error is not None:
            self.context.log.error("a connection cannot be served", exc_info=error)

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = loop.time()
            for connection in list(self.connections):
                connection.sweep(now)
            if self._slots.refused:
                count, self._slots.refused = self._slots.refused, 0
                self.context.error_log.say("too many", "%d connections were refused: there are too many", count)
            if self.answers.cut:
                count, self.answers.cut = self.answers.cut, 0
                self.context.error_log.say("unread", "%d connections were aborted: answers are not read", count)

    @property
    def _is_empty(self) -> bool:
        return not self.connections and not self._starting

    def _notify_if_empty(self) -> None:
        if self.draining and not self.connections:
            self._emptied.set()

    async def _until_empty(self) -> None:
        while not self._is_empty:
            self._emptied.clear()
            if self._starting:
                await asyncio.wait(set(self._starting))
            if not self._is_empty:
                await self._emptied.wait()
