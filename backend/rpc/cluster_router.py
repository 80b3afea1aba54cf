"""A client of several backend clusters: sends each call to the cluster that its partition's id names.

::

    def nodes(number):  # returns the function that reads a cluster's node addresses
        async def read():
            return {name: Address.parse(address) for name, address in fleet.nodes(number).items()}

        return read

    backend = ClusterRouter(nodes, numbers, secret=secret, name="frontend-1")

Connects to a cluster when it is known, or at the first call to one of its partitions.  Calls raise the errors of
:class:`~backend.rpc.cluster_client.ClusterBackend`; an unreachable cluster does not affect calls to others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from backend.api import AccountCommand, Answer, Command
from backend.rpc.address import ClientTls
from backend.rpc.client import LIMITS, ClientLimits
from backend.rpc.cluster_client import ClusterBackend, ReadNodes
from backend.rpc.connection import NotSent
from backend.rpc.handshake import HandshakeRefused
from metadata_service.models import cluster_of

READY_POLL_SECONDS: Final = 0.02


class ClusterRouter:
    """Implements :class:`backend.api.Peer`."""

    def __init__(
        self,
        nodes: Callable[[int], ReadNodes],
        numbers: Callable[[], Iterable[int]],
        *,
        secret: bytes,
        name: str = "frontend",
        tls: ClientTls | None = None,
        limits: ClientLimits = LIMITS,
    ) -> None:
        """``nodes``: returns the function that reads a cluster's node addresses, by its number; ``numbers``: returns
        the numbers of all clusters that exist now.
        """
        self._nodes = nodes
        self._numbers = numbers
        self._secret = secret
        self._name = name
        self._tls = tls
        self._limits = limits
        self._clusters: dict[int, ClusterBackend] = {}

    async def close(self) -> None:
        """Close all connections."""
        clusters = list(self._clusters.values())
        self._clusters.clear()
        await asyncio.gather(*(cluster.close() for cluster in clusters))

    @property
    def connected(self) -> bool:
        """True if a node of any cluster is connected."""
        return any(cluster.connected for cluster in self._clusters.values())

    async def ready(self, seconds: float) -> None:
        """Wait until a node is connected.

        Raises :class:`backend.rpc.handshake.HandshakeRefused` if all clusters reject this client, and
        :class:`~backend.rpc.connection.NotSent` if no node can be reached in time.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            refusals: list[HandshakeRefused] = []
            clusters = [self._cluster(number) for number in self._numbers()]
            for cluster in clusters:
                try:
                    await cluster.ready(0)
                    return
                except HandshakeRefused as error:
                    refusals.append(error)
                except NotSent:
                    pass
            if refusals and len(refusals) == len(clusters):
                raise refusals[0]
            if loop.time() > deadline:
                raise NotSent("no node of any cluster can be called")
            await asyncio.sleep(READY_POLL_SECONDS)

    def _of(self, partition: int) -> ClusterBackend:
        number = cluster_of(partition)
        cluster = self._clusters.get(number)
        return cluster if cluster is not None else self._cluster(number)

    def _cluster(self, number: int) -> ClusterBackend:
        cluster = self._clusters.get(number)
        if cluster is None:
            cluster = self._clusters[number] = ClusterBackend.start(
                self._nodes(number), secret=self._secret, name=self._name, tls=self._tls, limits=self._limits
            )
        return cluster

    # --- calls ----------------------------------------------------------------------------------------------

    def call(self, command: Command[Answer]) -> Coroutine[Any, Any, Answer]:
        if isinstance(command, AccountCommand):
            return self._call_all(command)
        return self._of(command.partition).call(command)

    async def _call_all(self, command: AccountCommand[Answer]) -> Answer:
        """Call all clusters.  Raises :class:`~backend.api.Unavailable` if one does not answer."""
        clusters = [self._cluster(number) for number in self._numbers()]
        return command.merge(await asyncio.gather(*(cluster.call(command) for cluster in clusters)))
