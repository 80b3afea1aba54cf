"""Tables of a keyspace that have versions of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from metadata_service.cassandra_connection import CassandraConnection
from metadata_service.schema import Schema


class Part(NamedTuple):
    """The tables of one of those who share a keyspace, apart from the others' (:mod:`metadata_service.schema`)."""

    name: str
    schema: Schema
    """Each of its statements can be repeated without harm, for a process may end in the middle of a step."""
    complete: Callable[[CassandraConnection, str, int, int, str], str]
    """Given the keyspace's name, a statement with what is left open in it: of the step with this number, from 0 on, the
    one at this place."""

    def run(self, connection: CassandraConnection, keyspace: str, step: int, statements: Iterable[str]) -> None:
        """Change the schema so.  Blocks.  Raises :class:`~metadata_service.opening.CannotOpen`."""
        for position, statement in enumerate(statements):
            connection.change_schema(keyspace, self.complete(connection, keyspace, step, position, statement))
