"""A whole Holdfast on this machine: Cassandra, Redis, metadata nodes, backends, frontends, and a manager.

::

    with LocalCluster(backends=3) as cluster:
        cluster["b1"].kill()
        cluster["b1"].start()
        cluster.add_backend().start()

Each process has a name (``m1``, ``b1``, ``f1`` …), a log of its own in the cluster's folder, and an address that it
keeps when it starts again.  All of them end with the process that started them, even if that crashed.
"""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

from auth.credentials import new_access_key
from holdfast.settings import Settings, load
from tests.servers.cassandra_server import CassandraCluster, free_ports
from tests.servers.redis_server import RedisServer
from tests.servers.server import ACCOUNT, CODE, REGION, REPOSITORY, clean_environment
from tests.servers.started import KeptProcess, ServerContext, is_ready

HOST = "127.0.0.1"
PYTHON_PATH = os.pathsep.join((str(CODE), str(REPOSITORY)))
"""Folders of modules: the code under test, and those of tests and benchmarks that run in a process of Holdfast."""
READY_SECONDS_MAX = 180.0
STARTS_MAX = 3
"""Maximum number of starts of a process that ends before it serves."""
WRONG_SETTINGS = 2
"""Exit code for wrong settings."""


class ClusterFailed(Exception):
    """A process did not start; the text has the end of its log."""


class Process(KeptProcess):
    """One process of Holdfast."""

    def __init__(
        self, name: str, role: str, port: int, arguments: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> None:
        super().__init__(name, log, log.parent)
        self.role = role
        self.address = f"{HOST}:{port}" if port else "-"
        self._port = port
        self._command = [sys.executable, "-m", "holdfast", role, *arguments]
        self.environment = {
            **clean_environment(),
            "PYTHONPATH": PYTHON_PATH,
            "PYTHONUNBUFFERED": "1",
            **environment,
        }
        """Environment of its next start."""
        self._log_at = 0

    def run_module(self, module: str) -> None:
        """Run a module that has the commands of ``holdfast``, from the next start on."""
        self._command[2] = module

    def start(self, *, wait: bool = True) -> Self:
        """Start the process; with ``wait``, return when it serves.  Raises :class:`ClusterFailed`."""
        self._log_at = self.log_file.stat().st_size if self.log_file.exists() else 0
        self.launch(self._command, self.environment)
        if wait:
            self.wait_until_ready()
        return self

    def wait_until_ready(self, seconds: float = READY_SECONDS_MAX) -> None:
        """Return when it serves.  Raises :class:`ClusterFailed`."""
        deadline = time.monotonic() + seconds
        while not self.ready():
            if not self.running or time.monotonic() > deadline:
                how = "does not serve" if self.running else f"has ended with {self.exit_code}"
                raise ClusterFailed(f"{self.name} {how}:\n{self.log()[-3000:]}")
            time.sleep(0.02)

    def ready(self) -> bool:
        """Return whether it serves: a frontend reports that now; other roles have logged their start."""
        if not self.running:
            return False
        if self.role == "frontend":
            return is_ready(self._port)
        marks = {
            "metadata": f"Metadata node {self.name} is at",
            "backend": f"Backend {self.name} of",
            "manager": "Manager ",
        }
        return marks.get(self.role, " started ") in self.log(since_start=True)

    def log(self, *, since_start: bool = False) -> str:
        """Return its output, of all its starts or since the last one."""
        if not self.log_file.exists():
            return ""
        with self.log_file.open("rb") as log:
            log.seek(self._log_at if since_start else 0)
            return log.read().decode(errors="replace")


class LocalCluster(ServerContext):
    """Used as a context: started on entry, ended and removed on exit."""

    def __init__(
        self,
        *,
        cassandra: Literal[1, 3] | CassandraCluster = 3,
        metadata: int = 2,
        backends: int = 3,
        frontends: int = 2,
        redis: bool = True,
        managers: int = 0,
        settings: Mapping[str, str] | None = None,
        keyspace: str = "holdfast",
        ports: Sequence[int] = (),
        java_options: Sequence[str] = (),
    ) -> None:
        """``cassandra``: number of nodes, or a running cluster, which is not closed.  ``settings``: names of
        ``HOLDFAST_*`` variables without that prefix, for all processes.  ``ports``: of the frontends; by default any
        free ones.

        Raises :class:`~tests.servers.cassandra_server.CassandraMissing`.
        """
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-cluster-"))
        self._owns_cassandra = not isinstance(cassandra, CassandraCluster)
        self.cassandra = (
            cassandra
            if isinstance(cassandra, CassandraCluster)
            else CassandraCluster(cassandra, java_options=java_options)
        )
        self.redis = RedisServer() if redis else None
        self.key = new_access_key(ACCOUNT)
        """The root tenant's access key."""
        self._processes: dict[str, Process] = {}
        self._files = {name: self.folder / name for name in ("secret", "keyring.toml")}
        taken = free_ports([HOST], metadata + frontends)
        scheme = "https" if settings is not None and "CLUSTER_TLS_CERT" in settings else "http"
        self._metadata = [f"m{number + 1}={scheme}://{HOST}:{taken[number]}" for number in range(metadata)]
        self._settings = {
            **self._shared(keyspace),
            **{f"HOLDFAST_{name}": text for name, text in (settings or {}).items()},
        }
        for number in range(metadata):
            self._add(f"m{number + 1}", "metadata", taken[number], METADATA_NODE=f"m{number + 1}")
        for _ in range(backends):
            self.add_backend()
        for number in range(managers):
            self._add(f"g{number + 1}", "manager", 0)
        for number in range(frontends):
            port = ports[number] if number < len(ports) else taken[metadata + number]
            where = {"HOST": HOST, "PORT": str(port), "DATA": str(self.folder / f"f{number + 1}")}
            self._add(f"f{number + 1}", "frontend", port, **where, KEYRING_FILE=str(self._files["keyring.toml"]))

    def _shared(self, keyspace: str) -> dict[str, str]:
        replicas = len(self.cassandra.nodes)
        values = {
            "CASSANDRA": ",".join(self.cassandra.contact_points),
            "CASSANDRA_PORT": str(self.cassandra.port),
            "CASSANDRA_KEYSPACE": keyspace,
            "CASSANDRA_REPLICATION": f"datacenter1={replicas}",
            "CLUSTER_SECRET_FILE": str(self._files["secret"]),
            "REGION": REGION,
            "ACCOUNT": ACCOUNT,
            "ROOT_ACCESS_KEY_ID": self.key.access_key_id,
            "ROOT_SECRET_ACCESS_KEY": self.key.secret,
        }
        if self._metadata:
            values["METADATA_NODES"] = ",".join(self._metadata)
        if self.redis is not None:
            values["METADATA_INVALIDATION"] = self.redis.url
            values["RATE_LIMIT_STORAGE"] = self.redis.url
        return {f"HOLDFAST_{name}": value for name, value in values.items()}

    def _add(self, name: str, role: str, port: int, **settings: str) -> Process:
        environment = {**self._settings, **{f"HOLDFAST_{key}": value for key, value in settings.items()}}
        made = self._processes[name] = Process(name, role, port, (), environment, self.folder / f"{name}.log")
        return made

    def add_backend(self, cluster: str = "local") -> Process:
        """Add a backend to this backend cluster, without starting it."""
        number = 1 + max((int(process.name[1:]) for process in self.of("backend")), default=0)
        (port,) = free_ports([HOST], 1)
        node = {"BACKEND_NODE": f"b{number}", "LISTEN": f"{HOST}:{port}", "CLUSTER": cluster}
        return self._add(f"b{number}", "backend", port, **node)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for commands of Holdfast that work on this cluster."""
        return {**self._settings, "HOLDFAST_KEYRING_FILE": str(self._files["keyring.toml"])}

    def forget(self, process: Process) -> None:
        """End a process, and remove it from the cluster."""
        process.kill()
        del self._processes[process.name]

    def settings(self) -> Settings:
        """Return the settings of all processes, for access to the stores."""
        return load({}, self._settings)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of Holdfast with the settings of this cluster, such as ``key``, ``show``; return its result."""
        environment = {**clean_environment(), "PYTHONPATH": PYTHON_PATH, **self.environment}
        return subprocess.run(
            [sys.executable, "-m", "holdfast", *arguments],
            env=environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=READY_SECONDS_MAX,
            check=False,
        )

    # --- its processes ----------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Process:
        return self._processes[name]

    def __iter__(self) -> Iterator[Process]:
        return iter(self._processes.values())

    def of(self, role: str) -> list[Process]:
        """Return the processes of one role, such as ``backend``."""
        return [process for process in self if process.role == role]

    @property
    def endpoints(self) -> list[str]:
        """The URLs of the frontends."""
        return [f"http://{process.address}" for process in self.of("frontend")]

    # --- its start and end ------------------------------------------------------------------------------------

    def start(self, on_step: Callable[[str], None] = lambda _: None) -> None:
        """Start everything; return when all processes serve.  Raises the error of one that could not start.

        ``on_step`` gets a line for each process that is ready, and for each that ended and was started again.
        """
        if self._owns_cassandra:
            nodes = len(self.cassandra.nodes)
            on_step(
                f"starting Cassandra, {nodes} node{'s' if nodes > 1 else ''}: some 15 s, on a busy machine a minute"
            )
            self.cassandra.start(on_step)
        if self.redis is not None:
            self.redis.start()
            on_step("redis is ready")
        secret = self._files["secret"]
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_urlsafe(32))
        made = self.command("keyring", "create")
        if made.returncode != 0:
            raise ClusterFailed(made.stderr)
        self.start_processes(on_step)

    def start_processes(self, on_step: Callable[[str], None] = lambda _: None) -> None:
        """Start the processes of Holdfast that are not running; return when all serve."""
        # The other roles end if they find no metadata.
        for roles in (("metadata",), ("backend", "frontend", "manager")):
            processes = [process for process in self if process.role in roles and not process.running]
            if processes:
                on_step(f"starting {', '.join(process.name for process in processes)}")
            for process in processes:
                process.start(wait=False)
            _watch_processes(processes, on_step)

    def close(self) -> None:
        """End everything at once, and remove its data."""
        for process in self:
            process.kill()
        if self.redis is not None:
            self.redis.close()
        if self._owns_cassandra:
            self.cassandra.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def stop(self) -> None:
        """Drain everything, from the frontends inwards."""
        for role in ("frontend", "manager", "backend", "metadata"):
            for process in self.of(role):
                process.stop()


def _watch_processes(processes: Sequence[Process], on_step: Callable[[str], None]) -> None:
    """Wait until all serve; restart processes that have ended, like a service manager.

    A process may end because others were not ready or too slow.  Wrong settings are not retried.  Raises
    :class:`ClusterFailed`.
    """
    started_at = time.monotonic()
    starts = dict.fromkeys((process.name for process in processes), 1)
    waiting = list(processes)
    while waiting:
        for process in list(waiting):
            if process.ready():
                waiting.remove(process)
                seconds = time.monotonic() - started_at
                on_step(f"{process.name} is ready: {process.role} at {process.address}, {seconds:.0f} s")
            elif not process.running:
                code = process.exit_code
                if code == WRONG_SETTINGS or starts[process.name] == STARTS_MAX:
                    raise ClusterFailed(f"{process.name} has ended with {code}:\n{process.log()[-3000:]}")
                starts[process.name] += 1
                last = (process.log(since_start=True).strip().splitlines() or [""])[-1]
                on_step(f"{process.name} has ended with {code}, and is started again: {last[:200]}")
                process.start(wait=False)
            elif time.monotonic() - started_at > READY_SECONDS_MAX:
                raise ClusterFailed(f"{process.name} does not serve:\n{process.log()[-3000:]}")
        time.sleep(0.02)
