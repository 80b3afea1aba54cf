"""``holdfast metadata``: real nodes, and their callers' view when one ends."""

from __future__ import annotations

import asyncio
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from bench.servers.cassandra_server import CassandraCluster
from metadata_service.nodes.remote_store import RemoteStore
from metadata_service.nodes.ring import Ring, RingView, parse_members
from metadata_service.store import MetadataStore, QueueExists
from tests.holdfast.pairs import make_pair
from tests.metadata_service.conformance import ACCOUNT, NOW_MS, create
from tests.metadata_service.nodes.test_remote_store import queue_of
from tests.servers.server import clean_environment, free_port

ROOT = Path(__file__).resolve().parents[3]
SECRET = "the secret of this cluster"


class _Cluster:
    """``holdfast metadata`` on free ports, with one data folder."""

    def __init__(self, folder: Path, count: int, scheme: str = "http", **settings: str) -> None:
        self.folder = folder
        self.nodes = ",".join(f"m{number}={scheme}://127.0.0.1:{free_port()}" for number in range(count))
        self.view = RingView.of(1, parse_members(self.nodes))
        self.settings = settings
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self._all: list[subprocess.Popen[str]] = []

    def start(self, name: str) -> subprocess.Popen[str]:
        process = self.run("--metadata-node", name)
        self.processes[name] = process
        assert process.stdout is not None
        assert process.stdout.readline().startswith(f"Metadata node {name} is at "), process.communicate()[1]
        return process

    def run(self, *arguments: str) -> subprocess.Popen[str]:
        secret = {} if "CLUSTER_SECRET_FILE" in self.settings else {"CLUSTER_SECRET": SECRET}
        settings = {**secret, "METADATA_NODES": self.nodes, **self.settings}
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "metadata", "--data", str(self.folder / "data"), *arguments],
            cwd=ROOT,
            env=clean_environment() | {f"HOLDFAST_{name}": value for name, value in settings.items()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._all.append(process)
        return process

    def end(self) -> None:
        for process in self._all:
            if process.poll() is None:
                process.kill()
            if process.stdout is not None and not process.stdout.closed:
                process.communicate(timeout=60)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[_Cluster]:
    made = _Cluster(tmp_path, 2)
    yield made
    made.end()


async def _read_until(store: MetadataStore, name: str, stopped: asyncio.Event) -> int:
    """Read without pauses; returns the number of answers.  Raises any error."""
    count = 0
    while not stopped.is_set():
        assert (await store.get_queue(ACCOUNT, name)).name == name
        count += 1
    return count


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
async def test_reads_go_on_when_a_node_ends(cluster: _Cluster, number: signal.Signals) -> None:
    for member in cluster.view.members:
        cluster.start(member.name)
    caller = RemoteStore(cluster.view, SECRET.encode())
    try:
        name = queue_of(cluster.view, "m0")
        queue = await create(caller.store, name)
        stopped = asyncio.Event()
        readers = [asyncio.create_task(_read_until(caller.store, name, stopped)) for _ in range(4)]
        while not caller._peers.get("m0"):
            await asyncio.sleep(0.01)
        cluster.processes["m0"].send_signal(number)
        while not caller._peers["m0"].failures:
            await asyncio.sleep(0.01)
        if number == signal.SIGTERM:
            assert await asyncio.to_thread(cluster.processes["m0"].wait, 60) == 0
        changed = await caller.store.update_queue(queue.queue_id, 1, now_ms=NOW_MS, tags={"a": "b"})
        assert await caller.store.get_queue(ACCOUNT, name) == changed
        stopped.set()
        for reader in readers:
            assert await reader > 0
        if number == signal.SIGKILL:
            again = cluster.start("m0")
            while caller._peers["m0"].failures:
                await caller.store.get_queue(ACCOUNT, name)
            again.terminate()
            assert await asyncio.to_thread(again.wait, 60) == 0
    finally:
        await caller.close()


async def test_who_has_no_certificate_can_see_the_health_of_a_node(tmp_path: Path) -> None:
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
        assert (await create(caller.store, "orders")).version == 1
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
        queues = [await create(caller.store, name) for name in names]
        with pytest.raises(QueueExists):
            await create(other.store, names[0])
        cluster.processes["m0"].kill()
        await asyncio.to_thread(cluster.processes["m0"].wait, 60)
        for queue in queues:
            changed = await caller.store.update_queue(queue.queue_id, 1, now_ms=NOW_MS, tags={"a": "b"})
            assert await other.store.get_queue(ACCOUNT, queue.name) == changed
        log = await caller.store.new_incarnation("a")
        assert await other.store.logs() == [log]
        assert not (tmp_path / "data").exists()
    finally:
        await caller.close()
        await other.close()
        cluster.end()


async def test_a_node_says_how_it_is_and_nothing_else_to_strangers(cluster: _Cluster) -> None:
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
    serve = subprocess.run(
        [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--data", str(cluster.folder / "data")],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert serve.returncode == 1
    assert "is in use by another Holdfast" in serve.stderr


def test_what_does_not_use_cassandra_refuses_it(tmp_path: Path) -> None:
    serve = subprocess.run(
        [sys.executable, "-m", "holdfast", "serve", "--data", str(tmp_path / "data")],
        cwd=ROOT,
        env=clean_environment() | {"HOLDFAST_CASSANDRA": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert serve.returncode == 2
    assert "cassandra is for a service in parts" in serve.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("settings", "arguments", "said"),
    [
        ({"CLUSTER_SECRET": "short"}, ["--metadata-node", "m0"], "cluster_secret has 5 bytes; it takes at least 16"),
        ({"METADATA_NODES": "m0=10.0.0.1"}, ["--metadata-node", "m0"], "address of 'm0' has to be like http"),
        ({"METADATA_HINTS": "memory://"}, [], "metadata_hints: a Redis is at redis://host:port/database"),
        (
            {"CASSANDRA": "127.0.0.1", "CASSANDRA_REPLICATION": "three"},
            ["--metadata-node", "m0"],
            "cassandra_replication has to be like datacenter1=3,datacenter2=3, not 'three'",
        ),
        ({}, [], "metadata_node has to say which of metadata_nodes this process is"),
        ({}, ["--metadata-node", "m7"], "metadata_node 'm7' is not among metadata_nodes (m0, m1)"),
        (
            {"TLS_CERT": "a", "TLS_KEY": "b"},
            ["--metadata-node", "m0"],
            "has to begin with https if there is a cluster_tls_cert or a tls_cert, else with http",
        ),
        ({}, ["--metadata-node", "m0", "--cluster-secret-file", "x"], "cannot both be given"),
        ({"CLUSTER_SECRET_FILE": "/none"}, ["--metadata-node", "m0"], "cluster_secret_file /none cannot be read"),
    ],
)
def test_wrong_settings_are_told(cluster: _Cluster, settings: dict[str, str], arguments: list[str], said: str) -> None:
    cluster.settings = settings
    process = cluster.run(*arguments)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert said in errors
    assert not (cluster.folder / "data").exists()
