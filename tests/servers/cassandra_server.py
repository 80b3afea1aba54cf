"""A real Cassandra of one or three nodes on loopback, for tests, the bench and local clusters.

The jars come from the Maven repository and are cached in ``.cache/cassandra``; ``python -m
tests.servers.cassandra_server`` fetches them beforehand.  Each node is a process with a folder of its own, below the
cluster's, which is deleted when the cluster is closed.  Nodes and folder are also removed when the process that started
them has ended, even by a crash.
"""

import os
import secrets
import shutil
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from tests.servers.java.maven import JarsMissing, fetch_jars
from tests.servers.started import KeptProcess, ServerContext, is_free

HERE = Path(__file__).parent / "cassandra"
START_SECONDS_MAX = 180.0

QUICK_START = ("-XX:TieredStopAtLevel=1",)
"""Options of a JVM that runs for seconds only: it starts faster, and stays slower."""

_ONE, _ALL = 1, 5  # consistency levels in the protocol


class CassandraMissing(Exception):
    """Cassandra is not available on this machine; the text has the reason."""


class CassandraFailed(Exception):
    """A node did not start; the text has the end of its log."""


def fetch() -> Path:
    """Return the folder of Cassandra's jars; fetch them if they are missing.  Safe in several processes at once.

    Raises :class:`CassandraMissing`.
    """
    try:
        return fetch_jars(HERE / "pom.xml", "Cassandra")
    except JarsMissing as missing:
        raise CassandraMissing(str(missing)) from missing


class CassandraNode(KeptProcess):
    """One node."""

    def __init__(self, host: str, port: int, storage_port: int, home: Path, command: Sequence[str], nodes: int) -> None:
        super().__init__(f"the Cassandra node {host}:{port}", home / "log", home.parent)
        self.host = host
        self.port = port
        self.environment: dict[str, str] = {}
        """Additional environment variables, from the next start on."""
        self._storage_port = storage_port
        self._command = command
        self._nodes = nodes

    def start(self, *, wait: bool = True) -> None:
        """Start the process on the existing data; with ``wait``, return when it serves."""
        # A killed process may hold its ports for a moment.
        for port in (self.port, self._storage_port):
            _until(partial(is_free, self.host, port), 15, f"{self.host}:{port} stays in use")
        self.launch(self._command, {**os.environ, **self.environment})
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self, *, everyone: bool = False) -> None:
        """Return when it answers; with ``everyone``, when it also sees all other nodes serve.

        Raises :class:`CassandraFailed`.
        """

        def ready() -> bool:
            if not self.running:
                raise CassandraFailed(f"{self.name} ended: {self.log()[-3000:]}")
            return self._answers(everyone)

        _until(ready, START_SECONDS_MAX, lambda: f"{self.host}:{self.port} is not ready: {self.log()[-3000:]}")

    def log(self) -> str:
        """Return its output."""
        return self.log_file.read_text(errors="replace")

    def _answers(self, everyone: bool) -> bool:
        # The table has three replicas: with three nodes, ALL needs each of them.
        query = (
            "SELECT parent_id FROM system_distributed.parent_repair_history"
            " WHERE parent_id = 00000000-0000-1000-8000-000000000000"
        )
        try:
            return _ask(self.host, self.port, query, _ALL if everyone and self._nodes > 1 else _ONE)
        except OSError:
            return False


class CassandraCluster(ServerContext):
    """One node or three, each on an address of its own and all on the same free port.

    Used as a context: started on entry, ended and removed on exit.
    """

    def __init__(
        self,
        nodes: Literal[1, 3] = 1,
        *,
        heap: str = "384m",
        commit_log: Literal["batch", "group", "periodic"] = "batch",
        java_options: Sequence[str] = (),
        settings: str = "",
        hosts: Sequence[str] = ("127.0.0.1", "127.0.0.2", "127.0.0.3"),
    ) -> None:
        """``settings`` are further lines of cassandra.yaml, where ``{number}`` is the node's, from 1 on; ``hosts`` are
        addresses on this machine, of which the first ones are used.

        Raises :class:`CassandraMissing`.
        """
        jars = fetch()
        self.folder = Path(tempfile.mkdtemp(prefix="cassandra-"))
        hosts = hosts[:nodes]
        self.port, storage_port = free_ports(hosts, 2)
        sync = {
            "batch": "batch",
            "group": "group\ncommitlog_sync_group_window: 5ms",
            "periodic": "periodic\ncommitlog_sync_period: 10000ms",
        }[commit_log]
        self.nodes: list[CassandraNode] = []
        for number, host in enumerate(hosts):
            home = self.folder / f"node{number + 1}"
            (home / "tmp").mkdir(parents=True)
            text = (HERE / "cassandra.yaml").read_text()
            filled = text.format(
                token=-(2**63) + 1 + number * (2**64 // nodes),
                seeds=",".join(f"{host}:{storage_port}" for host in hosts),
                host=host,
                port=self.port,
                storage_port=storage_port,
                home=home,
                commit_log=sync,
            )
            own = settings.replace("{number}", str(number + 1))
            (home / "cassandra.yaml").write_text(f"{filled}{own}\n")
            command = [
                *("java", f"@{HERE}/jvm.options", f"-Xms{heap}", f"-Xmx{heap}", *java_options),
                *(f"-Dcassandra.config=file://{home}/cassandra.yaml", f"-Dcassandra.storagedir={home}"),
                *(f"-Dcassandra.logdir={home}", f"-Dlogback.configurationFile=file:{HERE}/logback.xml"),
                *(f"-XX:ErrorFile={home}/hs_err.log", f"-Djava.io.tmpdir={home}/tmp"),
                *("-cp", f"{jars}/*", "org.apache.cassandra.service.CassandraDaemon"),
            ]
            self.nodes.append(CassandraNode(host, self.port, storage_port, home, command, nodes))

    @property
    def contact_points(self) -> list[str]:
        """The nodes' addresses."""
        return [node.host for node in self.nodes]

    def start(self, report: Callable[[str], None] = lambda _: None) -> None:
        """Start all nodes together; return when each serves and sees the others serve.

        ``report`` gets a line for each ready node.  Raises :class:`CassandraFailed`.
        """
        started_at = time.monotonic()
        for node in self.nodes:
            node.start(wait=False)
        for number, node in enumerate(self.nodes, 1):
            node.wait_until_ready(everyone=True)
            report(f"c{number} is ready: Cassandra at {node.host}:{node.port}, {time.monotonic() - started_at:.0f} s")

    def close(self) -> None:
        """End all nodes and remove their data."""
        for node in self.nodes:
            node.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


# --- ports, waiting, and one query in Cassandra's protocol -------------------------------------------------


def free_ports(hosts: Sequence[str], count: int) -> list[int]:
    """Return ports that are free on all of these addresses, and outside the range of ephemeral ports."""
    ports: list[int] = []
    while len(ports) < count:
        port = 20_000 + secrets.randbelow(12_000)
        if port not in ports and all(is_free(host, port) for host in hosts):
            ports.append(port)
    return ports


def _until(condition: Callable[[], bool], seconds_max: float, otherwise: str | Callable[[], str]) -> None:
    deadline = time.monotonic() + seconds_max
    while not condition():
        if time.monotonic() > deadline:
            raise CassandraFailed(otherwise if isinstance(otherwise, str) else otherwise())
        time.sleep(0.05)


def _ask(host: str, port: int, query: str, consistency: int) -> bool:
    """Return whether the node answers the query with a result (version 4 of the native protocol).  Raises OSError."""
    with socket.create_connection((host, port), timeout=5) as stream:
        _exchange(stream, 0x01, struct.pack(">H", 1) + _short("CQL_VERSION") + _short("3.0.0"))  # STARTUP
        text = query.encode()
        body = struct.pack(">I", len(text)) + text + struct.pack(">HB", consistency, 0)
        return _exchange(stream, 0x07, body) == 0x08  # QUERY, RESULT


def _exchange(stream: socket.socket, operation: int, body: bytes) -> int:
    """Send one frame and read one; return the operation of the answer."""
    stream.sendall(struct.pack(">BBhBI", 0x04, 0, 0, operation, len(body)) + body)
    with stream.makefile("rb") as answers:
        head = answers.read(9)
        if len(head) < 9:
            raise ConnectionError("closed")
        _, _, _, answer, length = struct.unpack(">BBhBI", head)
        answers.read(length)
    return int(answer)


def _short(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


if __name__ == "__main__":
    try:
        fetch()
    except CassandraMissing as missing:
        sys.exit(f"{missing}; the tests need Cassandra")
