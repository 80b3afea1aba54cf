"""A connection to Cassandra for asyncio: statements go out from the loop, the driver's threads bring the answers back.

What consistency means here is decided once, by :class:`Scope`, and never for a single statement:

* writes and plain reads at QUORUM (or LOCAL_QUORUM), so that a read sees every write that was answered before it;
* conditions, and reads that a decision hangs on, at SERIAL (or LOCAL_SERIAL).

The driver may send a statement again, to the same node or another, only if the statement can be repeated without harm;
a conditional one never is, for its second copy would find the work of its first and report a refusal.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from cassandra import ConsistencyLevel, RequestValidationException, Unavailable
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.policies import (
    ConstantReconnectionPolicy,
    ConstantSpeculativeExecutionPolicy,
    DCAwareRoundRobinPolicy,
    FallthroughRetryPolicy,
    RoundRobinPolicy,
    TokenAwarePolicy,
)
from cassandra.query import BatchStatement, BatchType, PreparedStatement, SimpleStatement, tuple_factory

from metadata_service.opening import CannotOpen
from metadata_service.store import StoreUnavailable

ATTEMPT_SECONDS = 2.0
"""How long one statement may take."""
SPECULATIVE_SECONDS = 0.1
"""A statement that can be repeated goes to a second node when the first has not answered for this long."""
_PAUSE_SECONDS = (0.01, 0.5)
"""The least and the longest pause between two attempts."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,47}")

_REPEATABLE, _ONCE = EXEC_PROFILE_DEFAULT, "once"

Rows = list[tuple[Any, ...]]

log = logging.getLogger("holdfast.metadata")


class CassandraSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where Cassandra is, and how it keeps the metadata."""

    contact_points: tuple[str, ...]
    port: int = 9042
    keyspace: str = "holdfast"
    replication: dict[str, int]
    """Replicas in each data centre.  Counts when the keyspace is made."""
    scope: str = ""
    """A data centre whose own quorum decides; empty: that of all replicas does.  Fixed when the tables are made."""
    datacenter: str = ""
    """The data centre whose nodes are asked; empty: ``scope``, or any."""
    timeout_seconds: float = 5.0
    """How long the store tries before it says that it is unavailable."""
    user: str = ""
    password: str = ""
    strict: bool = False
    """Refuse a Cassandra whose commit log may lose what it has acknowledged, rather than only say so."""

    def __repr__(self) -> str:
        return f"CassandraSettings({', '.join(self.contact_points)}, port {self.port}, keyspace {self.keyspace})"


class Scope(msgspec.Struct, frozen=True):
    """Whose quorum decides."""

    datacenter: str = ""

    @property
    def quorum(self) -> int:
        level = ConsistencyLevel.LOCAL_QUORUM if self.datacenter else ConsistencyLevel.QUORUM
        return int(level)

    @property
    def serial(self) -> int:
        level = ConsistencyLevel.LOCAL_SERIAL if self.datacenter else ConsistencyLevel.SERIAL
        return int(level)

    def __str__(self) -> str:
        return f"the quorum of data centre {self.datacenter}" if self.datacenter else "the quorum of all replicas"


class Unanswered(Exception):
    """One attempt failed.  ``again``: another one may do better; ``sent``: it may have taken effect all the same."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.sent = not isinstance(error, (Unavailable, RequestValidationException))
        self.again = self.sent and not isinstance(error, NoHostAvailable)


class Deadline:
    """How long an operation may still try, with longer and longer pauses between its attempts."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._pause, self._pause_most = _PAUSE_SECONDS

    @property
    def left(self) -> float:
        return self._end - time.monotonic()

    async def pause(self) -> bool:
        """Wait a moment; False, at once, if no time is left for another attempt."""
        seconds = random.uniform(0, self._pause)
        self._pause = min(self._pause * 2, self._pause_most)
        if self.left <= seconds:
            return False
        await asyncio.sleep(seconds)
        return True


class CassandraConnection:
    """A session of the driver, used from one event loop.  Made by :meth:`open`."""

    def __init__(self, cluster: Cluster, session: Session, settings: CassandraSettings) -> None:
        self.settings = settings
        self.keyspace = settings.keyspace
        self.scope = Scope(settings.scope)
        self.session = session
        """For what blocks: in threads of its own."""
        self.cluster = cluster
        self._closed = False

    @classmethod
    async def open(cls, settings: CassandraSettings) -> CassandraConnection:
        """Raises :class:`CannotOpen`."""
        if not _NAME.fullmatch(settings.keyspace):
            raise CannotOpen(
                f"{settings.keyspace!r} cannot be a keyspace: small letters, digits and _, at most 48, a letter first"
            )
        return await asyncio.to_thread(cls._connect, settings)

    @classmethod
    def _connect(cls, settings: CassandraSettings) -> CassandraConnection:
        scope = Scope(settings.scope)
        near = settings.datacenter or settings.scope

        def profile(**policies: Any) -> ExecutionProfile:
            nodes = DCAwareRoundRobinPolicy(near) if near else RoundRobinPolicy()
            return ExecutionProfile(
                load_balancing_policy=TokenAwarePolicy(nodes),
                consistency_level=scope.quorum,
                serial_consistency_level=scope.serial,
                request_timeout=ATTEMPT_SECONDS,
                row_factory=tuple_factory,
                **policies,
            )

        user = settings.user
        cluster = Cluster(
            list(settings.contact_points),
            port=settings.port,
            auth_provider=PlainTextAuthProvider(user, settings.password) if user else None,
            execution_profiles={
                _REPEATABLE: profile(
                    speculative_execution_policy=ConstantSpeculativeExecutionPolicy(SPECULATIVE_SECONDS, 1)
                ),
                _ONCE: profile(retry_policy=FallthroughRetryPolicy()),
            },
            protocol_version=5,  # since Cassandra 4.0
            sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],  # else a request of 4 KiB takes 40 ms
            reconnection_policy=ConstantReconnectionPolicy(1, None),
            idle_heartbeat_interval=2,  # a node that hangs is noticed, though its connections stay open
            idle_heartbeat_timeout=1,
        )
        try:
            session = cluster.connect()
        except Exception as error:  # the driver's errors have no common base
            cluster.shutdown()
            places = ", ".join(settings.contact_points)
            raise CannotOpen(f"no Cassandra can be reached at {places}, port {settings.port}: {error}") from error
        connection = cls(cluster, session, settings)
        try:
            connection._check_commit_logs()
        except CannotOpen:
            cluster.shutdown()
            raise
        return connection

    def _check_commit_logs(self) -> None:
        """An acknowledged write has to be on the disk: else it is lost when the nodes that have it end together."""
        careless = []
        for host in self.cluster.metadata.all_hosts():
            query = SimpleStatement("SELECT value FROM system_views.settings WHERE name = 'commitlog_sync'")
            query.consistency_level = ConsistencyLevel.ONE
            try:
                ((mode,),) = self.session.execute(query, host=host)
            except Exception as error:  # the driver's errors have no common base
                log.warning("the commit log of Cassandra at %s cannot be checked: %s", host.address, error)
                continue
            if mode == "periodic":
                careless.append(host.address)
        if not careless:
            return
        text = (
            f"commitlog_sync is periodic at {', '.join(sorted(careless))}: Cassandra loses writes that were"
            " acknowledged when its nodes end together; set it to batch (or group) in cassandra.yaml of each node"
        )
        if self.settings.strict:
            raise CannotOpen(text)
        log.error("%s", text)

    async def close(self) -> None:
        """Repeatable."""
        self._closed = True
        await asyncio.to_thread(self.cluster.shutdown)

    def prepare(self, query: str, *, serial: bool = False, repeatable: bool = True) -> PreparedStatement:
        """A statement to be run; blocks.  ``serial``: a read that a decision hangs on."""
        statement = self.session.prepare(query)
        statement.consistency_level = self.scope.serial if serial else self.scope.quorum
        statement.serial_consistency_level = self.scope.serial
        statement.is_idempotent = repeatable
        statement.fetch_size = None  # what may be long is read in pages by key
        return statement

    def deadline(self) -> Deadline:
        return Deadline(self.settings.timeout_seconds)

    async def run(self, statement: PreparedStatement, values: Sequence[Any], deadline: Deadline | None = None) -> Rows:
        """The rows that a statement gives which can be repeated.  Raises :class:`StoreUnavailable`."""
        return await self._repeat(lambda: self._once(statement.bind(values), _REPEATABLE), deadline)

    async def run_all(self, statements: Sequence[tuple[PreparedStatement, Sequence[Any]]]) -> None:
        """The same for writes of one partition, in one go."""
        batch = BatchStatement(BatchType.UNLOGGED, consistency_level=self.scope.quorum)
        for statement, values in statements:
            batch.add(statement, values)
        batch.is_idempotent = True
        await self._repeat(lambda: self._once(batch, _REPEATABLE), None)

    async def attempt(self, statements: Sequence[tuple[PreparedStatement, Sequence[Any]]]) -> bool:
        """Try once to apply conditional statements of one partition, all or none.  Raises :class:`Unanswered`."""
        batch = BatchStatement(
            BatchType.UNLOGGED,
            consistency_level=self.scope.quorum,
            serial_consistency_level=self.scope.serial,
        )
        for statement, values in statements:
            batch.add(statement, values)
        rows = await self._once(batch, _ONCE)
        return bool(rows[0][0])  # the column [applied]

    async def _repeat(self, attempt: Callable[[], Any], deadline: Deadline | None) -> Rows:
        deadline = deadline or self.deadline()
        while True:
            try:
                rows: Rows = await attempt()
                return rows
            except Unanswered as error:
                if not error.again or not await deadline.pause():
                    raise StoreUnavailable(f"the metadata in Cassandra cannot be used: {error}") from error

    async def _once(self, statement: Any, profile: Any) -> Rows:
        if self._closed:
            raise StoreUnavailable("the metadata store is closed")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Rows] = loop.create_future()

        def hand_over(set_answer: Callable[[Any], None], value: Any) -> None:
            try:
                loop.call_soon_threadsafe(lambda: None if answer.done() else set_answer(value))
            except RuntimeError:
                pass  # the loop is closed: nobody waits any more

        self.session.execute_async(statement, execution_profile=profile).add_callbacks(
            lambda rows: hand_over(answer.set_result, list(rows or ())),
            lambda error: hand_over(answer.set_exception, error),
        )
        try:
            return await answer
        except Exception as error:
            raise Unanswered(error) from error


def replication(settings: Mapping[str, int]) -> str:
    """As CQL has it."""
    parts = ["'class': 'NetworkTopologyStrategy'", *(f"'{name}': {count}" for name, count in settings.items())]
    return "{" + ", ".join(parts) + "}"
