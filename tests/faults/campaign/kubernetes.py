"""Simulation of Kubernetes restarting pods, with processes of this machine and parameters from the chart.

Everything that decides whether a call fails is read from the chart as helm renders it: the preStop hook, the
termination grace period, the readiness probe, and the time for which a pod must be ready before the next one is
replaced.  So a harmful change of the chart fails the test.

* :class:`ServiceBalancer` is a balancer like kube-proxy: it gives each new connection to one of the pods that are ready
  and not terminating, and learns of a pod's termination with a delay.  Existing connections stay.
* :func:`replace` ends a pod and starts another in its place, like a kubelet.
* :func:`roll_out` does so with all pods of a StatefulSet, one by one, from the last to the first.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, Self

from tests.helm.chart import FILES, kinds, render
from tests.servers.local_cluster import HOST, Process

LEARNS_SECONDS = 0.5
"""Delay after which the balancer knows that a pod is terminating."""
READY_SECONDS = 60.0


class Pods(NamedTuple):
    """Parameters of a StatefulSet's pods, from the chart."""

    component: str
    hook: list[str]
    """Command of the preStop hook; empty: there is none."""
    grace_seconds: float
    ready_path: str
    ready_port: str
    min_ready_seconds: float


def read_chart(*arguments: str) -> tuple[dict[str, Pods], list[str]]:
    """Return pods by component, and the command before an upgrade, for these arguments of ``helm template``."""
    manifests = tuple(render("--values", str(FILES["many"]), *arguments))
    (job,) = kinds(manifests, "Job")
    assert "pre-upgrade" in job["metadata"]["annotations"]["helm.sh/hook"]
    (first,) = job["spec"]["template"]["spec"]["containers"]
    found = {}
    for one in kinds(manifests, "StatefulSet"):
        pod = one["spec"]["template"]
        (container,) = pod["spec"]["containers"]
        (how,) = container.get("lifecycle", {}).get("preStop", {"exec": {"command": []}}).values()
        probe = container["readinessProbe"]["httpGet"]
        assert one["spec"].get("updateStrategy", {"type": "RollingUpdate"})["type"] == "RollingUpdate"
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        found[component] = Pods(
            component,
            how["command"],
            pod["spec"]["terminationGracePeriodSeconds"],
            probe["path"],
            probe["port"],
            one["spec"].get("minReadySeconds", 0),
        )
    return found, first["args"]


class ProbedPod(NamedTuple):
    """A pod: a process with its readiness probe."""

    process: Process
    of: Pods
    ready_at: int
    """Port of the readiness probe."""

    async def is_ready(self) -> bool:
        try:
            reader, writer = await asyncio.open_connection(HOST, self.ready_at)
        except OSError:
            return False
        try:
            writer.write(f"GET {self.of.ready_path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
            return b" 200 " in await reader.readline()
        except OSError:
            return False
        finally:
            writer.close()


class ServiceBalancer:
    """A balancer with a port of its own, in front of several ports."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.port = 0
        self._ready = set(ports)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for each in list(self._connections):
            each.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def leave(self, port: int) -> None:
        """Give this port no new connections."""
        self._ready.discard(port)

    def join(self, port: int) -> None:
        self._ready.add(port)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            upstream = await asyncio.open_connection(HOST, random.choice(sorted(self._ready)))
        except (OSError, IndexError):
            writer.transport.abort()  # the connection fails, and so does the client's call
            return
        try:
            await asyncio.gather(_pass_on(reader, upstream[1]), _pass_on(upstream[0], writer))
        finally:
            writer.transport.abort()
            upstream[1].transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy all bytes, and then the end."""
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def replace(pod: ProbedPod, service: ServiceBalancer | None) -> None:
    """End a pod as the chart says, start it again, and return when it is ready."""
    started_at = time.monotonic()
    port = int(pod.process.address.rpartition(":")[2])
    if service is not None:
        asyncio.get_running_loop().call_later(LEARNS_SECONDS, service.leave, port)
    if pod.of.hook:
        hook = await asyncio.create_subprocess_exec(*pod.of.hook)
        assert await hook.wait() == 0
    code = await asyncio.to_thread(pod.process.stop)
    assert code == 0, f"{pod.process.name} ended with {code}:\n{pod.process.log()[-3000:]}"
    took = time.monotonic() - started_at
    assert took < pod.of.grace_seconds, f"{pod.process.name} would have been killed: its end took {took:.1f} s"
    pod.process.start(wait=False)
    end = time.monotonic() + READY_SECONDS
    while not await pod.is_ready():
        assert pod.process.running, f"{pod.process.name} does not start:\n{pod.process.log()[-3000:]}"
        assert time.monotonic() < end, f"{pod.process.name} is not ready after {READY_SECONDS:g} s"
        await asyncio.sleep(0.05)
    if service is not None:
        service.join(port)


async def roll_out(pods: Sequence[ProbedPod], service: ServiceBalancer | None = None) -> None:
    """Replace all pods, each after the one before has been ready for the chart's minimum time."""
    for pod in reversed(pods):
        await replace(pod, service)
        if pod is not pods[0]:
            await asyncio.sleep(pod.of.min_ready_seconds)
