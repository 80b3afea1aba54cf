"""``holdfast serve --frontends N --backends M``: several processes behind one port, to use all cores.

The supervisor has the data folder, the listening sockets and the children, and no state of the service.  It accepts
connections, by HTTP and by Kafka's protocol, and distributes them (:mod:`holdfast.http.acceptor`), restarts dead
children, and ends everything in order.

A child that dies is restarted at once, then after growing pauses.  If one repeatedly dies within :data:`STEADY_SECONDS`
of its start, the service ends with an error, so that the process manager notices.  A backend that hangs is killed,
because its shards are locked while it exists.  None of this loses acknowledged messages: each backend has its own
locked log, which no other process writes, and the shards of a dead one are taken over by the others or by its restart,
whichever is first.

On SIGUSR1 all children are restarted one by one: each backend hands its shards over before it ends, and each frontend
lets its clients move to the others.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence

import msgspec
import uvloop

from holdfast import logs
from holdfast.http.acceptor import Acceptor
from holdfast.http.listener import LINGER_SECONDS, bind
from holdfast.kafka.address import bind_kafka
from holdfast.process import child
from holdfast.process.child import Orders
from holdfast.process.serve import Prepared, certificate_of, greet, prepare, publish_endpoint
from holdfast.runtime.data_folder import NODE, FolderLock
from holdfast.runtime.endpoint_file import EndpointFile
from holdfast.runtime.errors import CannotStart
from holdfast.runtime.observability import Observability
from holdfast.runtime.python import python
from holdfast.settings import Settings
from metadata_service.sqlite.store import SQLiteStore
from telemetry.metrics import Family

STEADY_SECONDS = 10.0
"""Running time after which a child's death does not count as a failed start."""
PAUSE_SECONDS_FIRST = 0.1
PAUSE_SECONDS_MAX = 5.0
DEATHS_MAX = 6
"""Maximum consecutive deaths, each within ``STEADY_SECONDS`` of the start, before the service ends."""
SILENT_SECONDS = 5.0
"""Time without a report after which a frontend gets no connections; it should report every second."""
HANGS_SECONDS = 10
"""Time without a report after which a backend is killed.

Seconds in which the supervisor or the machine was paused do not count.
"""
STARTS_SECONDS = 60
"""Time without a report after which a child that is not ready yet is killed.

Every child reports once a second as soon as its loop runs.
"""
FRONTEND_GRACE_SECONDS = 5.0
"""Time in addition to ``drain_seconds`` for writing after the last answer."""
BACKEND_GRACE_SECONDS = 60.0
"""Time for the last checkpoint."""
HAND_OVER_SECONDS = 60.0
"""Timeout of a backend's hand-over of its shards before it ends."""
METRICS_SECONDS = 2.0
"""Timeout for a child's metrics."""
IN_PLACE_SECONDS = 120.0
"""During a restart of all, timeout for a restarted child to be ready, and for a backend to have its shards."""

log = logging.getLogger("holdfast")


def supervise(settings: Settings) -> int:
    """Run until a signal; returns the exit code: 0 after a drain, 1 if it did not start, 3 after repeated deaths.

    Raises as :func:`holdfast.process.serve.serve`.
    """
    logs.set_up(settings, "supervisor", "supervisor")
    if sys.platform != "linux":
        raise CannotStart("several processes need Linux: start the service without --frontends and --backends")
    claim = FolderLock(settings.data)
    try:
        certificate_of(settings)
        sockets = bind(settings.host, settings.port)
        kafka_sockets = bind_kafka(settings)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(settings, sockets, kafka_sockets))
    finally:
        claim.release()


async def _run(settings: Settings, sockets: list[socket.socket], kafka_sockets: list[socket.socket]) -> int:
    store = SQLiteStore(settings.metadata_file)
    try:
        prepared = await prepare(settings, store)
    finally:
        await store.close()
    supervisor = Supervisor(settings, sockets, kafka_sockets)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, supervisor.stop_or_quit, number)
    loop.add_signal_handler(signal.SIGHUP, supervisor.reload)
    loop.add_signal_handler(signal.SIGUSR1, supervisor.restart_all)
    observed = await Observability.start(settings, "supervisor", "supervisor")
    supervisor.serve_metrics(observed)
    try:
        code = await supervisor.run(prepared)
    finally:
        await observed.close()
    log.info("stopped")
    return code


class Child:
    """A child process with its restarts.  Implements :class:`holdfast.http.acceptor.Seat`."""

    def __init__(self, orders: Orders) -> None:
        self.name = orders.name
        self.load = 0
        self.started = asyncio.Event()
        """Set when the current process is ready."""
        self.in_place = asyncio.Event()
        """Set when the current process, a backend, has its shards."""
        self.ready = asyncio.Event()
        """Set when the child has been ready once."""
        self.has_orders = False
        """True if the current process has got its parameters."""
        self.silent_seconds = 0
        """Seconds without a report, counted by the supervisor; a process with its parameters reports every second."""
        self.leaves = False
        """True if the process was asked to end, and is to be restarted."""
        self.ended = asyncio.Event()
        """Set when the current process has ended."""
        self._orders = orders
        self._line: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._reported_at = 0.0
        self.lives = 0
        """Number of starts so far."""
        self._metrics_read: asyncio.Future[list[Family]] | None = None
        """Pending request for metrics."""

    @property
    def is_ready(self) -> bool:
        """Return whether it can be given connections."""
        return self.has_started and not self.is_silent and not self.leaves

    @property
    def has_started(self) -> bool:
        return self.started.is_set()

    @property
    def is_silent(self) -> bool:
        """Return whether it runs, but does not report."""
        return self.has_started and asyncio.get_running_loop().time() - self._reported_at > SILENT_SECONDS

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def live(self, after: asyncio.Event | None) -> int:
        """Run one process; returns its exit code, negative for a signal.  Cancellation kills the process.

        The process starts its work ``after`` this event.
        """
        own_end, childs_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own_end.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            with childs_end:
                first = self._orders.first and not self.ready.is_set()
                orders = msgspec.structs.replace(self._orders, line=childs_end.fileno(), first=first)
                process = await asyncio.create_subprocess_exec(
                    *(*python(), "-m", "holdfast.process.child", self.name),
                    stdin=asyncio.subprocess.PIPE,
                    pass_fds=(childs_end.fileno(),),
                    start_new_session=True,
                )
            self._process, self._line = process, own_end
            self.lives += 1
            loop.add_reader(own_end.fileno(), self._on_message, own_end)
            ordering = asyncio.create_task(self._order(process, child.encode(orders), after))
            try:
                return await process.wait()
            finally:
                ordering.cancel()
                self.has_orders, self.load, self.silent_seconds = False, 0, 0
                self.started.clear()
                self.in_place.clear()
                self.ended.set()
                self.ended = asyncio.Event()
                self._process = self._line = None
                loop.remove_reader(own_end.fileno())
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        finally:
            own_end.close()

    def _on_message(self, line: socket.socket) -> None:
        while True:
            try:
                message, files, _, _ = socket.recv_fds(line, child.MESSAGE_BYTES_MAX, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except OSError:
                message, files = b"", []
            self._reported_at = asyncio.get_running_loop().time()
            self.silent_seconds = 0
            if message == child.READY:
                self.started.set()
                self.ready.set()
            elif message == child.IN_PLACE:
                self.in_place.set()
            elif message.startswith(child.LOAD):
                self.load = int(message.removeprefix(child.LOAD))
            elif message == child.METRICS_READ:
                self._on_metrics(files)
            else:  # the process has ended; live() handles that
                asyncio.get_running_loop().remove_reader(line.fileno())
                return

    def _on_metrics(self, files: Sequence[int]) -> None:
        read, self._metrics_read = self._metrics_read, None
        for number in files:
            with open(number, "rb") as file:
                file.seek(0)
                data = file.read()
            if read is not None and not read.done():
                read.set_result(child.decode_families(data))

    async def read_metrics(self) -> list[Family]:
        """Return its metrics; empty if it does not answer in time."""
        if not self.has_started or self._line is None:
            return []
        if self._metrics_read is None or self._metrics_read.done():
            self._metrics_read = asyncio.get_running_loop().create_future()
            self.say(child.METRICS)
        try:
            async with asyncio.timeout(METRICS_SECONDS):
                return await asyncio.shield(self._metrics_read)
        except TimeoutError:
            self._metrics_read = None  # the next caller makes a new request
            return []

    def say(self, message: bytes) -> None:
        """Send a message; a process that is about to end may miss it."""
        if self._line is not None:
            try:
                self._line.send(message)
            except OSError as error:
                log.warning("%s does not accept commands: %s", self.name, error.strerror)

    def give(self, accepted: socket.socket, message: bytes = child.CONNECTION) -> bool:
        """Hand a connection over; ``message`` says which of the ports it has connected to."""
        if self._line is None:
            return False
        try:
            socket.send_fds(self._line, [message], [accepted.fileno()])
        except OSError:  # it has died, or has not read earlier messages
            return False
        return True

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _order(self, process: asyncio.subprocess.Process, orders: bytes, after: asyncio.Event | None) -> None:
        if after is not None:
            await after.wait()
        assert process.stdin is not None
        process.stdin.write(orders)
        process.stdin.close()  # not awaited: live() notices if the process ends
        self.has_orders = True


class KafkaSeat:
    """A frontend as the process that takes connections of Kafka's clients; its load counts those of both protocols.

    Implements :class:`holdfast.http.acceptor.Seat`.
    """

    def __init__(self, frontend: Child) -> None:
        self._frontend = frontend

    @property
    def is_ready(self) -> bool:
        return self._frontend.is_ready

    @property
    def load(self) -> int:
        return self._frontend.load

    @load.setter
    def load(self, count: int) -> None:
        self._frontend.load = count

    def give(self, accepted: socket.socket) -> bool:
        return self._frontend.give(accepted, child.KAFKA_CONNECTION)


class _GivenUp(Exception):
    """A child dies repeatedly; the text names it."""


class Supervisor:
    """The children, from their first start to the end."""

    def __init__(
        self, settings: Settings, sockets: list[socket.socket], kafka_sockets: Sequence[socket.socket] = ()
    ) -> None:
        """``kafka_sockets``: bound sockets of Kafka's clients, without which there are none."""
        self._settings = settings
        self._sockets = sockets
        self._kafka_sockets = kafka_sockets
        self._backends, self._frontends = _children(settings)
        self._children = (*self._backends, *self._frontends)
        self._keepers: dict[Child, asyncio.Task[None]] = {}
        kafka_seats = [KafkaSeat(frontend) for frontend in self._frontends]
        self._acceptors = (Acceptor(sockets, lambda: self._frontends), Acceptor(kafka_sockets, lambda: kafka_seats))
        self._backed = asyncio.Event()
        """Set when every queue has a backend."""
        self._stop = asyncio.Event()
        self._restart: asyncio.Task[None] | None = None
        """Task that restarts all children one by one."""
        self._serving = False

    def serve_metrics(self, observed: Observability) -> None:
        """Serve metrics for all processes, and register the children's states."""
        registry, children = observed.registry, self._children

        async def others() -> list[tuple[str, list[Family]]]:
            found = await asyncio.gather(*(each.read_metrics() for each in children))
            return [(each.name, families) for each, families in zip(children, found, strict=True)]

        def not_ready_reason() -> str:
            if self._stop.is_set():
                return "draining"
            return "" if self._serving and any(each.is_ready for each in self._frontends) else "starting"

        observed.others = others
        observed.health.status = "ready"
        observed.health.not_ready_reason = not_ready_reason
        registry.declare(
            "holdfast_child_ready",
            "1: the process is working; 0: it is starting, ending, or not responding.",
            lambda: {(each.name,): each.is_ready for each in children},
            labels=("child",),
            series_max=len(children),
        )
        registry.declare(
            "holdfast_child_starts_total",
            "Number of starts of the process.",
            lambda: {(each.name,): each.lives for each in children},
            labels=("child",),
            series_max=len(children),
        )

    def stop_or_quit(self, number: int) -> None:
        """Drain at the first signal; at the second end all processes at once, which loses no acknowledged message."""
        if self._stop.is_set():
            log.warning("stopped at once by a second signal")
            for each in self._children:
                each.kill()
            os._exit(128 + number)
        self._stop.set()

    def reload(self) -> None:
        """Make all frontends reload the certificate."""
        for each in self._frontends:
            each.say(child.RELOAD)

    def restart_all(self) -> None:
        """Restart one after the other: backends, each after the one before has its shards again, then frontends."""
        if not self._serving or self._stop.is_set():
            log.warning("nothing is restarted: the service is not ready, or is ending")
        elif self._restart is not None and not self._restart.done():
            log.warning("everything is being restarted already")
        else:
            self._restart = asyncio.create_task(self._restart_all(), name="restart")

    async def _restart_all(self) -> None:
        log.info("the backends and frontends are restarted, one by one")
        for children, what in ((self._backends, "backends"), (self._frontends, "frontends")):
            for each in children:
                if not await self._restarted(each):
                    log.error("%s is not back as before: the others are not restarted", each.name)
                    return
            log.info("all %s have been restarted", what)

    async def _restarted(self, restarted: Child) -> bool:
        """Restart a child; returns True if it is ready again, for a backend with its shards.

        A child that dies meanwhile is restarted as usual.
        """
        if not restarted.has_started:
            return False
        is_backend = restarted in self._backends
        seconds = HAND_OVER_SECONDS + BACKEND_GRACE_SECONDS if is_backend else LINGER_SECONDS + FRONTEND_GRACE_SECONDS
        ended = restarted.ended
        restarted.leaves = True
        restarted.say(child.LEAVE)
        try:
            async with asyncio.timeout(seconds + self._settings.drain_seconds):
                await ended.wait()
        except TimeoutError:
            log.error("%s does not drain and is killed %s", restarted.name, logs.facts(pid=restarted.pid))
            restarted.kill()
            await ended.wait()
        try:
            async with asyncio.timeout(IN_PLACE_SECONDS):
                await (restarted.in_place if is_backend else restarted.started).wait()
        except TimeoutError:
            return False
        return True

    async def run(self, prepared: Prepared) -> int:
        """Start, serve until the end; returns the exit code.  Raises :class:`~holdfast.http.listener.CannotListen`."""
        code = 0
        endpoint_file = EndpointFile(self._settings.data)
        watch = asyncio.create_task(self._watch())
        try:
            for each in self._children:
                self._keepers[each] = asyncio.create_task(self._keep(each), name=each.name)
            for each in self._backends:
                await self._until_stopped(each.in_place if len(self._backends) > 1 else each.ready)
            self._backed.set()
            for each in self._frontends:
                await self._until_stopped(each.ready)
            if not self._stop.is_set():
                for acceptor in self._acceptors:
                    acceptor.start()
                self._serving = True
                publish_endpoint(endpoint_file, self._settings, self._sockets)
                greet(self._settings, self._sockets, prepared)
            await self._until_stopped(self._stop)
        except _GivenUp as error:
            log.error("the service cannot continue: %s", error)
            code = 3 if self._serving else 1
        finally:
            watch.cancel()
            try:
                await self._end()
            finally:
                endpoint_file.remove()
        return code

    async def _until_stopped(self, event: asyncio.Event) -> None:
        """Wait for the event, or for the end.  Raises :class:`_GivenUp`."""
        waiting = [asyncio.create_task(event.wait()), asyncio.create_task(self._stop.wait())]
        try:
            await asyncio.wait([*waiting, *self._keepers.values()], return_when=asyncio.FIRST_COMPLETED)
            for keeper in self._keepers.values():
                if keeper.done():
                    keeper.result()
        finally:
            for task in waiting:
                task.cancel()

    async def _watch(self) -> None:
        """Log frontends that hang, and kill backends that do: no other process can take their shards before.

        A child that hangs before it is ready is killed too: otherwise it would never be restarted, and the start of all
        would never end.
        """
        silent: set[Child] = set()
        while True:
            await asyncio.sleep(1)
            for each in self._children:
                each.silent_seconds += each.has_orders
                seconds = HANGS_SECONDS if each.has_started else STARTS_SECONDS
                if each.silent_seconds > seconds and (each in self._backends or not each.has_started):
                    facts = logs.facts(pid=each.pid, seconds=seconds)
                    log.error("%s does not answer and is killed %s", each.name, facts)
                    each.kill()
            for each in self._frontends:
                if each.is_silent and each not in silent:
                    silent.add(each)
                    log.error("%s does not answer and gets no connections %s", each.name, logs.facts(pid=each.pid))
                elif each in silent and not each.is_silent:
                    silent.discard(each)
                    log.warning("%s answers again", each.name)

    async def _keep(self, kept: Child) -> None:
        """Keep the child running until the end of the service.  Raises :class:`_GivenUp`."""
        loop = asyncio.get_running_loop()
        deaths = 0
        while True:
            started_at = loop.time()
            try:
                code = await kept.live(None if kept in self._backends else self._backed)
                how = _how(code)
            except OSError as error:  # out of memory, or too many processes
                code, how = 1, f"no process can be started: {error.strerror}"
            if self._stop.is_set():
                if code:
                    log.warning("%s ended with an error (%s)", kept.name, how)
                return
            if not kept.ready.is_set():
                raise _GivenUp(f"{kept.name} did not start ({how})")
            left, kept.leaves = kept.leaves, False
            if left and not code:
                log.info("%s has drained and is started again", kept.name)
                continue
            deaths = 1 if loop.time() - started_at >= STEADY_SECONDS else deaths + 1
            if deaths > DEATHS_MAX:
                raise _GivenUp(f"{kept.name} has died {deaths} times within seconds of its start ({how})")
            pause = min(PAUSE_SECONDS_MAX, PAUSE_SECONDS_FIRST * 2 ** (deaths - 1))
            log.error("%s has died and is started again (%s)", kept.name, how)
            try:
                async with asyncio.timeout(pause):
                    await self._stop.wait()
                return
            except TimeoutError:
                pass

    async def _end(self) -> None:
        """End the frontends first, so that every accepted call is answered; then all backends, with their shards."""
        self._stop.set()
        if self._restart is not None:
            self._restart.cancel()
        if self._serving:
            for acceptor in self._acceptors:
                acceptor.stop()
        else:
            for bound in (*self._sockets, *self._kafka_sockets):
                bound.close()
        await self._drain(self._frontends, self._settings.drain_seconds + FRONTEND_GRACE_SECONDS)
        await self._drain(self._backends, BACKEND_GRACE_SECONDS)

    async def _drain(self, children: Sequence[Child], seconds: float) -> None:
        for each in children:
            if each.has_started:
                each.say(child.DRAIN)
            else:
                each.kill()  # it has started nothing that needs a drain
        keepers = {each: self._keepers[each] for each in children if each in self._keepers}
        if not keepers:
            return
        _, late = await asyncio.wait(keepers.values(), timeout=seconds)
        for each, keeper in keepers.items():
            if keeper in late:
                log.error("%s does not end and is killed %s", each.name, logs.facts(pid=each.pid, seconds=seconds))
                each.kill()
        if late:
            await asyncio.wait(late)


def _children(settings: Settings) -> tuple[list[Child], list[Child]]:
    """Make the backends, and the frontends."""
    common = Orders(
        name="",
        frontend=False,
        settings=settings,
        secret=secrets.token_bytes(32),
        line=-1,
        supervisor=os.getpid(),
        frontends=max(1, settings.frontends),
        first=False,
        nodes=tuple(f"backend-{number}" for number in range(1, settings.backends + 1)),
    )
    if settings.backends <= 1:
        alone = msgspec.structs.replace(common, name="backend", node=NODE, nodes=(NODE,))
        backends = [Child(alone)]
    else:
        backends = [Child(msgspec.structs.replace(common, name=node, node=node)) for node in common.nodes]
    other = msgspec.structs.replace(common, frontend=True)
    frontends = [
        Child(msgspec.structs.replace(other, name=f"frontend-{number}", first=number == 1, uploads=number == 1))
        for number in range(1, common.frontends + 1)
    ]
    return backends, frontends


def _how(code: int) -> str:
    """Describe the end of a process."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
