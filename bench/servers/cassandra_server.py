"""A real Cassandra of one or three nodes on loopback, for tests, the bench and local clusters.

The jars come from the Maven repository and are cached in ``.cache/cassandra``; ``python -m
bench.servers.cassandra_server`` fetches them beforehand.  Each node is a process with a folder of its own, below the
cluster's, which is deleted when the cluster is closed.  Nodes and folder are also removed when the process that started
them has ended, even by a crash.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Literal

from bench.servers import proc
from bench.servers.started import ServerContext

HERE = Path(__file__).parents[1] / "cassandra"
CACHE = Path(__file__).parents[2] / ".cache" / "cassandra"
START_SECONDS_MOST = 180.0
STOP_SECONDS_MOST = 30.0
PROGRESS_SECONDS = 5.0
"""Interval of progress lines of a long operation."""

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
    if shutil.which("java") is None:
        raise CassandraMissing("there is no java on this machine to run Cassandra with: scripts/need java")
    pom = HERE / "pom.xml"
    jars = CACHE / hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    if jars.is_dir():
        return jars
    if shutil.which("mvn") is None:
        raise CassandraMissing("there is no mvn on this machine to fetch Cassandra with: scripts/need mvn")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if jars.is_dir():
            return jars
        print(f"fetching Cassandra with Maven, once, into {CACHE} (some minutes)", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            copied = Path(folder) / "jars"
            code, said = _run_with_progress(
                [
                    *("mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"),
                    *("-DincludeScope=runtime", f"-DoutputDirectory={copied}"),
                ],
                "fetching Cassandra",
            )
            if code != 0:
                raise CassandraMissing(f"Maven could not fetch Cassandra: {said[-1000:]}")
            copied.rename(jars)
    return jars


def _run_with_progress(command: Sequence[str], what: str) -> tuple[int, str]:
    """Run a command, with progress lines at intervals; return its exit code and its output."""
    started_at = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            while True:
                try:
                    code = running.wait(PROGRESS_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    print(f"{what}: {time.monotonic() - started_at:.0f} s", file=sys.stderr, flush=True)
        finally:
            if running.poll() is None:
                running.kill()
                running.wait()
        output.seek(0)
        return code, output.read()


class CassandraNode:
    """One node: a process that can be ended, suspended and started again on its data."""

    def __init__(self, host: str, port: int, storage_port: int, home: Path, command: Sequence[str], nodes: int) -> None:
        self.host = host
        self.port = port
        self.environment: dict[str, str] = {}
        """Additional environment variables, from the next start on."""
        self._storage_port = storage_port
        self._home = home
        self._command = command
        self._nodes = nodes
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the node is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        """True if it was started, and has not ended since."""
        return self._process is not None and self._process.poll() is None

    def start(self, *, wait: bool = True) -> None:
        """Start the process on the existing data; with ``wait``, return when it serves."""
        assert self._process is None, "the node is running"
        # A killed process may hold its ports for a moment.
        for port in (self.port, self._storage_port):
            _until(partial(_is_free, self.host, port), 15, f"{self.host}:{port} stays in use")
        self._log = (self._home / "log").open("ab")
        self._process = subprocess.Popen(
            self._command,
            cwd=self._home,
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a terminal's interrupt goes only to the process that started it
        )
        self._keeper = subprocess.Popen(
            ["sh", "-c", 'read _; kill -9 "$1"; rm -rf "$2"', "keeper", str(self._process.pid), str(self._home.parent)],
            stdin=subprocess.PIPE,  # ends with this process
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self, *, everyone: bool = False) -> None:
        """Return when it answers; with ``everyone``, when it also sees all other nodes serve.

        Raises :class:`CassandraFailed`.
        """

        def ready() -> bool:
            if self._process is None or self._process.poll() is not None:
                raise CassandraFailed(f"the Cassandra node {self.host}:{self.port} ended: {self.log()[-3000:]}")
            return self._answers(everyone)

        _until(ready, START_SECONDS_MOST, lambda: f"{self.host}:{self.port} is not ready: {self.log()[-3000:]}")

    def kill(self) -> None:
        """Send SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL if that does not end it."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Send SIGSTOP: it keeps its connections and does not answer."""
        proc.pause(self.pid)

    def resume(self) -> None:
        """Send SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def log(self) -> str:
        """Return its output."""
        return (self._home / "log").read_text(errors="replace")

    def _end(self, how: int) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        self._process.send_signal(signal.SIGCONT)  # a suspended process would not handle the other signal
        try:
            self._process.wait(STOP_SECONDS_MOST)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        if self._keeper is not None:
            self._keeper.kill()
            self._keeper.communicate()
            self._keeper = None
        if self._log is not None:
            self._log.close()
            self._log = None

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


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_ports(hosts: Sequence[str], count: int) -> list[int]:
    """Return ports that are free on all of these addresses, and outside the range of ephemeral ports."""
    ports: list[int] = []
    while len(ports) < count:
        port = 20_000 + secrets.randbelow(12_000)
        if port not in ports and all(_is_free(host, port) for host in hosts):
            ports.append(port)
    return ports


def _until(condition: Callable[[], bool], seconds_most: float, otherwise: str | Callable[[], str]) -> None:
    deadline = time.monotonic() + seconds_most
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
