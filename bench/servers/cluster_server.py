"""The whole of Holdfast on this machine, on three nodes of Cassandra, as one server of the bench."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from bench.servers.servers import HOST, Holdfast, ServerMissing, ServerProcess
from tests.servers import cassandra_server, proc
from tests.servers.cassandra_server import CassandraCluster, CassandraMissing, free_ports
from tests.servers.local_cluster import LocalCluster
from tests.servers.signing import RequestSigner, SigningCredentials

BACKENDS = 2
FRONTENDS = 2
ROLES = ("frontend", "backend", "metadata")


class HoldfastCluster(ServerProcess):
    """Three Cassandra nodes, Redis, a metadata node, backends and frontends."""

    name = "cluster"
    cassandra_nodes: ClassVar[Literal[1, 3]] = 3

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        *,
        cassandra: CassandraCluster | None = None,
        keyspace: str = "holdfast",
    ) -> None:
        """``cassandra``: a running cluster to use; None: start one."""
        super().__init__(environment)
        names = {name.removeprefix("HOLDFAST_"): text for name, text in self._environment.items()}
        self.cluster = LocalCluster(
            cassandra=cassandra or self.cassandra_nodes,
            metadata=1,
            backends=BACKENDS,
            frontends=FRONTENDS,
            settings=names,
            keyspace=keyspace,
        )
        backends = self.cluster.of("backend")
        self.metrics_ports = free_ports([HOST], len(backends))
        """Ports on which the backends serve their metrics."""
        for process, port in zip(backends, self.metrics_ports, strict=True):
            process.run_module("bench.servers.measured_backend")
            process.environment["HOLDFAST_HEALTH_LISTEN"] = f"{HOST}:{port}"
        self.port = self.ports[0]
        key = self.cluster.key
        self.signer = RequestSigner(f"{HOST}:{self.port}", SigningCredentials(key.access_key_id, key.secret))

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def start(self) -> float:
        started_at = time.perf_counter()
        self.folder.mkdir(parents=True)
        self.cluster.start()
        return time.perf_counter() - started_at

    def kill(self) -> None:
        self.cluster.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def pid(self) -> int:
        """Process id of one frontend; :attr:`pids` has all."""
        return self.cluster["f1"].pid

    @property
    def pids(self) -> list[int]:
        return [pid for pids in self._processes().values() for pid in pids]

    @property
    def ports(self) -> list[int]:
        return [int(one.address.rpartition(":")[2]) for one in self.cluster.of("frontend")]

    def parts(self) -> dict[str, float]:
        return {part: sum(map(proc.cpu_seconds, pids)) for part, pids in self._processes().items()}

    def _processes(self) -> dict[str, list[int]]:
        found = {role: [one.pid for one in self.cluster.of(role) if one.running] for role in ROLES}
        found["cassandra"] = [node.pid for node in self.cluster.cassandra.nodes]
        if self.cluster.redis is not None:
            found["redis"] = [self.cluster.redis.pid]
        return found

    def log(self) -> str:
        return "\n".join(f"{one.name}: {one.log()[-700:]}" for one in self.cluster)

    @classmethod
    def version(cls) -> str:
        return Holdfast.version()

    @classmethod
    def fetch(cls) -> None:
        """Fetch Cassandra.  Raises :class:`~bench.servers.servers.ServerMissing`."""
        try:
            cassandra_server.fetch()
        except CassandraMissing as error:
            raise ServerMissing(f"the cluster is left out: {error}") from error
        if not shutil.which("redis-server"):
            raise ServerMissing("the cluster is left out: there is no redis-server on this machine")


class HoldfastOnOneNode(HoldfastCluster):
    """The same on one Cassandra node."""

    name = "cluster-1"
    cassandra_nodes = 1
