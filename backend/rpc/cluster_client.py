"""A client of a backend cluster: sends each call to the node that owns the partition's shard.

::

    backend = await ClusterBackend.connect(nodes_of(store), secret=secret, name="frontend-1")
    await backend.ready(10)  # if wanted

The client remembers the owner of each shard, and nodes correct it: a node that is called for a shard that it does not
own refuses and names the owner (:class:`~backend.api.NotOwner`).  Such a call, and one that certainly did not begin
because the node is unreachable, is retried until the call's deadline, with growing, randomized pauses.  A call with an
unknown outcome raises :class:`~backend.api.Unavailable`, as from a single node.

A node that keeps failing is avoided for a while, and another one is asked for the shard's owner, because the shard may
have been taken over.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar, cast

import msgspec

from backend import instruments
from backend.api import (
    Counters,
    HandleOutcome,
    Handover,
    Measures,
    MoveTask,
    NewMessage,
    NotOwner,
    PartitionSettings,
    Peeked,
    Peer,
    Receive,
    ReceivedMessage,
    SendResult,
    Target,
    Transfer,
    Unavailable,
)
from backend.rpc.address import Address, ClientTls
from backend.rpc.client import LIMITS, ClientLimits, RemoteBackend
from backend.rpc.connection import NotSent
from backend.rpc.handshake import HandshakeRefused
from backend.serving.background import LogThrottle
from backend.serving.queue_stats import merged
from backend.serving.shards import shard_of
from metadata_service.models import Heartbeat
from metadata_service.store import Entries, StoreError

logger = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_SECONDS: Final = 1.0
"""Interval between reads of the list of nodes."""
PAUSE_SECONDS_FIRST: Final = 0.01
PAUSE_SECONDS_MOST: Final = 0.1
FAILURES_AVOIDED: Final = 3
"""Consecutive failures after which a node is avoided; a missing connection counts as this many at once."""
AVOID_SECONDS_FIRST: Final = 0.2
AVOID_SECONDS_MOST: Final = 5.0

ReadNodes = Callable[[], Awaitable[Mapping[str, Address]]]
"""Reads names and addresses of the nodes.  May raise :class:`~metadata_service.store.StoreError`."""


class Signs(Protocol):
    """The cluster's entries from which the list of nodes is computed."""

    async def poll_entries(self) -> Entries: ...

    async def heartbeats(self) -> list[Heartbeat]: ...


def nodes_of(store: Signs, reach: Callable[[str], Address] = Address.parse) -> ReadNodes:
    """Return a function that lists the nodes with a published address whose log is still open: they have neither left
    nor been declared dead.

    ``reach`` parses the address of a heartbeat.
    """

    async def read() -> dict[str, Address]:
        logs = {entry.log_id: entry for entry in (await store.poll_entries()).logs if entry.state == "open"}
        return {
            beat.node: reach(beat.address)
            for beat in await store.heartbeats()
            if beat.address and beat.log_id in logs and logs[beat.log_id].incarnation == beat.incarnation
        }

    return read


class _Member:
    """One node of the cluster."""

    def __init__(self, name: str, backend: RemoteBackend) -> None:
        self.name = name
        self.backend = backend
        self.failures = 0
        """Consecutive failures."""
        self.avoided_until = 0.0

    def failed(self, now: float, reached: bool) -> None:
        """Count a failed call: not answered (``reached``), or not delivered at all."""
        self.failures += 1 if reached else FAILURES_AVOIDED
        over = self.failures - FAILURES_AVOIDED
        if over >= 0:
            longest = min(AVOID_SECONDS_FIRST * 2 ** min(over, 10), AVOID_SECONDS_MOST)
            self.avoided_until = now + random.uniform(longest / 2, longest)

    def answered(self) -> None:
        self.failures = 0
        self.avoided_until = 0.0


class ClusterBackend:
    """Implements :class:`backend.api.Peer`.  Made by :meth:`connect`."""

    def __init__(
        self, read_nodes: ReadNodes, secret: bytes, name: str, tls: ClientTls | None, limits: ClientLimits
    ) -> None:
        self._read_nodes = read_nodes
        self._secret = secret
        self._name = name
        self._tls = tls
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._members: dict[str, _Member] = {}
        self._owners: dict[int, str] = {}
        """Shard → name of the node that owns it, as far as this client knows."""
        self._watcher: asyncio.Task[None] | None = None
        self._poll_now = asyncio.Event()
        self._log_throttle = LogThrottle()
        """Logs repeated errors of the list of nodes once."""

    @classmethod
    async def connect(
        cls,
        read_nodes: ReadNodes,
        *,
        secret: bytes,
        name: str = "frontend",
        tls: ClientTls | None = None,
        limits: ClientLimits = LIMITS,
    ) -> ClusterBackend:
        """Begin to connect to the nodes of the cluster, and follow their changes.  ``name`` is for the nodes' logs.

        Raises :class:`~metadata_service.store.StoreError` when the list of nodes cannot be read.
        """
        cluster = cls(read_nodes, secret, name, tls, limits._replace(waits=False))
        await cluster.know(await read_nodes())
        cluster._follow()
        return cluster

    @classmethod
    def begin(
        cls,
        read_nodes: ReadNodes,
        *,
        secret: bytes,
        name: str = "frontend",
        tls: ClientTls | None = None,
        limits: ClientLimits = LIMITS,
    ) -> ClusterBackend:
        """Begin like :meth:`connect`, but read the list of nodes in the background; calls wait for it."""
        cluster = cls(read_nodes, secret, name, tls, limits._replace(waits=False))
        cluster._poll_now.set()
        cluster._follow()
        return cluster

    def _follow(self) -> None:
        self._watcher = self._loop.create_task(self._watch(), name="the watch over the nodes of the cluster")

    async def close(self) -> None:
        """Close all connections."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait([self._watcher])
        await self.know({})

    @property
    def connected(self) -> bool:
        """Return whether at least one node is connected."""
        return any(member.backend.connected for member in self._members.values())

    async def ready(self, seconds: float) -> None:
        """Wait until a node is connected.

        Raises :class:`backend.rpc.handshake.HandshakeRefused` if all nodes reject this client, and
        :class:`NotSent` if none can be reached in time.
        """
        deadline = self._loop.time() + seconds
        while not self.connected:
            refusals = [member.backend.refusal for member in self._members.values()]
            if refusals and all(refusals):
                raise cast(HandshakeRefused, refusals[0])
            if self._loop.time() > deadline:
                raise NotSent("no node of the cluster can be asked")
            await asyncio.sleep(PAUSE_SECONDS_FIRST)

    # --- the nodes ------------------------------------------------------------------------------------------

    async def know(self, nodes: Mapping[str, Address]) -> None:
        """Set the list of nodes; connect to new ones and close the connections to others."""
        gone = [
            self._members.pop(name)
            for name, member in list(self._members.items())
            if nodes.get(name) != member.backend.address
        ]
        for name, address in nodes.items():
            if name not in self._members:
                backend = await RemoteBackend.connect(
                    address, secret=self._secret, name=self._name, tls=self._tls, limits=self._limits
                )
                self._members[name] = _Member(name, backend)
        for member in gone:
            await member.backend.close()

    async def _watch(self) -> None:
        while True:
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._poll_now.wait()
            except TimeoutError:
                pass
            self._poll_now.clear()
            try:
                await self.know(await self._read_nodes())
                self._log_throttle.settled("nodes")
            except StoreError as error:
                if self._log_throttle.should_log("nodes", str(error)):
                    logger.warning("which nodes the cluster has is not known anew: %s", error)
            # A node that names unknown nodes must not cause constant reads.
            await asyncio.sleep(LOOK_SECONDS / 2)

    def _member_for(self, shard: int, asked: str | None) -> _Member | None:
        """Return the shard's owner, as far as known; otherwise a usable node, preferably not the one just asked."""
        now = self._loop.time()
        owner = self._members.get(self._owners.get(shard, ""))
        if owner is not None and owner.avoided_until <= now:
            return owner
        others = [member for member in self._members.values() if member.avoided_until <= now and member is not owner]
        fresh = [member for member in others if member.name != asked]
        return random.choice(fresh or others) if others else None

    # --- calls ----------------------------------------------------------------------------------------------

    async def _call(self, partition: int, ask: Callable[[Peer, float], Awaitable[T]], seconds: float) -> T:
        """Send a call to the owner of the partition's shard; ``ask`` gets the time the call has taken so far, in
        seconds.
        """
        shard, started_at, pause = shard_of(partition), self._loop.time(), PAUSE_SECONDS_FIRST
        asked: str | None = None
        hurried = False
        """The call was repeated without a pause.  Once is enough: two nodes may each name the other as the owner."""
        why = "there is no node that can be asked"
        while True:
            member = self._member_for(shard, asked)
            if member is not None:
                asked = member.name
                try:
                    answer = await ask(member.backend, self._loop.time() - started_at)
                except NotOwner as error:
                    member.answered()
                    instruments.REROUTED.add()
                    why = str(error)
                    if self._learned(shard, member, error.owner) and not hurried:
                        hurried = True
                        continue
                except NotSent as error:
                    member.failed(self._loop.time(), reached=False)
                    why = str(error)
                    continue  # at once: another node may own the shard, or know the owner
                except Unavailable:
                    member.failed(self._loop.time(), reached=True)
                    raise
                else:
                    if member.failures:
                        member.answered()
                    if self._owners.get(shard) != member.name:
                        self._owners[shard] = member.name
                    return answer
            if self._loop.time() - started_at + pause > seconds:
                raise NotSent(f"shard {shard} cannot be asked: {why}")
            await asyncio.sleep(random.uniform(pause / 2, pause))
            pause = min(2 * pause, PAUSE_SECONDS_MOST)
            hurried = False

    def _learned(self, shard: int, member: _Member, owner: str | None) -> bool:
        """Record the owner that a node has named; return whether to call that owner at once, because it is new."""
        known = self._owners.get(shard)
        if owner is None or owner == member.name:
            if known == member.name:
                del self._owners[shard]
            return False
        if owner not in self._members:
            self._owners.pop(shard, None)
            self._poll_now.set()
            return False
        self._owners[shard] = owner
        return known != owner and self._members[owner].avoided_until <= self._loop.time()

    def _plain(self, target: Target, ask: Callable[[Peer], Awaitable[T]]) -> Coroutine[Any, Any, T]:
        return self._call(target.partition, lambda node, _: ask(node), self._limits.call_seconds)

    def configure(self, settings: PartitionSettings) -> Coroutine[Any, Any, None]:
        return self._call(settings.partition, lambda node, _: node.configure(settings), self._limits.call_seconds)

    def drop(self, target: Target) -> Coroutine[Any, Any, None]:
        return self._plain(target, lambda node: node.drop(target))

    def purge(self, target: Target, purge_id: int) -> Coroutine[Any, Any, None]:
        return self._plain(target, lambda node: node.purge(target, purge_id))

    def send(self, target: Target, messages: Sequence[NewMessage]) -> Coroutine[Any, Any, list[SendResult]]:
        return self._plain(target, lambda node: node.send(target, messages))

    def receive(self, target: Target, command: Receive) -> Coroutine[Any, Any, list[ReceivedMessage]]:
        def ask(node: Peer, taken_seconds: float) -> Awaitable[list[ReceivedMessage]]:
            if not command.wait_seconds or taken_seconds < PAUSE_SECONDS_FIRST:
                return node.receive(target, command)
            left = max(0.0, command.wait_seconds - taken_seconds)
            return node.receive(target, msgspec.structs.replace(command, wait_seconds=left))

        return self._call(target.partition, ask, self._limits.call_seconds + command.wait_seconds)

    def watch(self, target: Target, wait_seconds: float) -> Coroutine[Any, Any, bool]:
        def ask(node: Peer, taken_seconds: float) -> Awaitable[bool]:
            return node.watch(target, max(0.0, wait_seconds - taken_seconds))

        return self._call(target.partition, ask, self._limits.call_seconds + wait_seconds)

    def release(self, target: Target, handles: Sequence[str]) -> Coroutine[Any, Any, None]:
        return self._plain(target, lambda node: node.release(target, handles))

    def delete(self, target: Target, handles: Sequence[str]) -> Coroutine[Any, Any, list[HandleOutcome]]:
        return self._plain(target, lambda node: node.delete(target, handles))

    def change_visibility(
        self, target: Target, changes: Sequence[tuple[str, int]]
    ) -> Coroutine[Any, Any, list[HandleOutcome]]:
        return self._plain(target, lambda node: node.change_visibility(target, changes))

    def counters(self, target: Target) -> Coroutine[Any, Any, Counters]:
        return self._plain(target, lambda node: node.counters(target))

    async def stored_bytes(self, account: str) -> int:
        """Return the sum over all nodes.  Raises :class:`~backend.api.Unavailable` if one of them does not answer."""
        if not self._members:
            raise NotSent("there is no node that can be asked")
        return sum(await asyncio.gather(*(member.backend.stored_bytes(account) for member in self._members.values())))

    def measures(self, target: Target) -> Coroutine[Any, Any, list[Measures]]:
        return self._plain(target, lambda node: node.measures(target))

    async def measures_of(self, account: str, prefixes: Sequence[str], after: str, most: int) -> list[Measures]:
        """Return the statistics of all nodes.  Raises :class:`~backend.api.Unavailable` if one does not answer."""
        if not self._members:
            raise NotSent("there is no node that can be asked")
        members = list(self._members.values())
        asked = [member.backend.measures_of(account, prefixes, after, most) for member in members]
        return merged(await asyncio.gather(*asked), most)

    def peek(self, target: Target, most: int, after: int = 0) -> Coroutine[Any, Any, list[Peeked]]:
        return self._plain(target, lambda node: node.peek(target, most, after))

    def take(
        self, target: Target, source: int, below: int, transfers: Sequence[Transfer]
    ) -> Coroutine[Any, Any, list[int]]:
        return self._plain(target, lambda node: node.take(target, source, below, transfers))

    def never(self, target: Target, source: int, below: int, numbers: Sequence[int]) -> Coroutine[Any, Any, list[int]]:
        return self._plain(target, lambda node: node.never(target, source, below, numbers))

    def start_move(
        self, target: Target, destination_arn: str | None, rate_per_second: int, task_id: str | None = None
    ) -> Coroutine[Any, Any, MoveTask]:
        return self._plain(target, lambda node: node.start_move(target, destination_arn, rate_per_second, task_id))

    def list_moves(self, target: Target) -> Coroutine[Any, Any, list[MoveTask]]:
        return self._plain(target, lambda node: node.list_moves(target))

    def cancel_move(self, target: Target, task_id: str) -> Coroutine[Any, Any, MoveTask]:
        return self._plain(target, lambda node: node.cancel_move(target, task_id))

    def hand_over(self, target: Target, slot: int, part: int) -> Coroutine[Any, Any, Handover]:
        return self._plain(target, lambda node: node.hand_over(target, slot, part))

    def awaited(self, target: Target) -> Coroutine[Any, Any, list[int]]:
        return self._plain(target, lambda node: node.awaited(target))

    def retire(self, target: Target, linger_seconds: int) -> Coroutine[Any, Any, bool]:
        return self._plain(target, lambda node: node.retire(target, linger_seconds))

    def forget(self, target: Target) -> Coroutine[Any, Any, None]:
        return self._plain(target, lambda node: node.forget(target))
