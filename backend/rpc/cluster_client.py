"""A client of a backend cluster: sends each call to the node that owns the partition's shard.

::

    backend = await ClusterBackend.connect(nodes_of(store), secret=secret, name="frontend-1")
    await backend.ready(10)  # if wanted

The client remembers the owner of each shard, and nodes correct it: a node that is called for a shard that it does not
own refuses and names the owner (:class:`~backend.api.NotOwner`).  Such a call, and one that certainly did not start
because the node is unreachable, is retried until the call's deadline, with growing, randomized pauses.  A call with an
unknown outcome raises :class:`~backend.api.Unavailable`, as from a single node.

A node that keeps failing is avoided for a while, and another one is called, because the shard may have been taken over.
One that could not be reached is called again as soon as it is connected.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, Protocol, cast

from backend import instruments
from backend.api import AccountCommand, Answer, Command, NotOwner, Unavailable, shard_of
from backend.call_order import CallOrder, Turn
from backend.rpc.address import Address, ClientTls
from backend.rpc.client import LIMITS, ClientLimits, RemoteBackend, TurnLost, take_turn
from backend.rpc.connection import NotSent
from backend.rpc.handshake import HandshakeRefused
from backend.serving.background import LogThrottle
from metadata_service.models import Heartbeat
from metadata_service.store import Entries, StoreError

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 1.0
"""Interval between reads of the list of nodes."""
PAUSE_SECONDS_FIRST: Final = 0.01
PAUSE_SECONDS_MAX: Final = 0.1
FAILURES_AVOIDED: Final = 3
"""Consecutive failures after which a node is avoided; a missing connection counts as this many at once."""
AVOID_SECONDS_FIRST: Final = 0.2
AVOID_SECONDS_MAX: Final = 5.0

ReadNodes = Callable[[], Awaitable[Mapping[str, Address]]]
"""Reads names and addresses of the nodes.  May raise :class:`~metadata_service.store.StoreError`."""


class NodeEntries(Protocol):
    """The cluster's entries from which the list of nodes is computed."""

    async def poll_entries(self) -> Entries: ...

    async def heartbeats(self) -> list[Heartbeat]: ...


def nodes_of(store: NodeEntries, parse: Callable[[str], Address] = Address.parse) -> ReadNodes:
    """Return a function that lists the nodes with a published address whose log is still open: they have neither left
    nor been declared dead.

    ``parse`` reads the address of a heartbeat.
    """

    async def read() -> dict[str, Address]:
        logs = {entry.log_id: entry for entry in (await store.poll_entries()).logs if entry.state == "open"}
        return {
            beat.node: parse(beat.address)
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
        self._was_disconnected = False
        """True if there was no connection for the last failed call."""

    def is_usable(self, now: float) -> bool:
        """Return whether to call the node: it is not avoided, or was only disconnected and is connected again."""
        return self.avoided_until <= now or (self._was_disconnected and self.backend.connected)

    def failed(self, now: float, reached: bool) -> None:
        """Count a failed call: not answered (``reached``), or not delivered at all."""
        self._was_disconnected = not reached and not self.backend.connected
        self.failures += 1 if reached else FAILURES_AVOIDED
        over = self.failures - FAILURES_AVOIDED
        if over >= 0:
            longest = min(AVOID_SECONDS_FIRST * 2 ** min(over, 10), AVOID_SECONDS_MAX)
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
        self._order = CallOrder()
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
    def start(
        cls,
        read_nodes: ReadNodes,
        *,
        secret: bytes,
        name: str = "frontend",
        tls: ClientTls | None = None,
        limits: ClientLimits = LIMITS,
    ) -> ClusterBackend:
        """Connect like :meth:`connect`, but read the list of nodes in the background; calls wait for it."""
        cluster = cls(read_nodes, secret, name, tls, limits._replace(waits=False))
        cluster._poll_now.set()
        cluster._follow()
        return cluster

    def _follow(self) -> None:
        self._watcher = self._loop.create_task(self._watch(), name="the refresh of the cluster's nodes")

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
                raise NotSent("no node of the cluster can be called")
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
                async with asyncio.timeout(POLL_SECONDS):
                    await self._poll_now.wait()
            except TimeoutError:
                pass
            self._poll_now.clear()
            try:
                await self.know(await self._read_nodes())
                self._log_throttle.forget("nodes")
            except StoreError as error:
                if self._log_throttle.should_log("nodes", str(error)):
                    logger.warning("the list of the cluster's nodes cannot be refreshed: %s", error)
            # Pause, because a node that names unknown nodes must not cause constant reads.
            await asyncio.sleep(POLL_SECONDS / 2)

    def _member_for(self, shard: int, asked: str | None) -> _Member | None:
        """Return the shard's owner, as far as known; otherwise a usable node, preferably not the one that was just
        called."""
        now = self._loop.time()
        owner = self._members.get(self._owners.get(shard, ""))
        if owner is not None and owner.is_usable(now):
            return owner
        others = [member for member in self._members.values() if member.is_usable(now) and member is not owner]
        fresh = [member for member in others if member.name != asked]
        return random.choice(fresh or others) if others else None

    # --- calls ----------------------------------------------------------------------------------------------

    def call(self, command: Command[Answer]) -> Coroutine[Any, Any, Answer]:
        if isinstance(command, AccountCommand):
            return self._call_all(command)
        return self._call_in_order(command) if command.IN_ORDER else self._call_owner(command, None)

    async def _call_in_order(self, command: Command[Answer]) -> Answer:
        with self._order.turn(command.partition) as turn:
            try:
                return await self._call_owner(command, turn)
            except (Unavailable, asyncio.CancelledError):
                turn.fail_later()
                raise

    async def _call_all(self, command: AccountCommand[Answer]) -> Answer:
        """Call all nodes.  Raises :class:`~backend.api.Unavailable` if one of them does not answer."""
        if not self._members:
            raise NotSent("there is no node that can be called")
        answers = await asyncio.gather(*(member.backend.call(command) for member in self._members.values()))
        return command.merge(answers)

    async def _call_owner(self, command: Command[Answer], turn: Turn | None) -> Answer:
        """Call the owner of the partition's shard; time that the call takes before is not waited again.

        A call with a ``turn`` that is repeated, or whose owner is not known, lets no later one overtake it.
        """
        shard, started_at, pause = shard_of(command.partition), self._loop.time(), PAUSE_SECONDS_FIRST
        wait_seconds = command.wait_time
        seconds = self._limits.call_seconds + wait_seconds
        if turn is not None:
            if turn.is_blocked:
                await take_turn(turn.wait(started_at + seconds), turn, command)
            if shard not in self._owners:
                await take_turn(turn.hold(started_at + seconds), turn, command)
        asked: str | None = None
        hurried = False
        """True after the call was repeated without a pause: only once, because two nodes may each name the other as the
        owner."""
        why = "there is no node that can be called"
        while True:
            member = self._member_for(shard, asked)
            if member is not None and turn is not None and not turn.calls(member):
                await take_turn(turn.hold(started_at + seconds), turn, command)
                continue  # the owner may be another one now
            if member is not None:
                asked = member.name
                try:
                    taken_seconds = self._loop.time() - started_at
                    if wait_seconds and taken_seconds >= PAUSE_SECONDS_FIRST:
                        command = command.with_wait_time(max(0.0, wait_seconds - taken_seconds))
                    answer = await member.backend.call(command)
                except NotOwner as error:
                    member.answered()
                    instruments.REROUTED.add()
                    why = str(error)
                    is_new = self._learned(shard, member, error.owner)
                    if turn is not None:
                        await take_turn(turn.hold(started_at + seconds), turn, command)
                    if is_new and not hurried:
                        hurried = True
                        continue
                except TurnLost:
                    raise  # the node can be reached
                except NotSent as error:
                    member.failed(self._loop.time(), reached=False)
                    why = str(error)
                    if turn is not None:
                        await take_turn(turn.hold(started_at + seconds), turn, command)
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
            elif turn is not None:
                # No later call must find a node before this one does.
                await take_turn(turn.hold(started_at + seconds), turn, command)
            if self._loop.time() - started_at + pause > seconds:
                raise NotSent(f"shard {shard} cannot be called: {why}")
            await asyncio.sleep(random.uniform(pause / 2, pause))
            pause = min(2 * pause, PAUSE_SECONDS_MAX)
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
        return known != owner and self._members[owner].is_usable(self._loop.time())
