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
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final

from backend.api import (
    Counters,
    HandleOutcome,
    Handover,
    Measures,
    MoveTask,
    NewMessage,
    PartitionSettings,
    Peeked,
    Receive,
    ReceivedMessage,
    SendResult,
    Target,
    Transfer,
)
from backend.rpc.address import ClientTls
from backend.rpc.client import LIMITS, ClientLimits
from backend.rpc.cluster_client import ClusterBackend, ReadNodes
from backend.rpc.connection import NotSent
from backend.rpc.handshake import HandshakeRefused
from backend.serving.queue_stats import merged
from metadata_service.models import SERIAL_BITS

READY_LOOK_SECONDS: Final = 0.02


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
                raise NotSent("no node of any cluster can be asked")
            await asyncio.sleep(READY_LOOK_SECONDS)

    def _of(self, partition: int) -> ClusterBackend:
        cluster = self._clusters.get(partition >> SERIAL_BITS)
        return cluster if cluster is not None else self._cluster(partition >> SERIAL_BITS)

    def _cluster(self, number: int) -> ClusterBackend:
        cluster = self._clusters.get(number)
        if cluster is None:
            cluster = self._clusters[number] = ClusterBackend.begin(
                self._nodes(number), secret=self._secret, name=self._name, tls=self._tls, limits=self._limits
            )
        return cluster

    # --- calls ----------------------------------------------------------------------------------------------

    def configure(self, settings: PartitionSettings) -> Coroutine[Any, Any, None]:
        return self._of(settings.partition).configure(settings)

    def drop(self, target: Target) -> Coroutine[Any, Any, None]:
        return self._of(target.partition).drop(target)

    def purge(self, target: Target, purge_id: int) -> Coroutine[Any, Any, None]:
        return self._of(target.partition).purge(target, purge_id)

    def send(self, target: Target, messages: Sequence[NewMessage]) -> Coroutine[Any, Any, list[SendResult]]:
        return self._of(target.partition).send(target, messages)

    def receive(self, target: Target, command: Receive) -> Coroutine[Any, Any, list[ReceivedMessage]]:
        return self._of(target.partition).receive(target, command)

    def watch(self, target: Target, wait_seconds: float) -> Coroutine[Any, Any, bool]:
        return self._of(target.partition).watch(target, wait_seconds)

    def release(self, target: Target, handles: Sequence[str]) -> Coroutine[Any, Any, None]:
        return self._of(target.partition).release(target, handles)

    def delete(self, target: Target, handles: Sequence[str]) -> Coroutine[Any, Any, list[HandleOutcome]]:
        return self._of(target.partition).delete(target, handles)

    def change_visibility(
        self, target: Target, changes: Sequence[tuple[str, int]]
    ) -> Coroutine[Any, Any, list[HandleOutcome]]:
        return self._of(target.partition).change_visibility(target, changes)

    def counters(self, target: Target) -> Coroutine[Any, Any, Counters]:
        return self._of(target.partition).counters(target)

    async def stored_bytes(self, account: str) -> int:
        """Return the sum over all clusters.  Raises :class:`~backend.api.Unavailable` if one does not answer."""
        clusters = [self._cluster(number) for number in self._numbers()]
        return sum(await asyncio.gather(*(cluster.stored_bytes(account) for cluster in clusters)))

    def measures(self, target: Target) -> Coroutine[Any, Any, list[Measures]]:
        return self._of(target.partition).measures(target)

    async def measures_of(self, account: str, prefixes: Sequence[str], after: str, most: int) -> list[Measures]:
        """Return the statistics of all clusters.  Raises :class:`~backend.api.Unavailable` if one does not answer."""
        clusters = [self._cluster(number) for number in self._numbers()]
        asked = [cluster.measures_of(account, prefixes, after, most) for cluster in clusters]
        return merged(await asyncio.gather(*asked), most)

    def peek(self, target: Target, most: int, after: int = 0) -> Coroutine[Any, Any, list[Peeked]]:
        return self._of(target.partition).peek(target, most, after)

    def take(
        self, target: Target, source: int, below: int, transfers: Sequence[Transfer]
    ) -> Coroutine[Any, Any, list[int]]:
        return self._of(target.partition).take(target, source, below, transfers)

    def never(self, target: Target, source: int, below: int, numbers: Sequence[int]) -> Coroutine[Any, Any, list[int]]:
        return self._of(target.partition).never(target, source, below, numbers)

    def start_move(
        self, target: Target, destination_arn: str | None, rate_per_second: int, task_id: str | None = None
    ) -> Coroutine[Any, Any, MoveTask]:
        return self._of(target.partition).start_move(target, destination_arn, rate_per_second, task_id)

    def list_moves(self, target: Target) -> Coroutine[Any, Any, list[MoveTask]]:
        return self._of(target.partition).list_moves(target)

    def cancel_move(self, target: Target, task_id: str) -> Coroutine[Any, Any, MoveTask]:
        return self._of(target.partition).cancel_move(target, task_id)

    def hand_over(self, target: Target, slot: int, part: int) -> Coroutine[Any, Any, Handover]:
        return self._of(target.partition).hand_over(target, slot, part)

    def awaited(self, target: Target) -> Coroutine[Any, Any, list[int]]:
        return self._of(target.partition).awaited(target)

    def retire(self, target: Target, linger_seconds: int) -> Coroutine[Any, Any, bool]:
        return self._of(target.partition).retire(target, linger_seconds)

    def forget(self, target: Target) -> Coroutine[Any, Any, None]:
        return self._of(target.partition).forget(target)
