"""The driver's session, simulated: the product's own code of conditional writes runs over it.

:class:`SimSession` takes the statements of :mod:`metadata_service.cassandra.driver.records` and applies them to
:class:`RecordTables`.
A statement is decided at one moment or never.  Its caller may not learn which: the request or the answer is lost or
late, a transaction waits with one machine for a majority and takes effect when its caller has given up, or a node says
in time that it timed out, before the transaction took effect or after it.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from random import Random
from typing import Any, NamedTuple, Protocol
from unittest import mock

from cassandra import ConsistencyLevel, OperationTimedOut, Unavailable, WriteTimeout, WriteType
from cassandra.cqltypes import Int32Type, ListType, LongType, UTF8Type, UUIDType
from cassandra.protocol import ColumnMetadata
from cassandra.query import BatchStatement, PreparedStatement

from metadata_service.cassandra.driver.connection import (
    ONCE,
    SPECULATIVE_COPIES,
    SPECULATIVE_SECONDS,
    CassandraConnection,
    CassandraSettings,
)
from metadata_service.cassandra.driver.keyspace import CassandraKeyspace
from metadata_service.cassandra.driver.records import Records

PROTOCOL = 5
KEYSPACE = "simulated"
TABLES = {
    "records": {"space": UTF8Type, "key": UTF8Type, "change": UUIDType, "record": UTF8Type},
    "marks": {"space": UTF8Type, "key": UTF8Type, "value": UTF8Type},
}
WHERE = r"WHERE space = \? AND key (?P<where>= \?|IN \?|>= \? AND key < \? LIMIT \?)"
SELECT = re.compile(rf"SELECT (?P<columns>[a-z, ]+) FROM {KEYSPACE}\.(?P<table>\w+) {WHERE}")
INSERT = re.compile(rf"INSERT INTO {KEYSPACE}\.(?P<table>\w+) \((?P<columns>[a-z, ]+)\) VALUES .*?\)(?P<rest>.*)")
UPDATE = re.compile(rf"UPDATE {KEYSPACE}\.(?P<table>\w+) SET change = \?, record = \? WHERE .*?key = \?(?P<rest>.*)")
DELETE = re.compile(
    rf"DELETE FROM {KEYSPACE}\.(?P<table>\w+)(?P<stamp> USING TIMESTAMP \?)? WHERE .*?key = \?(?P<rest>.*)"
)
SETTINGS = CassandraSettings(contact_points=("simulated",), replication={})

Place = tuple[str, str]
"""(space, key)"""
Stored = Mapping[str, Any]
"""Columns of a row beside its key."""


class Change(NamedTuple):
    """One statement of a transaction, with its values."""

    place: Place
    row: Stored | None
    """None: it is deleted."""
    condition: str
    """``absent``, ``change``, or empty: none."""
    change: uuid.UUID | None
    """The one that has to be there."""


class RecordTables:
    """The two tables, as what was decided last left them."""

    def __init__(self) -> None:
        self.records: dict[Place, dict[str, Any]] = {}
        self.marks: dict[Place, tuple[int, str | None]] = {}
        """(timestamp, value); no value: it was removed."""

    def apply(self, changes: Sequence[Change]) -> bool:
        """Make all changes or, where a condition of one does not hold, none.  Returns whether they were made."""
        for one in changes:
            stored = self.records.get(one.place)
            if one.condition == "absent" and stored is not None:
                return False
            if one.condition == "change" and (stored is None or stored["change"] != one.change):
                return False
        for one in changes:
            if one.row is None:
                self.records.pop(one.place, None)
            else:
                self.records[one.place] = dict(one.row)
        return True

    def mark(self, place: Place, timestamp: int, value: str | None) -> None:
        """Set or remove a mark, unless there is one of a higher timestamp; of two with the same, the removal stays."""
        known = self.marks.get(place)
        if known is None or (timestamp, value is None) >= (known[0], known[1] is None):
            self.marks[place] = timestamp, value

    def select(self, table: str, space: str) -> list[tuple[str, Stored]]:
        if table == "records":
            return sorted((key, row) for (one, key), row in self.records.items() if one == space)
        there = ((key, value) for (one, key), (_, value) in self.marks.items() if one == space and value is not None)
        return [(key, {"value": value}) for key, value in sorted(there)]


class Wire(Protocol):
    """The way between a process and the tables, and what else there is to a change."""

    random: Random
    rows: RecordTables

    @property
    def late(self) -> float:
        """Probability that a transaction whose caller gives up takes effect seconds later."""

    @property
    def timed_out(self) -> float:
        """Probability that a node answers that a transaction timed out, which took effect or not."""

    def delay(self, name: str, *, back: bool) -> float | None:
        """Seconds on the way; None: it is lost."""

    def quorum(self) -> bool: ...

    def before(self, name: str) -> None:
        """Called when a process has sent a transaction."""

    def applied(self, changes: Sequence[Change], done: Callable[[], None]) -> None:
        """Called when a transaction has taken effect; calls ``done`` once it is committed."""

    def finish_commits(self) -> None:
        """Called before a transaction, or a read that a decision hangs on."""


WAITS_SECONDS = 8.0
"""About so long a transaction without a majority waits for one."""
LATE_SECONDS = 6.0


class SimSession:
    """One process's session: as much of :class:`cassandra.cluster.Session` as the product uses while it runs."""

    def __init__(self, wire: Wire, name: str) -> None:
        self._wire = wire
        self._name = name
        self._prepared: list[PreparedStatement] = []

    def prepare(self, query: str) -> PreparedStatement:
        number = len(self._prepared).to_bytes(4, "big")
        statement = PreparedStatement(_parameters(query), number, None, query, KEYSPACE, PROTOCOL, None, None)
        self._prepared.append(statement)
        return statement

    def execute_async(self, statement: Any, values: Any, *, execution_profile: Any, host: Any) -> _Execution:
        assert host is None
        once = execution_profile == ONCE
        if isinstance(statement, BatchStatement):
            bound = [
                (self._prepared[int.from_bytes(number, "big")], encoded)
                for _, number, encoded in statement._statements_and_parameters
            ]
        else:
            bound = [(statement, statement.bind(values).values)]
        statements = [(one.query_string, _decoded(one, encoded)) for one, encoded in bound]
        decides = once or statement.consistency_level == ConsistencyLevel.SERIAL
        return _Execution(self._wire, self._name, statements, once=once, decides=decides)


class _Execution:
    """A statement that is under way."""

    def __init__(
        self, wire: Wire, name: str, statements: list[tuple[str, list[Any]]], *, once: bool, decides: bool
    ) -> None:
        self._wire = wire
        self._name = name
        self._statements = statements
        self._once = once
        self._decides = decides
        self._loop = asyncio.get_running_loop()
        self._done: tuple[Callable[[Any], None], Callable[[Exception], None]] | None = None

    def add_callbacks(self, answered: Callable[[Any], None], failed: Callable[[Exception], None]) -> None:
        self._done = answered, failed
        if self._once:
            self._wire.before(self._name)
        Context().run(self._begin)

    def _begin(self) -> None:
        self._send()
        self._loop.call_later(SETTINGS.attempt_seconds, self._fail, OperationTimedOut())
        for copy in range(0 if self._once else SPECULATIVE_COPIES):
            self._loop.call_later((copy + 1) * SPECULATIVE_SECONDS, self._send_again)

    def _send_again(self) -> None:
        if self._done is not None:
            self._send()

    def _send(self) -> None:
        wire = self._wire
        there = wire.delay(self._name, back=False)
        if self._once and wire.late and wire.random.random() < wire.late:
            there = wire.random.random() * LATE_SECONDS
        if there is not None:
            self._loop.call_later(there, self._arrive)

    def _arrive(self) -> None:
        wire = self._wire
        if not wire.quorum():
            if self._once and wire.random.random() < 0.5:
                self._loop.call_later(wire.random.random() * WAITS_SECONDS, self._arrive)
            else:
                level = ConsistencyLevel.value_to_name[ConsistencyLevel.QUORUM]
                self._reply(Unavailable(level, ConsistencyLevel.QUORUM, 2, 1))
            return
        if self._decides:
            wire.finish_commits()
        if self._once:
            self._transact()
        else:
            self._reply([row for query, values in self._statements for row in self._run(query, values)])

    def _transact(self) -> None:
        wire = self._wire
        changes = [_change(query, values) for query, values in self._statements]
        fails = wire.timed_out and wire.random.random() < wire.timed_out
        late = WriteTimeout("simulated", write_type=WriteType.CAS, consistency=ConsistencyLevel.SERIAL)
        if fails and wire.random.random() < 0.5:
            self._reply(late)
        elif wire.rows.apply(changes):
            wire.applied(changes, lambda: self._reply(late if fails else [(True,)]))
        else:
            self._reply(late if fails else [(False,)])

    def _run(self, query: str, values: list[Any]) -> list[tuple[Any, ...]]:
        if (found := SELECT.fullmatch(query)) is not None:
            there = self._wire.rows.select(found["table"], values[0])
            if found["where"].startswith(">="):
                there = [(key, row) for key, row in there if values[1] <= key < values[2]][: values[3]]
            else:
                wanted = values[1] if found["where"].startswith("IN") else (values[1],)
                there = [(key, row) for key, row in there if key in wanted]
            columns = found["columns"].split(", ")
            return [tuple(key if column == "key" else row[column] for column in columns) for key, row in there]
        self._wire.rows.mark(*_mark(query, values))
        return []

    def _reply(self, result: Any) -> None:
        if (back := self._wire.delay(self._name, back=True)) is not None:
            end = self._fail if isinstance(result, Exception) else self._answer
            self._loop.call_later(back, end, result)

    def _answer(self, rows: list[tuple[Any, ...]]) -> None:
        if self._done is not None:
            (answered, _), self._done = self._done, None
            answered(rows)

    def _fail(self, error: Exception) -> None:
        if self._done is not None:
            (_, failed), self._done = self._done, None
            failed(error)


def _parameters(query: str) -> list[ColumnMetadata]:
    """The parameters of a statement, in order.  Raises :class:`ValueError` for one that is not known here."""
    select, insert, update, delete = (one.fullmatch(query) for one in (SELECT, INSERT, UPDATE, DELETE))
    if select is not None:
        where = {"= ?": ["key"], "IN ?": ["[key]"]}.get(select["where"], ["key", "key", "[limit]"])
        names, table = ["space", *where], select["table"]
    elif insert is not None:
        names, table = insert["columns"].split(", "), insert["table"]
        names += ["[timestamp]"] * ("TIMESTAMP ?" in insert["rest"])
    elif update is not None:
        names, table = ["change", "record", "space", "key"], update["table"]
        names += ["change"] * ("IF change" in update["rest"])
    elif delete is not None:
        names, table = ["space", "key"], delete["table"]
        names = ["[timestamp]"] * bool(delete["stamp"]) + names + ["change"] * ("IF change" in delete["rest"])
    else:
        raise ValueError(f"a simulated session cannot run this statement: {query}")
    special = {"[key]": ListType.apply_parameters([UTF8Type]), "[limit]": Int32Type, "[timestamp]": LongType}
    types = special | TABLES[table]
    return [ColumnMetadata(KEYSPACE, table, name, types[name]) for name in names]


def _decoded(statement: PreparedStatement, encoded: Sequence[bytes]) -> list[Any]:
    columns = statement.column_metadata
    return [one.type.from_binary(value, PROTOCOL) for one, value in zip(columns, encoded, strict=True)]


def _change(query: str, values: list[Any]) -> Change:
    """A statement of a transaction."""
    columns = [one.name for one in _parameters(query)]
    given = dict(zip(columns, values, strict=False))  # a second ``change`` is the condition's
    place = given["space"], given["key"]
    expected = "IF change = ?" in query
    condition = "absent" if "IF NOT EXISTS" in query else "change" if expected else ""
    change = values[-1] if expected else None
    if query.startswith("DELETE"):
        return Change(place, None, condition, change)
    return Change(place, {"change": values[0], "record": values[1]}, condition, change)


def _mark(query: str, values: list[Any]) -> tuple[Place, int, str | None]:
    if query.startswith("DELETE"):
        timestamp, space, key = values
        return (space, key), timestamp, None
    space, key, value, timestamp = values
    return (space, key), timestamp, value


def records_over(wire: Wire, name: str, loop: asyncio.AbstractEventLoop) -> Records:
    """The product's own records, as a process reaches them."""
    connection = CassandraConnection(None, SimSession(wire, name), SETTINGS, loop)
    return Records(CassandraKeyspace(connection, KEYSPACE))


def in_virtual_time(loop: asyncio.AbstractEventLoop, random: Random) -> dict[str, Any]:
    """Stand-ins, by name, for the clock and the chance that the product's own code uses."""
    return {
        "metadata_service.cassandra.driver.keyspace.time": mock.Mock(monotonic=loop.time),
        "metadata_service.cassandra.driver.keyspace.random": random,
        "metadata_service.cassandra.driver.records.uuid": mock.Mock(
            uuid4=lambda: uuid.UUID(int=random.getrandbits(128), version=4)
        ),
        "metadata_service.cassandra.entries.secrets": mock.Mock(token_hex=lambda count: random.randbytes(count).hex()),
    }
