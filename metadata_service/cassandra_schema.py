"""The keyspace of the metadata in Cassandra: its tables, and how an older one gets what came later.

There are two tables, which differ in how their rows change (:mod:`metadata_service.cassandra_records`):

* ``records``: by lightweight transactions alone.  The rows of a ``space`` are one partition, so a transaction changes
  any of them together, or none.
* ``marks``: by plain writes whose timestamps say which is the newer, so that no clock can shadow one.

A record is JSON, so one that gains a field with a default needs no step.  A step that was released is never changed;
what comes later is a step of its own, added at the end.  Each can be repeated without harm, for a process may end in
the middle of one.  No row has a time to live.

Two processes that make a table at the same time would make two, of which one is forgotten with all that was written to
it.  So tables have fixed ids: then both make the same.
"""

from __future__ import annotations

import time
import uuid

from cassandra.query import SimpleStatement

from metadata_service.cassandra_connection import CassandraConnection, Scope, replication
from metadata_service.opening import CannotOpen

_DDL_SECONDS = 60.0
_GRACE_SECONDS = 86_400
"""A deleted row is remembered this long: a replica that was away for longer has to be repaired before it serves."""

_STEPS = (
    (
        "CREATE TABLE IF NOT EXISTS {keyspace}.records ("
        " space text, key text, change uuid, record text, PRIMARY KEY (space, key))"
        " WITH id = {id} AND comment = '{comment}' AND gc_grace_seconds = {grace}",
        "CREATE TABLE IF NOT EXISTS {keyspace}.marks ("
        " space text, key text, value text, PRIMARY KEY (space, key))"
        " WITH id = {id} AND gc_grace_seconds = {grace}",
    ),
)
"""What leads from each version to the next."""
SCHEMA_VERSION = len(_STEPS)


def make_tables(connection: CassandraConnection, version: int) -> None:
    """Bring a keyspace of this version (0: there is none) to :data:`SCHEMA_VERSION`.  Blocks.

    Raises :class:`CannotOpen`.
    """
    keyspace, settings = connection.keyspace, connection.settings
    if keyspace not in connection.cluster.metadata.keyspaces:
        if not settings.replication:
            raise CannotOpen(
                f"there is no keyspace {keyspace}, and the settings do not say in which data centres it should be"
            )
        known = {host.datacenter for host in connection.cluster.metadata.all_hosts()}
        if missing := settings.replication.keys() - known:
            raise CannotOpen(
                f"there is no data centre {', '.join(sorted(missing))}: Cassandra has {', '.join(sorted(known))}"
            )
        _run(
            connection,
            f"CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {replication(settings.replication)}",
        )
    for number, step in enumerate(_STEPS[version:], version):
        for position, statement in enumerate(step):
            table_id = uuid.uuid5(uuid.NAMESPACE_OID, f"holdfast metadata {keyspace} {number} {position}")
            _run(
                connection,
                statement.format(
                    keyspace=keyspace, id=table_id, comment=_comment(connection.scope), grace=_GRACE_SECONDS
                ),
            )
    connection.cluster.refresh_keyspace_metadata(keyspace)  # for what another process has made


def has_tables(connection: CassandraConnection) -> bool:
    """Whether the first step was taken, by whomever.  Raises :class:`CannotOpen` if it was for another scope."""
    keyspace = connection.cluster.metadata.keyspaces.get(connection.keyspace)
    if keyspace is None or "records" not in keyspace.tables or "marks" not in keyspace.tables:
        return False
    comment = keyspace.tables["records"].options["comment"]
    if comment != _comment(connection.scope):
        raise CannotOpen(
            f"keyspace {connection.keyspace} cannot be used as it is set: its tables were made with"
            f" {comment!r}, and the setting would be {_comment(connection.scope)!r}; this cannot be changed any more"
        )
    return True


def _comment(scope: Scope) -> str:
    return f"Holdfast metadata, decided by {scope}"


def _run(connection: CassandraConnection, statement: str) -> None:
    """A change of the schema, and then the agreement of all nodes on it."""
    deadline = time.monotonic() + _DDL_SECONDS
    while True:
        try:
            done = connection.session.execute(SimpleStatement(statement), timeout=_DDL_SECONDS)
            if done.response_future.is_schema_agreed or _agree(connection):
                return
            error: Exception = TimeoutError("the nodes do not agree on the schema")
        except Exception as failure:  # the driver's errors have no common base
            error = failure
        if time.monotonic() > deadline:
            raise CannotOpen(f"the tables of {connection.keyspace} cannot be made: {error}") from error
        time.sleep(0.5)


def _agree(connection: CassandraConnection) -> bool:
    return bool(connection.cluster.control_connection.wait_for_schema_agreement(wait_time=_DDL_SECONDS))
