"""The connection of a process to Cassandra: statements are sent from the loop, the driver's threads deliver the
answers.

A process has one connection for all its keyspaces: the metadata's records
(:mod:`metadata_service.cassandra.driver.keyspace`), a cluster's entries, and the rows of its journal
(``backend/journal/cassandra/tables.py``).  :class:`Scope` fixes the consistency levels once, for all
statements:

* writes and plain reads at QUORUM (or LOCAL_QUORUM), so that a read sees every write answered before it;
* conditional statements, and reads on which a decision depends, at SERIAL (or LOCAL_SERIAL).

The driver may resend a statement, to the same node or another, only if it is idempotent.  A conditional
statement never is: its second copy would find the work of the first and report a failed condition.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
from cassandra import (
    ConsistencyLevel,
    InvalidRequest,
    OperationTimedOut,
    RequestExecutionException,
    RequestValidationException,
    Unavailable,
)
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.connection import ConnectionBusy, ConnectionException
from cassandra.policies import (
    ConstantReconnectionPolicy,
    ConstantSpeculativeExecutionPolicy,
    DCAwareRoundRobinPolicy,
    FallthroughRetryPolicy,
    HostStateListener,
    RoundRobinPolicy,
    TokenAwarePolicy,
)
from cassandra.protocol import RequestExecutionException as ExecutionMessage
from cassandra.protocol import ServerError
from cassandra.query import PreparedStatement, SimpleStatement, tuple_factory

from metadata_service.cassandra.driver.direct_connection import DirectConnection
from metadata_service.cassandra.driver.errors import describe, is_too_slow
from metadata_service.opening import CannotOpen

SPECULATIVE_SECONDS: Final = 0.1
"""An idempotent statement not answered within this time is also sent to another node."""
SPECULATIVE_COPIES: Final = 2
CONTROL_SECONDS: Final = 5.0
"""Timeout of the driver's control connection.  With the driver's default of 2 s, a busy node (during a garbage
collection, for example) counted as unreachable."""
OPEN_SECONDS: Final = 120.0
"""Time for which opening is tried again while nodes accept connections but do not answer in time.  Nodes that restart
on a busy machine need more than half a minute."""
_OPEN_LOG_SECONDS: Final = 30.0
"""Interval of the log lines meanwhile."""
_OPEN_AGAIN_SECONDS: Final = 0.5
_VISIBLE_SECONDS = 5.0
"""Time for which a statement on a table that a node does not serve yet is prepared again."""
_DDL_SECONDS: Final = 60.0
_ASK_TRIES: Final = 3
_ASK_AGAIN_SECONDS: Final = 0.5
"""Pause before a node is called again, because a node whose connections are just being opened may not answer at
once."""
_DRIVER_LOGS: Final = ("cassandra.cluster", "cassandra.pool", "cassandra.connection")
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,47}")

HELD: Final = "held"
"""State read from the entry of an open log while it is held.  It is temporary."""

REPEATABLE, ONCE = EXEC_PROFILE_DEFAULT, "once"
"""Execution profiles: for statements that may be resent, and for statements that may not."""
_PASSING: Final = (
    RequestExecutionException,  # no quorum alive, no answer in time from a quorum, or a node that failed
    ExecutionMessage,
    ServerError,
    OperationTimedOut,
    NoHostAvailable,
    ConnectionException,
    ConnectionBusy,
)

Rows = list[tuple[Any, ...]]

log = logging.getLogger("holdfast.cassandra")


class CassandraSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses of Cassandra and options for connecting to it."""

    contact_points: tuple[str, ...]
    port: int = 9042
    replication: dict[str, int]
    """Number of replicas in each data centre.  Used when a keyspace is created."""
    scope: str = ""
    """Data centre whose quorum decides; empty: the quorum of all replicas.  Fixed when the tables are created."""
    datacenter: str = ""
    """Data centre whose nodes get the requests; empty: ``scope``, or any."""
    attempt_seconds: float = 2.0
    """Timeout of one statement."""
    timeout_seconds: float = 5.0
    """Time for which a store retries before it reports that it is unavailable."""
    user: str = ""
    password: str = ""
    tls: ssl.SSLContext | None = None
    """Trusted authorities and the client's certificate; None: connections are not encrypted."""
    strict: bool = False
    """Refuse a Cassandra whose commit log may lose acknowledged writes, instead of only logging an error."""

    def __repr__(self) -> str:
        return f"CassandraSettings({', '.join(self.contact_points)}, port {self.port})"


class Scope(msgspec.Struct, frozen=True):
    """The replicas whose quorum decides."""

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


class FenceQuery(NamedTuple):
    """Query with which a log's writer reads the state in its log's entry.  Supplied by the store of entries."""

    statement: str
    """Statement that selects one column of one row, of a table named with its keyspace."""
    values: Callable[[int], Sequence[Any]]
    """Values of the statement for a log id."""
    state: Callable[[Any], str]
    """Decoder of that column into a state; :data:`HELD` while an open log is held."""
    end_hold: Callable[[int], Awaitable[None]]
    """Function that ends a hold of a log, whichever process holds it.  Raises
    :class:`~metadata_service.store.StoreError`."""


class UnsafeCommitLog(CannotOpen):
    """Cassandra acknowledges writes that a crash of several nodes can undo, and strict mode forbids that."""


class ConnectionClosed(Exception):
    """The connection was closed: the statement was not sent."""


class StatementFailed(Exception):
    """A statement failed with the driver's ``error``."""

    def __init__(self, error: Exception) -> None:
        super().__init__(describe(error))
        self.error = error
        self.sent = not isinstance(error, (Unavailable, RequestValidationException))
        """True if the statement may have taken effect nevertheless."""
        self.again = self.sent and not isinstance(error, NoHostAvailable)
        """True if an immediate retry may succeed."""
        self.passing = isinstance(error, _PASSING)
        """True if the cause may be temporary."""


Done = Callable[[Rows | Exception], None]
"""Callback called once, in the loop and never synchronously, with rows, :class:`StatementFailed` or
:class:`ConnectionClosed`."""


class CassandraConnection:
    """A session of the driver, used from one event loop.  Created by :meth:`open`."""

    def __init__(
        self, cluster: Cluster, session: Session, settings: CassandraSettings, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.settings = settings
        self.scope = Scope(settings.scope)
        self.session = session
        """Session for blocking calls, which run in their own threads."""
        self.cluster = cluster
        self._inbox = _Inbox(loop)
        self._users = 1
        self._checks: dict[str, asyncio.Task[None]] = {}
        """Tasks by address: each waits until a node answers, and checks its commit log."""
        self._down: set[str] = set()
        """Addresses of nodes that were reported as down and have not answered since."""

    @classmethod
    async def open(cls, settings: CassandraSettings, *, wait_seconds: float = OPEN_SECONDS) -> CassandraConnection:
        """Connect, and check how the nodes sync their commit logs.

        Nodes that stand still (during a long garbage collection, for example) are waited for this long.  Raises
        :class:`CannotOpen`, and in strict mode :class:`UnsafeCommitLog`.
        """
        # The driver logs a line per connection attempt; important events are logged here, once.
        for name in _DRIVER_LOGS:
            logging.getLogger(name).setLevel(logging.ERROR)
        started_at = time.monotonic()
        logged_at = started_at - _OPEN_LOG_SECONDS
        while True:
            try:
                return await cls._open(settings)
            except CannotOpen as failed:
                now = time.monotonic()
                left = started_at + wait_seconds - now
                if failed.__cause__ is None or not is_too_slow(failed.__cause__) or left < 0:
                    raise
                if now - logged_at >= _OPEN_LOG_SECONDS:
                    logged_at = now
                    log.warning("%s; trying again for %.0f s", failed, left)
            await asyncio.sleep(_OPEN_AGAIN_SECONDS)

    @classmethod
    async def _open(cls, settings: CassandraSettings) -> CassandraConnection:
        """Connect once."""
        cluster = _cluster(settings)
        try:
            session = await asyncio.to_thread(cluster.connect)
            connection = cls(cluster, session, settings, asyncio.get_running_loop())
            await connection.check_commit_logs()
            put = connection._inbox.put
            cluster.register_listener(
                _HostStates(
                    lambda host: put(connection._on_node_up, host), lambda host: put(connection._on_node_down, host)
                )
            )
        except CannotOpen:
            await asyncio.to_thread(cluster.shutdown)
            raise
        except Exception as error:  # the driver's errors have no common base
            await asyncio.to_thread(cluster.shutdown)
            places = ", ".join(settings.contact_points)
            raise CannotOpen(
                f"no Cassandra can be reached at {places}, port {settings.port}: {describe(error)}"
            ) from error
        except BaseException:
            await asyncio.shield(asyncio.to_thread(cluster.shutdown))
            raise
        return connection

    def share(self) -> CassandraConnection:
        """Return this connection for another user, which also closes it; the last close shuts it down."""
        assert self._users
        self._users += 1
        return self

    async def close(self) -> None:
        """Called once by each user."""
        self._users -= 1
        assert self._users >= 0
        if not self._users:
            for check in self._checks.values():
                check.cancel()
            await asyncio.to_thread(self.cluster.shutdown)

    async def check_commit_logs(self) -> None:
        """Check that acknowledged writes are on disk: otherwise they are lost when all their replicas crash
        together.

        Logs the nodes that acknowledge earlier, and raises :class:`UnsafeCommitLog` in strict mode.  A node
        that is down is checked when it returns.
        """
        if text := await self.unsafe_commit_logs():
            if self.settings.strict:
                raise UnsafeCommitLog(text)
            log.error("%s", text)

    async def unsafe_commit_logs(self) -> str:
        """Describe the nodes that acknowledge writes not yet on disk; empty if there are none."""
        return await self._unsafe_commit_logs(self.cluster.metadata.all_hosts())

    def _on_node_down(self, host: Any) -> None:
        """Log that a node is down, once until it is back."""
        if self._users and host.address not in self._down:
            self._down.add(host.address)
            log.warning("the Cassandra node at %s is down", host.address)

    def _on_node_up(self, host: Any) -> None:
        """Wait until a node that was added or restarted answers: its settings may have changed."""
        if self._users and host.address not in self._checks:
            check = asyncio.get_running_loop().create_task(self._check(host), name=f"the commit log of {host.address}")
            self._checks[host.address] = check
            check.add_done_callback(lambda _: self._checks.pop(host.address, None))

    async def _check(self, host: Any) -> None:
        while (mode := await self._commit_log_of(host)) is None:
            if host.is_up is False:
                return  # the driver reports when the node is up again
            await asyncio.sleep(_ASK_AGAIN_SECONDS)
        if host.address in self._down:
            self._down.discard(host.address)
            log.warning("the Cassandra node at %s is up again", host.address)
        if text := _unsafe_commit_logs({mode: [host.address]}):
            strictly = "; strict settings forbid that: this process would not start now" if self.settings.strict else ""
            log.error("%s%s", text, strictly)

    async def _unsafe_commit_logs(self, hosts: Iterable[Any]) -> str:
        """Describe the nodes that acknowledge writes not yet on disk; empty if there are none."""
        by_mode: dict[str, list[str]] = {}
        for host in hosts:
            for left in reversed(range(_ASK_TRIES)):
                mode = await self._commit_log_of(host)
                if mode is not None:
                    by_mode.setdefault(mode, []).append(host.address)
                    break
                if not left or host.is_up is False:
                    self._on_node_down(host)
                    self._on_node_up(host)  # checks its commit log when it is back
                    break
                await asyncio.sleep(_ASK_AGAIN_SECONDS)
        return _unsafe_commit_logs(by_mode)

    async def _commit_log_of(self, host: Any) -> str | None:
        """Commit log sync mode of a node; None if it does not answer."""
        query = SimpleStatement(
            "SELECT value FROM system_views.settings WHERE name = 'commitlog_sync'",
            consistency_level=ConsistencyLevel.ONE,
            is_idempotent=True,
        )
        try:
            ((mode,),) = await self.ask(query, None, host=host)
        except (StatementFailed, ConnectionClosed, ValueError):
            return None
        return str(mode)

    # --- statements -----------------------------------------------------------------------------------------

    def prepare(
        self, query: str, *, serial: bool = False, repeatable: bool = True, consistency_all: bool = False
    ) -> PreparedStatement:
        """Prepare a statement.  Blocks.

        ``serial``: for reads on which a decision depends.  ``consistency_all``: requires all replicas in all data
        centres, whatever the scope, because Cassandra has no level for all replicas of one data centre.
        """
        deadline = time.monotonic() + _VISIBLE_SECONDS
        while True:
            try:
                statement = self.session.prepare(query)
                break
            except (InvalidRequest, NoHostAvailable):
                # Another process has just created the table.  A node has it in its schema before it serves it, and
                # answers that it does not exist, or with a server error, which the driver reports as no host.
                if time.monotonic() > deadline:
                    raise
                self._agree()
                time.sleep(_ASK_AGAIN_SECONDS)
        statement.consistency_level = self.scope.serial if serial else self.scope.quorum
        if consistency_all:
            statement.consistency_level = ConsistencyLevel.ALL
        statement.serial_consistency_level = self.scope.serial
        statement.is_idempotent = repeatable
        statement.fetch_size = None  # no paging, see send()
        return statement

    def send(
        self, statement: Any, values: Sequence[Any] | None, done: Done, *, profile: Any = REPEATABLE, host: Any = None
    ) -> None:
        """Send a statement once.

        A statement sent to several nodes is answered by each of them and the driver calls back for every
        answer: the first counts.  Pages of several answers would therefore be mixed up, so results have to be
        one page.
        """
        inbox, reported = self._inbox, False

        def answered(found: Rows | None) -> None:
            nonlocal reported
            if not reported:
                reported = True
                inbox.put(done, found or [])

        def failed(error: Exception) -> None:
            nonlocal reported
            if not reported:
                reported = True
                inbox.put(done, StatementFailed(error))

        if not self._users:
            inbox.put(done, ConnectionClosed("the connection to Cassandra is closed"))
            return
        try:
            future = self.session.execute_async(statement, values, execution_profile=profile, host=host)
        except Exception as error:  # the driver's errors have no common base
            failed(error)
        else:
            future.add_callbacks(answered, failed)

    async def ask(
        self, statement: Any, values: Sequence[Any] | None, *, profile: Any = REPEATABLE, host: Any = None
    ) -> Rows:
        """Send a statement and return its rows.  Raises :class:`StatementFailed` and :class:`ConnectionClosed`."""
        answer: asyncio.Future[Rows] = asyncio.get_running_loop().create_future()

        def done(found: Rows | Exception) -> None:
            if answer.done():
                return
            if isinstance(found, Exception):
                answer.set_exception(found)
            else:
                answer.set_result(found)

        self.send(statement, values, done, profile=profile, host=host)
        return await answer

    # --- the schema -----------------------------------------------------------------------------------------

    def make_keyspace(self, keyspace: str) -> None:
        """Create the keyspace if it does not exist, with the replication of the settings.  Blocks.  Raises
        :class:`CannotOpen`."""
        if not _NAME.fullmatch(keyspace):
            raise CannotOpen(
                f"{keyspace!r} cannot be a keyspace: small letters, digits and _, at most 48, a letter first"
            )
        if keyspace in self.cluster.metadata.keyspaces:
            return
        wanted = self.settings.replication
        if not wanted:
            raise CannotOpen(
                f"there is no keyspace {keyspace}, and the settings do not say in which data centres it should be"
            )
        known = {host.datacenter for host in self.cluster.metadata.all_hosts()}
        if missing := wanted.keys() - known:
            raise CannotOpen(
                f"there is no data centre {', '.join(sorted(missing))}: Cassandra has {', '.join(sorted(known))}"
            )
        replicas = ", ".join(f"'{name}': {count}" for name, count in wanted.items())
        self.change_schema(
            keyspace,
            f"CREATE KEYSPACE IF NOT EXISTS {keyspace}"
            f" WITH replication = {{'class': 'NetworkTopologyStrategy', {replicas}}}",
        )

    def change_schema(self, keyspace: str, *statements: str) -> None:
        """Apply schema changes, each agreed by all nodes before the next.  The statements must be idempotent.
        Blocks.  Raises :class:`CannotOpen`."""
        for statement in statements:
            self._repeat(keyspace, partial(self._apply, statement))
        # Learns of a keyspace that another process has created.
        self._repeat(keyspace, partial(self.cluster.refresh_keyspace_metadata, keyspace))

    def _repeat(self, keyspace: str, attempt: Callable[[], None]) -> None:
        """Repeat an attempt that fails, for a while: a node may be down for a moment.  Raises :class:`CannotOpen`."""
        deadline = time.monotonic() + _DDL_SECONDS
        while True:
            try:
                attempt()
                return
            except Exception as error:  # the driver's errors have no common base
                if time.monotonic() > deadline:
                    raise CannotOpen(f"the tables of {keyspace} cannot be made: {describe(error)}") from error
            time.sleep(0.5)

    def _apply(self, statement: str) -> None:
        done = self.session.execute(SimpleStatement(statement), timeout=_DDL_SECONDS)
        if not done.response_future.is_schema_agreed and not self._agree():
            raise TimeoutError("the nodes do not agree on the schema")

    def _agree(self) -> bool:
        return bool(self.cluster.control_connection.wait_for_schema_agreement(wait_time=_DDL_SECONDS))


def _cluster(settings: CassandraSettings) -> Cluster:
    """Configure the driver with settings found by measurement: without TCP_NODELAY a request of 4 KiB takes 40
    ms, and without speculative execution a node that hangs delays all calls until their timeout."""
    scope = Scope(settings.scope)
    near = settings.datacenter or settings.scope

    def profile(**policies: Any) -> ExecutionProfile:
        nodes = DCAwareRoundRobinPolicy(near) if near else RoundRobinPolicy()
        return ExecutionProfile(
            load_balancing_policy=TokenAwarePolicy(nodes),
            consistency_level=scope.quorum,
            serial_consistency_level=scope.serial,
            request_timeout=settings.attempt_seconds,
            row_factory=tuple_factory,
            **policies,
        )

    speculation = ConstantSpeculativeExecutionPolicy(SPECULATIVE_SECONDS, SPECULATIVE_COPIES)
    return Cluster(
        list(settings.contact_points),
        connection_class=DirectConnection,
        port=settings.port,
        auth_provider=PlainTextAuthProvider(settings.user, settings.password) if settings.user else None,
        ssl_context=settings.tls,
        execution_profiles={
            REPEATABLE: profile(speculative_execution_policy=speculation),
            ONCE: profile(retry_policy=FallthroughRetryPolicy()),
        },
        protocol_version=5,  # since Cassandra 4.0
        sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        reconnection_policy=ConstantReconnectionPolicy(1, None),
        control_connection_timeout=CONTROL_SECONDS,
        idle_heartbeat_interval=2,  # a node that hangs is noticed although its connections stay open
        idle_heartbeat_timeout=1,
    )


def _unsafe_commit_logs(by_mode: Mapping[str, Sequence[str]]) -> str:
    """Describe the nodes whose commit log mode acknowledges writes before the sync; empty if there are none."""
    wrong = {mode: found for mode, found in by_mode.items() if mode not in ("batch", "group")}
    if not wrong:
        return ""
    modes = ", and ".join(f"{mode} at {', '.join(sorted(found))}" for mode, found in sorted(wrong.items()))
    return (
        f"commitlog_sync is {modes}: Cassandra loses writes that were acknowledged when its nodes end together; "
        "set it to batch (or group) in cassandra.yaml of each node"
    )


class _HostStates(HostStateListener):  # type: ignore[misc]  # the driver has no types
    """Listener for node state changes, called in the driver's threads."""

    def __init__(self, up: Callable[[Any], None], down: Callable[[Any], None]) -> None:
        self.on_up = self.on_add = up
        self.on_down = down

    def on_remove(self, host: Any) -> None:
        pass


class _Inbox:
    """Passes results from the driver's threads to the loop, with one wake-up for all that have accumulated."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._items: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._awake = False

    def put(self, done: Callable[[Any], None], result: Any) -> None:
        """Queue a result.  Thread-safe."""
        self._items.append((done, result))
        if not self._awake:
            self._awake = True
            with suppress(RuntimeError):  # the loop is closed: there are no waiters left
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._awake = False  # first, so that results put from now on wake the loop again
        items = self._items
        try:
            while items:
                done, result = items.popleft()
                done(result)
        finally:
            if items:
                self._loop.call_soon(self._drain)
