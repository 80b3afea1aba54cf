"""A child process of the supervisor: ``python -m holdfast.process.child NAME``, with its parameters on standard input.

It takes commands only from the supervisor's socket.  It ignores signals to the process group (Ctrl-C at a terminal,
those that systemd sends to every process of a service), so that the supervisor determines the order of the shutdown. If
the supervisor dies, the kernel kills the child, so that no unsupervised process keeps writing the journal.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import uvloop

from holdfast import logs
from holdfast.heap import collect_rarely
from holdfast.process.parent_death import die_with_parent
from holdfast.settings import Settings
from telemetry.metrics import Family

if TYPE_CHECKING:
    from holdfast.http.listener import HttpServer
    from holdfast.runtime.observability import Observability

CONNECTION, RELOAD, DRAIN, LEAVE, METRICS = b"connection", b"reload", b"drain", b"leave", b"metrics"
"""Messages from the supervisor.

A connection is sent with its file descriptor.  "Leave" means to drain while the others continue: a backend first hands
its shards over, and a frontend lets its clients reconnect to others.  "Metrics" requests the metrics of the process.
"""
KAFKA_CONNECTION = b"kafka connection"
"""Message from the supervisor: a connection to ``kafka_port``, with its file descriptor."""
# During an upgrade children of one release answer to a supervisor of another: these bytes do not change.
READY, IN_PLACE, LOAD, METRICS_READ = b"ready", b"settled", b"load ", b"told"
"""Messages to the supervisor.

A backend is in place when it has its share of the shards, and each other shard is with its intended owner.  A load is
followed by the number of connections, and is sent once a second from the start of the process.  Metrics are sent as the
descriptor of a file in memory (:data:`decode_families`).
"""
MESSAGE_BYTES_MAX = 64
LOAD_SECONDS = 1.0

log = logging.getLogger("holdfast")


class Orders(msgspec.Struct):
    """Parameters of a child process."""

    name: str
    """Name such as ``frontend-1``, for the log and for the backends."""
    frontend: bool
    """True for a frontend, False for a backend."""
    settings: Settings
    secret: bytes
    """Secret by which frontends and backends authenticate each other."""
    line: int
    """File descriptor of the socket to the supervisor."""
    supervisor: int
    """Process id of the supervisor."""
    frontends: int
    """Number of frontends."""
    first: bool
    """True for the one frontend that does the work of the service's start; false when it is restarted."""
    uploads: bool = False
    """True for the frontend that uploads usage to the lake, also after its restarts."""
    node: str = ""
    """Name of a backend's node, in the entries and in the names of logs."""
    nodes: tuple[str, ...] = ()
    """Names of all backends' nodes."""

    def __repr__(self) -> str:
        """Representation without the secret."""
        return f"Orders({self.name})"


def encode(orders: Orders) -> bytes:
    return msgspec.msgpack.encode(orders, enc_hook=os.fspath)


def decode(data: bytes) -> Orders:
    return msgspec.msgpack.decode(data, type=Orders, dec_hook=_path)


_encode_families = msgspec.msgpack.Encoder().encode
decode_families = msgspec.msgpack.Decoder(list[Family]).decode


def _path(type_: type, value: Any) -> Any:
    assert issubclass(type_, Path)
    return Path(value)


def main() -> int:
    """Run the role given in the parameters; returns its exit code, as if it ran by itself."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    die_with_parent()
    collect_rarely()
    # Slow imports are done before the parameters arrive; a frontend gets them when the backend is ready.
    if sys.argv[1].startswith("frontend"):
        import holdfast.process.frontend
    else:
        import holdfast.process.backend  # noqa: F401
    from auth.encryption.master_keys import KeyringError
    from holdfast.http.certificate import CertificateUnusable
    from holdfast.process.serve import allow_open_files, connections_of
    from holdfast.runtime.errors import CannotStart
    from metadata_service.store import StoreError

    given = sys.stdin.buffer.read()
    if not given:
        return 1  # the supervisor had ended before the kernel knew of the dependency
    orders = decode(given)
    if os.getppid() != orders.supervisor:
        return 1  # the same, but it had written the parameters before
    logs.set_up(orders.settings, "frontend" if orders.frontend else "backend", orders.name)
    allow_open_files(connections_of(orders.settings, orders.frontends) if orders.frontend else 0)
    line = SupervisorSocket(socket.socket(fileno=orders.line))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_frontend(orders, line) if orders.frontend else _backend(orders, line))
    except (CannotStart, CertificateUnusable, KeyringError, StoreError) as error:
        logs.complain(error)
        return 1


class SupervisorSocket:
    """The child's end of the socket to the supervisor."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.stop = asyncio.Event()
        """Set when the process is to drain."""
        self.leaves = False
        """True if the other processes continue."""
        self._sock = sock
        self._load: Callable[[], int] = lambda: 0
        self._takes: dict[bytes, Callable[[socket.socket], None]] = {}
        """Functions that serve a connection, by the message that it arrives with."""
        self._reload: Callable[[], None] | None = None
        self._observed: Observability | None = None
        self._sending_metrics: asyncio.Task[None] | None = None

    def open(
        self,
        take: Callable[[socket.socket], None] | None = None,
        reload: Callable[[], None] | None = None,
        load: Callable[[], int] = lambda: 0,
        observed: Observability | None = None,
        take_kafka: Callable[[socket.socket], None] | None = None,
    ) -> None:
        """Report that the process is ready, and carry out the supervisor's messages from now on.

        ``take`` and ``take_kafka``: serve a connection of HTTP, or of Kafka's protocol; ``load``: returns the number of
        connections; ``observed``: the metrics of the process.
        """
        self._observed = observed
        self._reload, self._load = reload, load
        for message, serve in ((CONNECTION, take), (KAFKA_CONNECTION, take_kafka)):
            if serve is not None:
                self._takes[message] = serve
        asyncio.get_running_loop().add_reader(self._sock.fileno(), self._readable)
        self._sock.send(READY)
        log.info("ready %s", logs.facts(pid=os.getpid()))

    def report_in_place(self) -> None:
        """Report that this backend is in place."""
        self._sock.send(IN_PLACE)

    def report_load(self) -> None:
        """Report the number of connections once a second from now on, which also shows that the process runs."""
        try:
            self._sock.send(LOAD + str(self._load()).encode())
        except BlockingIOError:
            pass  # the socket's buffer is full
        except OSError:
            return  # the supervisor has ended, and this process will be killed soon
        asyncio.get_running_loop().call_later(LOAD_SECONDS, self.report_load)

    async def _send_metrics(self, observed: Observability) -> None:
        data = _encode_families(await observed.read())
        file = os.memfd_create("metrics")
        try:
            os.write(file, data)
            socket.send_fds(self._sock, [METRICS_READ], [file])
        except OSError as error:  # the socket's buffer is full, or the supervisor has ended
            log.debug("metrics could not be reported %s", logs.facts(error=error))
        finally:
            os.close(file)

    def _readable(self) -> None:
        while True:
            try:
                message, files, _, _ = socket.recv_fds(self._sock, MESSAGE_BYTES_MAX, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            if message in (CONNECTION, KAFKA_CONNECTION):
                if files:
                    self._takes[message](socket.socket(fileno=files[0]))
                else:
                    log.error("a connection was closed because there are too many open files")
            elif message == RELOAD:
                if self._reload is not None:
                    self._reload()
            elif message == METRICS:
                if self._observed is not None and (self._sending_metrics is None or self._sending_metrics.done()):
                    self._sending_metrics = asyncio.get_running_loop().create_task(self._send_metrics(self._observed))
            elif message == DRAIN:
                self.stop.set()
            elif message == LEAVE:
                self.leaves = True
                self.stop.set()
            elif message:
                for number in files:
                    os.close(number)
                log.warning("a message of a supervisor of another release is not understood: %r", message)
            else:
                os._exit(1)  # the supervisor has ended


async def _backend(orders: Orders, line: SupervisorSocket) -> int:
    from holdfast.process.backend import BackendRole, in_folder, run_backend
    from holdfast.runtime.observability import Observability

    backend = in_folder(orders.settings.data, orders.name, orders.node, orders.nodes)
    placing: list[asyncio.Task[None]] = []
    line.report_load()

    def started(role: BackendRole) -> None:
        line.open(observed=observed)
        placing.append(asyncio.create_task(report(role)))

    async def report(role: BackendRole) -> None:
        await role.member.placed.wait()
        line.report_in_place()

    observed = await Observability.start(orders.settings, "backend", orders.name, listens=False)
    try:
        return await run_backend(
            *(orders.settings, backend, orders.secret, line.stop, started, observed), hand_over=lambda: line.leaves
        )
    finally:
        await observed.close()


async def _frontend(orders: Orders, line: SupervisorSocket) -> int:
    from backend.rpc.cluster_client import ClusterBackend, nodes_of
    from holdfast.process.backend import Sockets
    from holdfast.process.frontend import Frontend, run_frontend
    from holdfast.process.serve import certificate_of
    from holdfast.runtime.observability import Observability
    from metadata_service.sqlite.store import SQLiteStore

    settings, processes = orders.settings, orders.frontends
    certificate = certificate_of(settings)
    sockets = Sockets(settings.data)

    async def connect(store: SQLiteStore) -> ClusterBackend:
        return await ClusterBackend.connect(
            nodes_of(store.entries, sockets.reach), secret=orders.secret, name=orders.name
        )

    line.report_load()
    service = await Frontend.start(settings, connect, processes=processes, first=orders.first, uploads=orders.uploads)

    def started(server: HttpServer) -> None:
        registry = server.registry
        reload = certificate.reload if certificate else None
        line.open(
            server.take,
            reload,
            lambda: len(registry.connections) + len(registry.handshakes) + service.kafka.connections,
            observed,
            service.kafka.take,
        )

    observed = await Observability.start(settings, "frontend", orders.name, listens=False)
    try:
        return await run_frontend(
            *(settings, service, certificate, [], [], line.stop, started, observed),
            processes=processes,
            lingers=lambda: line.leaves,
        )
    finally:
        await observed.close()


if __name__ == "__main__":
    sys.exit(main())
