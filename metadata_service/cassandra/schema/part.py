"""Groups of tables in a keyspace, each with its own schema version."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from metadata_service.cassandra.driver.connection import CassandraConnection
from metadata_service.schema import Schema


class Part(NamedTuple):
    """Tables of one user of a shared keyspace, versioned apart from the others' (:mod:`metadata_service.schema`)."""

    name: str
    schema: Schema
    """The schema.  All of its statements are idempotent, because a process may end in the middle of a step."""
    complete: Callable[[CassandraConnection, str, int, int, str], str]
    """Function that fills in the placeholders of a statement, given the connection, the keyspace's name, the
    step's number from 0 on, and the statement's position in the step."""

    def run(self, connection: CassandraConnection, keyspace: str, step: int, statements: Iterable[str]) -> None:
        """Apply the statements of a step.  Blocks.  Raises :class:`~metadata_service.opening.CannotOpen`."""
        for position, statement in enumerate(statements):
            connection.change_schema(keyspace, self.complete(connection, keyspace, step, position, statement))
