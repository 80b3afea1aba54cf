"""``holdfast metadata``: real nodes, and their callers' view when one ends."""

import asyncio
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from metadata_service.nodes.remote_store import RemoteStore
from metadata_service.nodes.ring import Ring, RingView, parse_members
from metadata_service.store import MetadataStore, QueueExists
from tests.closing import closing
from tests.holdfast.command import PipedCommand
from tests.holdfast.pairs import make_pair
from tests.metadata_service.conformance import ACCOUNT, NOW_MS, create
from tests.metadata_service.nodes.test_remote_store import queue_of
from tests.servers.cassandra_server import CassandraCluster
from tests.servers.server import free_port
from tests.servers.waiting import until

SECRET = "the secret of this cluster"


class _Cluster:
    """``holdfast metadata`` on free ports, with one data folder."""

    def __init__(self, folder: Path, count: int, scheme: str = "http", **settings: str) -> None:
        self.folder = folder
        self.nodes = ",".join(f"m{number}={scheme}://127.0.0.1:{free_port()}" for number in range(count))
        self.view = RingView.of(1, parse_members(self.nodes))
        self.settings = settings
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self._all: list[PipedCommand] = []

    def start(self, name: str) -> subprocess.Popen[str]:
        self.processes[name] = self.run("--metadata-node", name).wait_for(f"^Metadata node {name} is at ").process
        return self.processes[name]

    def run(self, *arguments: str) -> PipedCommand:
        secret = {} if "CLUSTER_SECRET_FILE" in self.settings else {"CLUSTER_SECRET": SECRET}
        settings = {**secret, "METADATA_NODES": self.nodes, **self.settings}
        self._all.append(PipedCommand("metadata", "--data", self.folder / "data", *arguments, **settings))
        return self._all[-1]

    def end(self) -> None:
        for process in self._all:
            process.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[_Cluster]:
    made = _Cluster(tmp_path, 2)
    yield made
    made.end()


async def _read_until(store: MetadataStore, name: str, stopped: asyncio.Event) -> int:
    """Read without pauses; returns the number of answers.  Raises any error."""
    count = 0
    while not stopped.is_set():
        assert (await store.queues.get_queue(ACCOUNT, name)).name == name
        count += 1
    return count


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
async def test_reads_go_on_when_a_node_ends(cluster: _Cluster, number: signal.Signals) -> None:
    for member in cluster.view.members:
        cluster.start(member.name)
    async with closing(RemoteStore(cluster.view, SECRET.encode())) as caller:
        name = queue_of(cluster.view, "m0")
        queue = await create(caller, name)
        stopped = asyncio.Event()
        readers = [asyncio.create_task(_read_until(caller, name, stopped)) for _ in range(4)]
        await until(lambda: caller._peers.get("m0"))
        cluster.processes["m0"].send_signal(number)
        await until(lambda: caller._peers["m0"].failures)
        if number == signal.SIGTERM:
            assert await asyncio.to_thread(cluster.processes["m0"].wait, 60) == 0
        changed = await caller.queues.update_queue(queue.queue_id, 1, now_ms=NOW_MS, tags={"a": "b"})
        assert await caller.queues.get_queue(ACCOUNT, name) == changed
        stopped.set()
        for reader in readers:
            assert await reader > 0
        if number == signal.SIGKILL:
            again = cluster.start("m0")
            while caller._peers["m0"].failures:
                await caller.queues.get_queue(ACCOUNT, name)
            again.terminate()
            assert await asyncio.to_thread(again.wait, 60) == 0


async def test_health_is_shown_without_a_certificate(tmp_path: Path) -> None:
    cert, key, health = tmp_path / "cert.pem", tmp_path / "key.pem", f"127.0.0.1:{free_port()}"
    make_pair().write(cert, key)
    cluster = _Cluster(tmp_path, 1, "https", TLS_CERT=str(cert), TLS_KEY=str(key), HEALTH_LISTEN=health)
    try:
        process = cluster.start("m0")
        async with httpx.AsyncClient() as client:
            for path in ("live", "ready"):
                assert (await client.get(f"http://{health}/health/{path}")).status_code == 200
        process.terminate()
        assert await asyncio.to_thread(process.wait, 60) == 0
    finally:
        cluster.end()


async def test_nodes_speak_tls_and_have_the_secret_from_a_file(tmp_path: Path) -> None:
    cert, key, secret = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "secret"
    make_pair().write(cert, key)
    secret.write_text(SECRET + "\n")
    files = {"TLS_CERT": str(cert), "TLS_KEY": str(key), "CLUSTER_SECRET_FILE": str(secret)}
    cluster = _Cluster(tmp_path, 1, "https", **files)
    try:
        cluster.start("m0")
        caller = RemoteStore(cluster.view, SECRET.encode(), tls=ssl.create_default_context(cafile=cert))
        assert (await create(caller, "orders")).version == 1
        await caller.close()
    finally:
        cluster.end()


async def test_nodes_keep_everything_in_cassandra(tmp_path: Path, cassandra: CassandraCluster, keyspace: str) -> None:
    where = {
        "CASSANDRA": ",".join(cassandra.contact_points),
        "CASSANDRA_PORT": str(cassandra.port),
        "CASSANDRA_KEYSPACE": keyspace,
        "CASSANDRA_REPLICATION": "datacenter1=1",
    }
    cluster = _Cluster(tmp_path, 2, **where)
    caller, other = (RemoteStore(cluster.view, SECRET.encode()) for _ in range(2))
    try:
        cluster.start("m0")
        cluster.start("m1")
        names = [queue_of(cluster.view, node) for node in ("m0", "m1")]
        queues = [await create(caller, name) for name in names]
        with pytest.raises(QueueExists):
            await create(other, names[0])
        cluster.processes["m0"].kill()
        await asyncio.to_thread(cluster.processes["m0"].wait, 60)
        for queue in queues:
            changed = await caller.queues.update_queue(queue.queue_id, 1, now_ms=NOW_MS, tags={"a": "b"})
            assert await other.queues.get_queue(ACCOUNT, queue.name) == changed
        log = await caller.entries.new_incarnation("a")
        assert await other.entries.logs() == [log]
        assert not (tmp_path / "data").exists()
    finally:
        await caller.close()
        await other.close()
        cluster.end()


async def test_a_node_shows_only_its_health_to_unknown_callers(cluster: _Cluster) -> None:
    process = cluster.start("m1")
    address = Ring(cluster.view).view.members[1].address
    async with httpx.AsyncClient(base_url=address) as http:
        assert (await http.get("/health")).status_code == 200
        assert (await http.get("/v1/view")).status_code == 401
        assert (await http.get("/")).status_code == 404
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert SECRET not in errors
    assert "HTTP Request" not in errors


def test_a_folder_that_nodes_share_is_not_served_by_others(cluster: _Cluster) -> None:
    cluster.start("m0")
    cluster.start("m1")
    code, errors = PipedCommand("serve", "--port", "0", "--data", cluster.folder / "data").end()
    assert code == 1
    assert "is in use by another Holdfast" in errors


def test_a_replication_that_cannot_be_used_is_refused(cluster: _Cluster) -> None:
    cluster.settings = {"CASSANDRA": "127.0.0.1", "CASSANDRA_REPLICATION": "three"}
    code, errors = cluster.run("--metadata-node", "m0").end()
    assert code == 2
    assert "cassandra_replication has to be like datacenter1=3,datacenter2=3, not 'three'" in errors
    assert not (cluster.folder / "data").exists()
