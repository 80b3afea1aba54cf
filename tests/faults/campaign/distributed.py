"""The form on many machines: three Cassandra nodes, a Redis, metadata nodes, backends and frontends, all on loopback.

A proxy (:mod:`tests.servers.proxy`) between the processes and Cassandra, and before each backend, injects network
faults between any two of them.  The clocks and disks of Cassandra can be disturbed too
(:mod:`tests.faults.tools.wrong`).
"""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import WhiteListRoundRobinPolicy

from tests.faults.campaign.forms import BACK_SECONDS, Form
from tests.faults.campaign.owners import owner_of
from tests.faults.campaign.splitting import Splitter
from tests.faults.tools.stream_traffic import StreamEndpoint
from tests.faults.tools.wrong import NoCompiler, Wrong, make_library
from tests.servers.cassandra_server import QUICK_START, CassandraCluster, free_ports
from tests.servers.local_cluster import HOST, LocalCluster, Process
from tests.servers.proxy import Direction, Proxy
from tests.servers.server import ACCOUNT, REGION
from tests.servers.waiting import wait_until

PROXY_HOST = "127.0.1.{number}"
"""Address at which clients reach each Cassandra node: its own port, on another loopback address."""

TAKEN = "shards were taken"
"""Log text of a backend that has got shards."""


class ProxiedCassandra(CassandraCluster):
    """Cassandra whose clients connect through proxies; its nodes connect to each other directly."""

    def __init__(self) -> None:
        super().__init__(3, java_options=QUICK_START, settings=f"broadcast_rpc_address: {PROXY_HOST}")
        self.proxies = [
            Proxy((node.host, self.port), listen=(PROXY_HOST.format(number=number), self.port))
            for number, node in enumerate(self.nodes, 1)
        ]

    def make_wrong(self, folder: Path) -> list[Wrong]:
        """Prepare the fault injection of each node started from now on; empty if that is not possible."""
        try:
            library = make_library(folder)
        except NoCompiler as error:
            print(error, file=sys.stderr)
            return []
        wrongs = [Wrong(library, f"cassandra-{number}") for number in range(1, len(self.nodes) + 1)]
        for node, wrong in zip(self.nodes, wrongs, strict=True):
            node.environment |= wrong.environment
        return wrongs

    def clock_of(self, number: int) -> float:
        host = self.nodes[number].host
        profile = ExecutionProfile(WhiteListRoundRobinPolicy([host]), request_timeout=30)
        driver = Cluster([host], self.port, execution_profiles={EXEC_PROFILE_DEFAULT: profile})
        try:
            ((milliseconds,),) = driver.connect().execute("SELECT toUnixTimestamp(now()) FROM system.local")
            return float(milliseconds) / 1000
        finally:
            driver.shutdown()

    @property
    def contact_points(self) -> list[str]:
        return [proxy.host for proxy in self.proxies]


@dataclass(frozen=True)
class Doors:
    """The frontends, as an endpoint of clients."""

    ports: list[int]
    access_key_id: str
    secret_access_key: str
    region: str = REGION


class Distributed(Form):
    """All roles as processes of their own."""

    def __init__(
        self,
        folder: Path,
        *,
        cassandra: CassandraCluster | None = None,
        keyspace: str = "holdfast",
        metadata: int = 2,
        backends: int = 3,
        managers: int = 0,
    ) -> None:
        """``cassandra``: a running one, which gets no faults and is not stopped; else three nodes are started."""
        self.folder = folder
        self._stack = ExitStack()
        self._own_cassandra = ProxiedCassandra() if cassandra is None else None
        used = cassandra or self._own_cassandra
        assert used is not None
        self.cluster = LocalCluster(
            cassandra=used,
            metadata=metadata,
            backends=backends,
            frontends=2,
            managers=managers,
            keyspace=keyspace,
            settings={"PARTITION_RATE": "0"},  # queues are split only by faults
        )
        self.is_split = False
        """True if the queue ``WORK`` has several partitions; else its dead-letter queue may have."""
        self.wrongs = [] if self._own_cassandra is None else self._own_cassandra.make_wrong(folder)
        self.name = f"{len(used.nodes)} Cassandra, {metadata} metadata, {backends} backends, 2 frontends"
        self.backends = [process.name for process in self.cluster.of("backend")]
        self.frontends = [process.name for process in self.cluster.of("frontend")]
        self.metadata = [process.name for process in self.cluster.of("metadata")]
        self.managers = [process.name for process in self.cluster.of("manager")]
        self.wires = {process.name: self._proxied(process) for process in self.cluster.of("backend")}
        for process in self.cluster:
            process.environment |= {"FAULTS_AT_START": str(folder), "FAULTS_NAME": process.name}
            path = self.environment()["PYTHONPATH"]
            process.environment["PYTHONPATH"] = f"{process.environment['PYTHONPATH']}:{path}"
        ports = [int(process.address.rpartition(":")[2]) for process in self.cluster.of("frontend")]
        self.endpoint = Doors(ports, self.cluster.key.access_key_id, self.cluster.key.secret)
        self.streams = StreamEndpoint(self._balanced_kafka(), self.cluster.key.access_key_id, self.cluster.key.secret)

    def _proxied(self, process: Process) -> Proxy:
        proxy = Proxy((HOST, int(process.address.rpartition(":")[2])))
        self._stack.enter_context(proxy)
        process.environment["HOLDFAST_ADVERTISE"] = proxy.address
        return proxy

    def _balanced_kafka(self) -> int:
        """Let all frontends serve Kafka's clients, behind a load balancer; returns its port."""
        frontends = self.cluster.of("frontend")
        ports = free_ports([HOST], len(frontends))
        balancer = Proxy(*((HOST, port) for port in ports))
        self._stack.enter_context(balancer)
        for frontend, port in zip(frontends, ports, strict=True):
            frontend.environment["HOLDFAST_KAFKA_PORT"] = str(port)
            frontend.environment["HOLDFAST_KAFKA_ADDRESS"] = balancer.address
        return balancer.port

    @property
    def proxies(self) -> list[Proxy]:
        return [] if self._own_cassandra is None else self._own_cassandra.proxies

    # --- its life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        if self._own_cassandra is not None:
            for proxy in self.proxies:
                self._stack.enter_context(proxy)
            self._own_cassandra.start()
        self.cluster.start()

    def close(self) -> None:
        self.cluster.close()
        if self._own_cassandra is not None:
            self._own_cassandra.close()
        self._stack.close()

    def pid(self, name: str) -> int:
        return self.cluster[name].pid

    def kill(self, name: str) -> None:
        process = self.cluster[name]
        process.kill()
        process.start()

    def restart(self, name: str) -> None:
        """Drain a process, and start it again."""
        process = self.cluster[name]
        code = process.stop()
        assert code == 0, f"{name} ended with {code}"
        process.start()

    def kill_all(self) -> None:
        """Kill all of Holdfast at once; Cassandra and Redis continue."""
        for process in self.cluster:
            process.kill()
        self.cluster.start_processes()

    def restart_all(self) -> None:
        """Restart one process after the other; each backend has shards again before the next one."""
        for name in (*self.metadata, *self.backends, *self.frontends, *self.managers):
            if name in self.backends:
                self.until_logged(TAKEN, partial(self.restart, name), of=name)
            else:
                self.restart(name)

    def log_text(self) -> str:
        return "".join(process.log() for process in self.cluster)

    def log_tail(self) -> str:
        return "".join(f"--- {process.name}\n{process.log()[-2000:]}\n" for process in self.cluster)

    def log_of(self, name: str) -> str:
        return self.cluster[name].log()

    # --- faults -------------------------------------------------------------------------------------------

    def wait_for_zombie(self, name: str) -> None:
        """Suspend an owner of shards until others have taken them, and resume it; it has to notice by itself."""
        others = [other for other in self.backends if other != name]

        def taken() -> int:
            return sum(self.log_of(other).count(TAKEN) for other in others)

        before = taken()
        self.until_logged(f"of node {name} is sealed", partial(self.pause, name))
        wait_until(lambda: taken() > before, "its shards are taken", BACK_SECONDS)
        self.until_logged("the journal has been recovered", partial(self.resume, name), of=name)

    def without_cassandra(self, numbers: Sequence[int], seconds: float) -> None:
        """kill -9 these nodes of Cassandra, and restart them after a while."""
        assert self._own_cassandra is not None
        all_nodes = self._own_cassandra.nodes
        nodes = [all_nodes[number] for number in numbers]
        majority = 2 * len(nodes) > len(all_nodes)

        def kill() -> None:
            for node in nodes:
                node.kill()

        def start() -> None:
            for node in nodes:
                node.start(wait=False)
            for node in nodes:
                node.wait_until_ready(everyone=True)

        if majority:
            self.until_logged("has no quorum, calls are refused", kill)
        else:
            kill()
        time.sleep(seconds)
        if majority:
            self.until_logged("has a quorum again", start, 3 * BACK_SECONDS)
        else:
            start()

    def cassandra_hangs(self, number: int, seconds: float) -> None:
        """Suspend a node of Cassandra for a while: it keeps its connections, and does not answer."""
        node = self.cluster.cassandra.nodes[number]
        node.pause()
        try:
            time.sleep(seconds)
        finally:
            node.resume()

    @contextmanager
    def bad_network(self, proxies: Sequence[Proxy], weather: Callable[[Proxy], None]) -> Iterator[None]:
        """Apply a network fault to these proxies during the block."""
        try:
            for proxy in proxies:
                weather(proxy)
            yield
        finally:
            for proxy in proxies:
                proxy.heal()

    def apart(self, name: str, direction: Direction, queue: str) -> None:
        """Disconnect a backend from all its callers, until its shards, including the queue's, have other owners."""
        with self.bad_network([self.wires[name]], lambda proxy: proxy.hold(direction)):
            wait_until(lambda: self.owner_of(queue) != name, f"{name} has handed {queue} over", BACK_SECONDS, 0.5)

    def apart_from(self, name: str, frontend: str, direction: Direction, seconds: float) -> None:
        """Disconnect a backend from one frontend for a while."""
        pids = [self.pid(frontend)]
        with self.bad_network([self.wires[name]], lambda proxy: proxy.hold(direction, pids)):
            time.sleep(seconds)

    def apart_from_cassandra(self, name: str, direction: Direction, seconds: float) -> None:
        """Disconnect a process from all of Cassandra for a while."""
        pids = [self.pid(name)]
        with self.bad_network(self.proxies, lambda proxy: proxy.hold(direction, pids)):
            time.sleep(seconds)

    def owner_of(self, queue: str) -> str:
        return owner_of(self.cluster.settings(), ACCOUNT, queue)

    def splitter(self) -> Splitter:
        return Splitter(self.cluster.settings(), ACCOUNT)

    def wrong_clock(self, number: int, seconds: float, meanwhile: Callable[[], object]) -> None:
        """Set the clock of a Cassandra node off for a while."""
        cassandra, wrong = self._own_cassandra, self.wrongs[number]
        assert cassandra is not None
        wrong.set(clock_seconds=seconds)
        try:
            # A node never reports a time before an earlier one: after a backward step, its time stands still.
            wait_until(
                lambda: math.copysign(1, seconds) * (cassandra.clock_of(number) - time.time()) > 1.0,
                f"the clock of node {number} is off",
                BACK_SECONDS,
            )
            meanwhile()
        finally:
            wrong.set()

    def slow_syncs(self, numbers: Sequence[int], seconds: float, meanwhile: Callable[[], object]) -> None:
        """Delay the syncs of these Cassandra nodes for a while."""
        for number in numbers:
            self.wrongs[number].set(sync_seconds=seconds)
        try:
            meanwhile()
        finally:
            for number in numbers:
                self.wrongs[number].set()

    def redis_away(self, seconds: float) -> None:
        """kill -9 the Redis, and start an empty one."""
        assert self.cluster.redis is not None
        self.cluster.redis.kill()
        time.sleep(seconds)
        self.cluster.redis.start()

    def redis_flushed(self) -> None:
        assert self.cluster.redis is not None
        self.cluster.redis.flush()
