"""Limits that the process sets for all connections, as a listener needs them."""

from __future__ import annotations

from typing import Protocol


class ConnectionCounter(Protocol):
    """Counts connections, in total and for each client (:class:`holdfast.http.connection_limits.ConnectionSlots`)."""

    refused: int
    """Number of connections refused since the last report."""

    def client(self, host: str) -> str:
        """Return the client that a connection from this host counts for."""

    def take(self, client: str) -> bool:
        """Count one more connection; False: a limit is exceeded.  Each call is followed by :meth:`give_back`."""

    def give_back(self, client: str) -> None: ...


class AbortableConnection(Protocol):
    """A connection that can be closed at once."""

    def abort(self) -> None: ...


class AnswerMemory(Protocol):
    """Memory of answers that clients have not read, of all connections (:class:`holdfast.http.answers.UnreadAnswers`).

    If there are too many, the connection whose client has gone longest without reading is aborted.
    """

    cut: int
    """Number of connections aborted since the last report."""

    def hold(self, connection: AbortableConnection, length_bytes: int) -> None:
        """Count an answer, until :meth:`release`; a connection has one at a time."""

    def progress(self, connection: AbortableConnection) -> None:
        """Note that the client has read some of its answer."""

    def release(self, connection: AbortableConnection) -> None: ...
