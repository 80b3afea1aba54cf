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

import uuid

from metadata_service.cassandra_connection import Scope
from metadata_service.cassandra_keyspace import CassandraKeyspace
from metadata_service.opening import CannotOpen

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


def make_tables(keyspace: CassandraKeyspace, version: int) -> None:
    """Bring a keyspace of this version (0: there is none) to :data:`SCHEMA_VERSION`.  Blocks.

    Raises :class:`CannotOpen`.
    """
    connection, name = keyspace.connection, keyspace.name
    connection.make_keyspace(name)
    for number, step in enumerate(_STEPS[version:], version):
        for position, statement in enumerate(step):
            table_id = uuid.uuid5(uuid.NAMESPACE_OID, f"holdfast metadata {name} {number} {position}")
            connection.change_schema(
                name,
                statement.format(keyspace=name, id=table_id, comment=_comment(connection.scope), grace=_GRACE_SECONDS),
            )


def has_tables(keyspace: CassandraKeyspace) -> bool:
    """Whether the first step was taken, by whomever.  Raises :class:`CannotOpen` if it was for another scope."""
    tables, scope = keyspace.connection.tables(keyspace.name), keyspace.connection.scope
    if tables is None or "records" not in tables or "marks" not in tables:
        return False
    comment = tables["records"].options["comment"]
    if comment != _comment(scope):
        raise CannotOpen(
            f"keyspace {keyspace.name} cannot be used as it is set: its tables were made with"
            f" {comment!r}, and the setting would be {_comment(scope)!r}; this cannot be changed any more"
        )
    return True


def _comment(scope: Scope) -> str:
    return f"Holdfast metadata, decided by {scope}"
