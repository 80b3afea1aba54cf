"""Kubernetes, as far as it restarts pods: played on processes of this machine, by what the chart says of the pods.

What decides whether a call fails is read from the chart as helm renders it, and nowhere else: the hook before the end,
the time until a kill, the probe that says that a pod is ready, and for how long it has to be so before the next pod
goes.  So a chart that is changed for the worse fails the test.

* :class:`Service` is a balancer as kube-proxy is one: it gives each new connection to one of the pods that are ready
  and not about to end, and knows of a pod's end some time after it was decided.  Connections that it has stay.
* :func:`replace` ends a pod and starts another in its place, as a kubelet does.
* :func:`roll_out` does so with all pods of a StatefulSet, one by one, from the last to the first.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, Self

from bench.cluster import HOST, Process
from tests.helm.chart import FILES, kinds, render

LEARNS_SECONDS = 0.5
"""Until the balancer knows that a pod is about to end."""
READY_SECONDS = 60.0


class Pods(NamedTuple):
    """What the chart says of the pods of a StatefulSet."""

    component: str
    hook: list[str]
    """The command that runs before the end; empty: there is none."""
    grace_seconds: float
    """From the decision to the kill."""
    ready_path: str
    ready_port: str
    min_ready_seconds: float


def read_chart(*arguments: str) -> tuple[dict[str, Pods], list[str]]:
    """Pods by component, and the command that runs before an upgrade; with these arguments of ``helm template``."""
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


class Pod(NamedTuple):
    """One of them: a process, and where it says whether it is ready."""

    process: Process
    of: Pods
    ready_at: int
    """The port."""

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


class Service:
    """A balancer before some ports, at a port of its own."""

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
        """It gets no new connections."""
        self._ready.discard(port)

    def join(self, port: int) -> None:
        self._ready.add(port)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            theirs = await asyncio.open_connection(HOST, random.choice(sorted(self._ready)))
        except (OSError, IndexError):
            writer.transport.abort()  # nobody is there: the client's call fails
            return
        try:
            await asyncio.gather(_pass_on(reader, theirs[1]), _pass_on(theirs[0], writer))
        finally:
            writer.transport.abort()
            theirs[1].transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """All bytes, and then the end."""
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def replace(pod: Pod, service: Service | None) -> None:
    """End it as its end was written down, start it again, and return when it is ready."""
    began = time.monotonic()
    port = int(pod.process.address.rpartition(":")[2])
    if service is not None:
        asyncio.get_running_loop().call_later(LEARNS_SECONDS, service.leave, port)
    if pod.of.hook:
        hook = await asyncio.create_subprocess_exec(*pod.of.hook)
        assert await hook.wait() == 0
    code = await asyncio.to_thread(pod.process.stop)
    assert code == 0, f"{pod.process.name} ended with {code}:\n{pod.process.log()[-3000:]}"
    took = time.monotonic() - began
    assert took < pod.of.grace_seconds, f"{pod.process.name} would have been killed: its end took {took:.1f} s"
    pod.process.start(wait=False)
    end = time.monotonic() + READY_SECONDS
    while not await pod.is_ready():
        assert pod.process.running, f"{pod.process.name} does not start:\n{pod.process.log()[-3000:]}"
        assert time.monotonic() < end, f"{pod.process.name} is not ready after {READY_SECONDS:g} s"
        await asyncio.sleep(0.05)
    if service is not None:
        service.join(port)


async def roll_out(pods: Sequence[Pod], service: Service | None = None) -> None:
    """Replace all, each when the one before has been ready for as long as the chart wants it."""
    for pod in reversed(pods):
        await replace(pod, service)
        if pod is not pods[0]:
            await asyncio.sleep(pod.of.min_ready_seconds)
