"""The connection of a process to Cassandra: statements go out from the loop, the driver's threads bring answers back.

A process has one, however many keyspaces it uses and whatever for: the metadata's records
(:mod:`metadata_service.cassandra_keyspace`), a cluster's entries, and the rows of its journal
(``backend/journal/cassandra_tables.py``).  What consistency means is decided once, by :class:`Scope`, and never for a
single statement:

* writes and plain reads at QUORUM (or LOCAL_QUORUM), so that a read sees every write that was answered before it;
* conditions, and reads that a decision hangs on, at SERIAL (or LOCAL_SERIAL).

The driver may send a statement again, to the same node or another, only if the statement can be repeated without harm;
a conditional one never is, for its second copy would find the work of its first and report a refusal.
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

from metadata_service.cassandra_errors import describe
from metadata_service.opening import CannotOpen

SPECULATIVE_SECONDS: Final = 0.1
"""A statement that can be repeated goes to another node, too, when it has not been answered for this long."""
SPECULATIVE_COPIES: Final = 2
CONTROL_SECONDS: Final = 5.0
"""How long a node may take to say what the cluster is.  With the driver's 2 s a node that was busy, with its garbage
say, was taken for one that cannot be reached."""
_DDL_SECONDS: Final = 60.0
_ASK_TRIES: Final = 3
_ASK_AGAIN_SECONDS: Final = 0.5
"""A node whose connections are just being made may not answer at once."""
_DRIVER_LOGS: Final = ("cassandra.cluster", "cassandra.pool", "cassandra.connection")
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,47}")

HELD: Final = "held"
"""What a log's entry says that would be open if nobody held it.  This passes."""

REPEATABLE, ONCE = EXEC_PROFILE_DEFAULT, "once"
"""Profiles of a statement that may be sent again, and of one that may not."""
_PASSING: Final = (
    RequestExecutionException,  # no quorum alive, none that answered in time, a node that failed
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
    """Where Cassandra is, and how it is asked."""

    contact_points: tuple[str, ...]
    port: int = 9042
    replication: dict[str, int]
    """Replicas in each data centre.  Counts when a keyspace is made."""
    scope: str = ""
    """A data centre whose own quorum decides; empty: that of all replicas does.  Fixed when the tables are made."""
    datacenter: str = ""
    """The data centre whose nodes are asked; empty: ``scope``, or any."""
    attempt_seconds: float = 2.0
    """How long one statement may take."""
    timeout_seconds: float = 5.0
    """How long a store tries before it says that it is unavailable."""
    user: str = ""
    password: str = ""
    tls: ssl.SSLContext | None = None
    """Whom to trust, and who this is; None: connections are not encrypted."""
    strict: bool = False
    """Refuse a Cassandra whose commit log may lose what it has acknowledged, rather than only say so."""

    def __repr__(self) -> str:
        return f"CassandraSettings({', '.join(self.contact_points)}, port {self.port})"


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


class Fence(NamedTuple):
    """How the state in a log's entry is read by the log's writer.  Whoever keeps the entries says so."""

    statement: str
    """Selects one column of one row, of a table named with its keyspace."""
    values: Callable[[int], Sequence[Any]]
    """Of the statement, given the log's id."""
    state: Callable[[Any], str]
    """Given that column; :data:`HELD` while an open log is held."""
    end_hold: Callable[[int], Awaitable[None]]
    """Takes a hold of a log away, whoever holds it.  Raises :class:`~metadata_service.store.StoreError`."""


class UnsafeCommitLog(CannotOpen):
    """Cassandra answers writes that a crash of several of its nodes can undo, and that was not to be accepted."""


class ConnectionClosed(Exception):
    """The connection was closed: nothing was sent."""


class Unanswered(Exception):
    """A statement has failed, with the driver's ``error``."""

    def __init__(self, error: Exception) -> None:
        super().__init__(describe(error))
        self.error = error
        self.sent = not isinstance(error, (Unavailable, RequestValidationException))
        """It may have taken effect all the same."""
        self.again = self.sent and not isinstance(error, NoHostAvailable)
        """Another attempt, at once, may do better."""
        self.passing = isinstance(error, _PASSING)
        """What keeps it from being answered may pass by itself."""


Done = Callable[[Rows | Exception], None]
"""Called once, in the loop and never at once, with rows, :class:`Unanswered` or :class:`ConnectionClosed`."""


class CassandraConnection:
    """A session of the driver, used from one event loop.  Made by :meth:`open`."""

    def __init__(
        self, cluster: Cluster, session: Session, settings: CassandraSettings, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.settings = settings
        self.scope = Scope(settings.scope)
        self.session = session
        """For what blocks: in threads of its own."""
        self.cluster = cluster
        self._inbox = _Inbox(loop)
        self._users = 1
        self._checks: dict[str, asyncio.Task[None]] = {}
        """By address: waits until a node answers, and checks its commit log."""
        self._away: set[str] = set()
        """Addresses of nodes that were reported to be away, and have not answered since."""

    @classmethod
    async def open(cls, settings: CassandraSettings) -> CassandraConnection:
        """Connect, and look how the nodes sync their commit logs.

        Raises :class:`CannotOpen`, and in strict mode :class:`UnsafeCommitLog`.
        """
        for name in _DRIVER_LOGS:  # a line for each attempt to connect; what matters is logged here, once
            logging.getLogger(name).setLevel(logging.ERROR)
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
        """The same for one more user, who closes it, too: the last one to do so ends it."""
        assert self._users
        self._users += 1
        return self

    async def close(self) -> None:
        """Once by each user."""
        self._users -= 1
        assert self._users >= 0
        if not self._users:
            for check in self._checks.values():
                check.cancel()
            await asyncio.to_thread(self.cluster.shutdown)

    async def check_commit_logs(self) -> None:
        """An acknowledged write has to be on the disk: else it is lost when the nodes that have it end together.

        Says which nodes acknowledge earlier, and raises :class:`UnsafeCommitLog` in strict mode.  A node that is away
        is looked at when it comes.
        """
        if text := await self.careless_commit_logs():
            if self.settings.strict:
                raise UnsafeCommitLog(text)
            log.error("%s", text)

    async def careless_commit_logs(self) -> str:
        """Describe the nodes that acknowledge what is not on their disks; empty: there are none."""
        return await self._careless(self.cluster.metadata.all_hosts())

    def _on_node_down(self, host: Any) -> None:
        """Report a node that is away, once until it is back."""
        if self._users and host.address not in self._away:
            self._away.add(host.address)
            log.warning("the node of Cassandra at %s is away", host.address)

    def _on_node_up(self, host: Any) -> None:
        """Wait until a node answers that has come, or come back, perhaps with other settings."""
        if self._users and host.address not in self._checks:
            check = asyncio.get_running_loop().create_task(self._check(host), name=f"the commit log of {host.address}")
            self._checks[host.address] = check
            check.add_done_callback(lambda _: self._checks.pop(host.address, None))

    async def _check(self, host: Any) -> None:
        while (mode := await self._commit_log_of(host)) is None:
            if host.is_up is False:
                return  # the driver reports when it is up again
            await asyncio.sleep(_ASK_AGAIN_SECONDS)
        if host.address in self._away:
            self._away.discard(host.address)
            log.warning("the node of Cassandra at %s is back", host.address)
        if text := _careless({mode: [host.address]}):
            strictly = "; strict settings forbid that: this process would not start now" if self.settings.strict else ""
            log.error("%s%s", text, strictly)

    async def _careless(self, hosts: Iterable[Any]) -> str:
        """Describe the nodes that acknowledge what is not on their disks; empty: there are none."""
        by_mode: dict[str, list[str]] = {}
        for host in hosts:
            for left in reversed(range(_ASK_TRIES)):
                mode = await self._commit_log_of(host)
                if mode is not None:
                    by_mode.setdefault(mode, []).append(host.address)
                    break
                if not left or host.is_up is False:
                    self._on_node_down(host)
                    self._on_node_up(host)  # which is when its commit log is checked
                    break
                await asyncio.sleep(_ASK_AGAIN_SECONDS)
        return _careless(by_mode)

    async def _commit_log_of(self, host: Any) -> str | None:
        """The way in which a node syncs its commit log; None: it does not answer."""
        query = SimpleStatement(
            "SELECT value FROM system_views.settings WHERE name = 'commitlog_sync'",
            consistency_level=ConsistencyLevel.ONE,
            is_idempotent=True,
        )
        try:
            ((mode,),) = await self.ask(query, None, host=host)
        except (Unanswered, ConnectionClosed, ValueError):
            return None
        return str(mode)

    # --- statements -----------------------------------------------------------------------------------------

    def prepare(
        self, query: str, *, serial: bool = False, repeatable: bool = True, everywhere: bool = False
    ) -> PreparedStatement:
        """A statement to be run; blocks.

        ``serial``: a read that a decision hangs on.  ``everywhere``: all replicas have to answer, whatever the scope:
        those of all data centres, for Cassandra has no level for all of one.
        """
        try:
            statement = self.session.prepare(query)
        except InvalidRequest:  # another process has just made the table, and this node has not heard of it yet
            self._agree()
            statement = self.session.prepare(query)
        statement.consistency_level = self.scope.serial if serial else self.scope.quorum
        if everywhere:
            statement.consistency_level = ConsistencyLevel.ALL
        statement.serial_consistency_level = self.scope.serial
        statement.is_idempotent = repeatable
        statement.fetch_size = None  # see send()
        return statement

    def send(
        self, statement: Any, values: Sequence[Any] | None, done: Done, *, profile: Any = REPEATABLE, host: Any = None
    ) -> None:
        """Run a statement, once as far as this end goes.

        One that went to several nodes is answered by each of them, and the driver tells of every answer: the first that
        is heard counts.  It would therefore mix up pages, too: all that is asked for has to be one.
        """
        inbox, told = self._inbox, False

        def answered(found: Rows | None) -> None:
            nonlocal told
            if not told:
                told = True
                inbox.put(done, found or [])

        def failed(error: Exception) -> None:
            nonlocal told
            if not told:
                told = True
                inbox.put(done, Unanswered(error))

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
        """The rows.  Raises :class:`Unanswered` and :class:`ConnectionClosed`."""
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

    def tables(self, keyspace: str) -> Mapping[str, Any] | None:
        """The tables that a keyspace has, as far as this process has heard; None: there is no such keyspace."""
        known = self.cluster.metadata.keyspaces.get(keyspace)
        return None if known is None else dict(known.tables)

    def make_keyspace(self, keyspace: str) -> None:
        """Make it, unless it is there, where the settings say.  Blocks.  Raises :class:`CannotOpen`."""
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
        """Changes of the schema, each with the agreement of all nodes on it.  They have to be such as can be repeated.
        Blocks.  Raises :class:`CannotOpen`."""
        for statement in statements:
            deadline = time.monotonic() + _DDL_SECONDS
            while True:
                try:
                    done = self.session.execute(SimpleStatement(statement), timeout=_DDL_SECONDS)
                    if done.response_future.is_schema_agreed or self._agree():
                        break
                    error: Exception = TimeoutError("the nodes do not agree on the schema")
                except Exception as failure:  # the driver's errors have no common base
                    error = failure
                if time.monotonic() > deadline:
                    raise CannotOpen(f"the tables of {keyspace} cannot be made: {describe(error)}") from error
                time.sleep(0.5)
        self.cluster.refresh_keyspace_metadata(keyspace)  # for what another process has made

    def _agree(self) -> bool:
        return bool(self.cluster.control_connection.wait_for_schema_agreement(wait_time=_DDL_SECONDS))


def _cluster(settings: CassandraSettings) -> Cluster:
    """The driver, with what was measured to be needed: without TCP_NODELAY a request of 4 KiB takes 40 ms, and without
    speculation a node that hangs makes all calls wait for their timeout."""
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
        idle_heartbeat_interval=2,  # a node that hangs is noticed, though its connections stay open
        idle_heartbeat_timeout=1,
    )


def _careless(by_mode: Mapping[str, Sequence[str]]) -> str:
    """Describe the nodes whose commit log is synced too late, of nodes by their mode; empty: there are none."""
    wrong = {mode: found for mode, found in by_mode.items() if mode not in ("batch", "group")}
    if not wrong:
        return ""
    modes = ", and ".join(f"{mode} at {', '.join(sorted(found))}" for mode, found in sorted(wrong.items()))
    return (
        f"commitlog_sync is {modes}: Cassandra loses writes that were acknowledged when its nodes end together; "
        "set it to batch (or group) in cassandra.yaml of each node"
    )


class _HostStates(HostStateListener):  # type: ignore[misc]  # the driver has no types
    """Is called in the driver's threads when nodes come and go."""

    def __init__(self, up: Callable[[Any], None], down: Callable[[Any], None]) -> None:
        self.on_up = self.on_add = up
        self.on_down = down

    def on_remove(self, host: Any) -> None:
        pass


class _Inbox:
    """Brings results from the driver's threads into the loop: one wake-up for all that have gathered."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._items: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._awake = False

    def put(self, done: Callable[[Any], None], result: Any) -> None:
        """In any thread."""
        self._items.append((done, result))
        if not self._awake:
            self._awake = True
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._awake = False  # first: what comes from now on wakes the loop again
        items = self._items
        try:
            while items:
                done, result = items.popleft()
                done(result)
        finally:
            if items:
                self._loop.call_soon(self._drain)
