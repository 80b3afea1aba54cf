"""Memory limit for answers that clients have not read yet, shared by all connections of a process."""

from __future__ import annotations

from typing import Final, Protocol

BYTES_MAX: Final = 256 << 20


class Abortable(Protocol):
    """A connection that can be aborted."""

    def abort(self) -> None:
        """Close the connection at once, and drop unsent data."""


class UnreadAnswers:
    """Memory accounting of long answers that are being written.

    If they need more than ``bytes_max``, the connection whose client has gone longest without reading is aborted, so
    that a client that does not read cannot keep others from being answered.
    """

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self.cut = 0
        """Number of connections aborted for lack of memory since the last report."""
        self._held: dict[Abortable, int] = {}
        """Bytes by connection, the one longest without progress first."""

    def hold(self, connection: Abortable, length_bytes: int) -> None:
        """Count an answer, until :meth:`release`; a connection has one at a time."""
        self._held[connection] = length_bytes
        self.bytes_held += length_bytes
        while self.bytes_held > self.bytes_max:
            stalled = next(iter(self._held))
            self.release(stalled)
            self.cut += 1
            stalled.abort()

    def progress(self, connection: Abortable) -> None:
        """Note that the client has read some of its answer."""
        length_bytes = self._held.pop(connection, None)
        if length_bytes is not None:
            self._held[connection] = length_bytes

    def release(self, connection: Abortable) -> None:
        """Forget the connection's answer, if it has one."""
        self.bytes_held -= self._held.pop(connection, 0)
