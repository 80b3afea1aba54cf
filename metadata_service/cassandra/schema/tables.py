"""Tables of the metadata's keyspace in Cassandra, and their migration.

Two tables differ in how their rows change (:mod:`metadata_service.cassandra.driver.records`):

* ``records``: only by lightweight transactions.  The rows of a ``space`` are one partition, so a transaction
  changes several of them atomically.
* ``marks``: by plain writes whose explicit timestamps decide which is newer, independently of clocks.

A record is JSON, so adding a field with a default needs no migration.  :mod:`metadata_service.schema` has the
rule of the steps, and :mod:`metadata_service.cassandra.schema.versions` runs them.  No row has a time to live.

Two processes that create a table at the same time would create two, one of which is lost with everything
written to it.  Tables therefore have fixed ids, so that both create the same one.
"""

from __future__ import annotations

import uuid

from metadata_service.cassandra.driver.connection import CassandraConnection, Scope
from metadata_service.cassandra.driver.keyspace import CassandraKeyspace
from metadata_service.cassandra.schema.part import Part
from metadata_service.opening import CannotOpen
from metadata_service.schema import Schema, Step

_GRACE_SECONDS = 86_400
"""Time for which a deletion is remembered: a replica that was down for longer must be repaired before it serves."""


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
"""Tables of every keyspace: its records say which versions its parts have."""


def make_tables(keyspace: CassandraKeyspace) -> None:
    """Create the keyspace, unless it exists, and the tables of the first version.  Blocks.  Raises
    :class:`CannotOpen`."""
    keyspace.connection.make_keyspace(keyspace.name)
    METADATA.run(keyspace.connection, keyspace.name, 0, METADATA.schema.steps[0].forward)


async def has_tables(keyspace: CassandraKeyspace) -> bool:
    """Return True if some process has taken the first step.

    Raises :class:`CannotOpen` if it was for another scope, and :class:`~metadata_service.store.StoreUnavailable`.
    """
    tables, scope = await keyspace.tables(), keyspace.connection.scope
    if tables is None or "records" not in tables or "marks" not in tables:
        return False
    comment = tables["records"]
    if comment != _comment(scope):
        raise CannotOpen(
            f"keyspace {keyspace.name} cannot be used as it is set: its tables were made with"
            f" {comment!r}, and the setting would be {_comment(scope)!r}; this cannot be changed any more"
        )
    return True


def _comment(scope: Scope) -> str:
    return f"Holdfast metadata, decided by {scope}"
