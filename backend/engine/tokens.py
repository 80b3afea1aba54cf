"""Deduplication: tokens that were seen within a window, each with the number of the message it was stored with.

Memory is what rate times window allows: a dictionary entry for the lookup and 32 packed bytes in order of expiry.
Chunks that are full never change again, so a checkpoint writes each of them once.
"""

from __future__ import annotations

from array import array

from backend.engine.blocks import Ref
from backend.engine.timers import NEVER

CHUNK_TOKENS = 1024
TOKEN_BYTES = 16


class Chunk:
    """Consecutive tokens: 16-byte keys, message numbers and expiry times side by side."""

    __slots__ = ("expires", "keys", "numbers", "ref", "start")

    def __init__(self) -> None:
        self.keys = bytearray()
        self.numbers = array("Q")
        self.expires = array("Q")
        self.start = 0
        """Tokens before this place have expired."""
        self.ref: Ref | None = None
        """Where the last checkpoint has this chunk; None while it has changed since."""


class Tokens:
    """The window.  Times must not go back."""

    __slots__ = ("_chunks", "_numbers", "next_expiry")

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._chunks: list[Chunk] = []
        self.next_expiry = NEVER

    def __len__(self) -> int:
        return len(self._numbers)

    def get(self, token: bytes) -> int | None:
        """Number of the message that was stored with this token; call :meth:`expire` first."""
        return self._numbers.get(token)

    def remember(self, token: bytes, number: int, expires: int) -> None:
        chunks = self._chunks
        if not chunks or len(chunks[-1].numbers) >= CHUNK_TOKENS:
            chunks.append(Chunk())
        chunk = chunks[-1]
        chunk.keys += token
        chunk.numbers.append(number)
        chunk.expires.append(expires)
        chunk.ref = None
        self._numbers[token] = number
        if expires < self.next_expiry:
            self.next_expiry = expires

    def expire(self, now: int) -> None:
        """Forget what has expired at ``now``."""
        if now < self.next_expiry:
            return
        numbers = self._numbers
        while self._chunks:
            chunk = self._chunks[0]
            for at in range(chunk.start, len(chunk.numbers)):
                if chunk.expires[at] > now:
                    chunk.start = at
                    self.next_expiry = chunk.expires[at]
                    return
                token = bytes(chunk.keys[at * TOKEN_BYTES : (at + 1) * TOKEN_BYTES])
                if numbers.get(token) == chunk.numbers[at]:
                    del numbers[token]
            del self._chunks[0]
        self.next_expiry = NEVER

    def clear(self) -> None:
        self._numbers.clear()
        self._chunks.clear()
        self.next_expiry = NEVER

    def chunks(self) -> list[Chunk]:
        """The chunks in order, for a checkpoint."""
        return list(self._chunks)

    def restore(self, chunk: Chunk) -> None:
        """Append a chunk that a checkpoint held."""
        self._chunks.append(chunk)
        for at, number in enumerate(chunk.numbers):
            self._numbers[bytes(chunk.keys[at * TOKEN_BYTES : (at + 1) * TOKEN_BYTES])] = number
        if chunk.expires:
            self.next_expiry = min(self.next_expiry, chunk.expires[0])

    def items(self) -> dict[bytes, int]:
        """What is remembered, for comparison."""
        return dict(self._numbers)
