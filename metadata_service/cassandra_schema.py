"""The keyspace of the metadata in Cassandra: its tables, and how an older one gets what came later.

There are two tables, which differ in how their rows change (:mod:`metadata_service.cassandra_records`):

* ``records``: by lightweight transactions alone.  The rows of a ``space`` are one partition, so a transaction changes
  any of them together, or none.
* ``marks``: by plain writes whose timestamps say which is the newer, so that no clock can shadow one.

A record is JSON, so one that gains a field with a default needs no step.  :mod:`metadata_service.schema` has the rule
of the steps, and :mod:`metadata_service.cassandra_versions` takes them.  No row has a time to live.

Two processes that make a table at the same time would make two, of which one is forgotten with all that was written to
it.  So tables have fixed ids: then both make the same.
"""

from __future__ import annotations

import uuid

from metadata_service.cassandra_connection import CassandraConnection, Scope
from metadata_service.cassandra_keyspace import CassandraKeyspace
from metadata_service.cassandra_part import Part
from metadata_service.opening import CannotOpen
from metadata_service.schema import Schema, Step

_GRACE_SECONDS = 86_400
"""A deleted row is remembered this long: a replica that was away for longer has to be repaired before it serves."""


def _complete(connection: CassandraConnection, keyspace: str, step: int, position: int, statement: str) -> str:
    return statement.format(
        keyspace=keyspace,
        id=uuid.uuid5(uuid.NAMESPACE_OID, f"holdfast metadata {keyspace} {step} {position}"),
        comment=_comment(connection.scope),
        grace=_GRACE_SECONDS,
    )


METADATA = Part(
    "metadata",
    Schema(
        Step(
            (
                "CREATE TABLE IF NOT EXISTS {keyspace}.records ("
                " space text, key text, change uuid, record text, PRIMARY KEY (space, key))"
                " WITH id = {id} AND comment = '{comment}' AND gc_grace_seconds = {grace}",
                "CREATE TABLE IF NOT EXISTS {keyspace}.marks ("
                " space text, key text, value text, PRIMARY KEY (space, key))"
                " WITH id = {id} AND gc_grace_seconds = {grace}",
            )
        )
    ),
    _complete,
)
"""Of every keyspace: its records say which versions its parts have."""


def make_tables(keyspace: CassandraKeyspace) -> None:
    """Make the keyspace, unless it is there, and what the first version has.  Blocks.  Raises :class:`CannotOpen`."""
    keyspace.connection.make_keyspace(keyspace.name)
    METADATA.run(keyspace.connection, keyspace.name, 0, METADATA.schema.steps[0].forward)


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
