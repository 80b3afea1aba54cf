"""Frames: each has its length in four bytes before it.

A connection's bytes are fed as they arrive, and its frames are taken one by one.  Nothing is allocated for a frame
that has not arrived.
"""

from __future__ import annotations

import struct

from frontend.kafka.protocol.encoding.reading import MalformedRequest

LENGTH_BYTES = 4
_length = struct.Struct(">i").unpack_from


class FrameDecoder:
    """The frames of one connection.

    ``frame_bytes_max`` is the longest frame that is accepted.  The caller stops feeding while frames wait to be taken:
    then the decoder holds at most one frame and what was fed with it.
    """

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._fed = b""
        """The bytes fed last, unless a frame continues beyond them."""
        self._pos = 0
        self._partial = bytearray()
        """The beginning of a frame that was fed in several parts; empty if there is none."""

    def feed(self, data: bytes) -> None:
        """Add bytes of the connection."""
        if self._partial:
            self._partial += data
        elif self._pos == len(self._fed):
            self._fed, self._pos = data, 0
        else:
            self._partial += memoryview(self._fed)[self._pos :]
            self._partial += data
            self._fed, self._pos = b"", 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes that were fed and not taken."""
        return len(self._partial) or len(self._fed) - self._pos

    def next_frame(self) -> bytes | None:
        """Take a frame, without its length; None if none is complete.

        Raises :class:`MalformedRequest` if a length is negative or too high; the connection has to be closed then.
        """
        if self._partial:
            return self._next_of_partial()
        start = self._pos + LENGTH_BYTES
        if start > len(self._fed):
            return None
        end = start + self._checked_length(self._fed, self._pos)
        if end > len(self._fed):
            return None
        self._pos = end
        return self._fed[start:end]

    def _next_of_partial(self) -> bytes | None:
        partial = self._partial
        if len(partial) < LENGTH_BYTES:
            return None
        end = LENGTH_BYTES + self._checked_length(partial, 0)
        if len(partial) < end:
            return None
        with memoryview(partial) as view:
            frame = bytes(view[LENGTH_BYTES:end])
            rest = bytes(view[end:])
        self._partial = bytearray()
        self._fed, self._pos = rest, 0
        return frame

    def _checked_length(self, data: bytes | bytearray, pos: int) -> int:
        (length,) = _length(data, pos)
        if not 0 <= length <= self.frame_bytes_max:
            raise MalformedRequest(f"a frame of {length} bytes; at most {self.frame_bytes_max} are accepted")
        return int(length)
