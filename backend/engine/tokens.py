"""Tokens seen within a window, each with the number of the message with which its send was answered.

A FIFO queue's deduplication ids and the retry tokens of calls are two such windows.  A retry token has a digest of its
call, which distinguishes a repeat from another call with the same token.

Memory is rate times window: a dictionary entry for the lookup, and 32 packed bytes (48 with a digest) in order of
arrival; with the key and its index that is about 170 bytes for each token.  Full chunks never change again, so a
checkpoint writes each of them once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from struct import Struct

from backend.engine.blocks import Ref
from backend.engine.timers import NEVER

CHUNK_TOKENS = 1024
TOKEN_BYTES = 16
DIGEST_BYTES = 16
TOKEN_MEMORY_BYTES = 170
"""Approximate memory of one token in total."""

_each_token = Struct(f"{TOKEN_BYTES}s").iter_unpack


class Chunk:
    """Consecutive tokens as columns: 16-byte keys, message numbers, expiry times and possibly digests."""

    __slots__ = ("digests", "expires", "first", "keys", "numbers", "ref", "start")

    def __init__(self, first: int) -> None:
        self.first = first
        """Index of its first token; tokens are counted in order of arrival."""
        self.keys = bytearray()
        self.numbers = array("Q")
        self.expires = array("Q")
        self.digests = bytearray()
        self.start = 0
        """Tokens of the chunk before this index have expired."""
        self.ref: Ref | None = None
        """Reference to this chunk in the last checkpoint; None if it has changed since."""

    def key(self, at: int) -> bytes:
        return bytes(self.keys[at * TOKEN_BYTES : (at + 1) * TOKEN_BYTES])

    def digest(self, at: int) -> bytes:
        return bytes(self.digests[at * DIGEST_BYTES : (at + 1) * DIGEST_BYTES])


class Tokens:
    """The tokens of a window.  Either all of them have a digest, or none has.

    Tokens may expire in another order than they were remembered: each lookup compares the time.
    """

    __slots__ = ("_chunks", "_indexes", "_last", "_next", "next_expiry")

    def __init__(self) -> None:
        self._indexes: dict[bytes, int] = {}
        self._chunks: list[Chunk] = []
        self._last: Chunk | None = None
        self._next = 0
        self.next_expiry = NEVER

    def __len__(self) -> int:
        return len(self._indexes)

    def __bool__(self) -> bool:
        return bool(self._indexes)

    def get(self, token: bytes, now: int) -> int | None:
        """Return the number of the message stored with this token, unless the token has expired at ``now``.

        The expiry is checked here and not only in :meth:`expire`, because tokens handed over by another partition are
        not in order of time, and a shortened window leaves tokens that expire after later ones.
        """
        index = self._indexes.get(token)
        if index is None:
            return None
        chunk = self._chunk(index)
        at = index - chunk.first
        return chunk.numbers[at] if chunk.expires[at] > now else None

    def find(self, token: bytes, now: int) -> tuple[int, bytes] | None:
        """Return number and digest stored with this token, unless it has expired at ``now``."""
        index = self._indexes.get(token)
        if index is None:
            return None
        chunk = self._chunk(index)
        at = index - chunk.first
        return (chunk.numbers[at], chunk.digest(at)) if chunk.expires[at] > now else None

    def _chunk(self, index: int) -> Chunk:
        return self._chunks[bisect_right(self._chunks, index, key=_first) - 1]

    def remember(self, token: bytes, number: int, expires: int, digest: bytes = b"") -> None:
        index = self._next
        chunk = self._last
        if chunk is None or index - chunk.first >= CHUNK_TOKENS:
            chunk = self._last = Chunk(index)
            self._chunks.append(chunk)
        chunk.keys += token
        chunk.numbers.append(number)
        chunk.expires.append(expires)
        if digest:
            chunk.digests += digest
        chunk.ref = None
        self._indexes[token] = index
        self._next = index + 1
        if expires < self.next_expiry:
            self.next_expiry = expires

    def expire(self, now: int) -> None:
        """Free the memory of tokens that have expired at ``now``, up to the first one that has not."""
        if now < self.next_expiry:
            return
        indexes = self._indexes
        while self._chunks:
            chunk = self._chunks[0]
            index = chunk.first + chunk.start
            tokens = _each_token(chunk.keys[chunk.start * TOKEN_BYTES :])
            for (token,), expires in zip(tokens, chunk.expires[chunk.start :], strict=True):
                if expires > now:
                    chunk.start = index - chunk.first
                    self.next_expiry = expires
                    return
                if indexes.get(token) == index:
                    del indexes[token]
                index += 1
            del self._chunks[0]
        self._last = None
        self.next_expiry = NEVER

    def clear(self) -> None:
        self._indexes.clear()
        self._chunks.clear()
        self._last = None
        self.next_expiry = NEVER

    def chunks(self) -> list[Chunk]:
        """Return the chunks in order, for a checkpoint."""
        return list(self._chunks)

    def restore(self, keys: bytes, numbers: array[int], expires: array[int], digests: bytes, ref: Ref) -> None:
        """Append a chunk from a checkpoint."""
        chunk = Chunk(self._next)
        chunk.keys, chunk.numbers, chunk.expires = bytearray(keys), numbers, expires
        chunk.digests = bytearray(digests)
        chunk.ref = ref
        self._chunks.append(chunk)
        self._last = chunk
        self._next += len(numbers)
        for at in range(len(numbers)):
            self._indexes[chunk.key(at)] = chunk.first + at
        if expires:
            self.next_expiry = min(self.next_expiry, expires[0])

    def live(self, now: int, part: int, parts: int) -> Iterator[tuple[bytes, int, int, bytes]]:
        """Yield token, number, expiry and digest of each token remembered at ``now`` that belongs to this part.

        A token's part is its last byte but one, modulo ``parts``.
        """
        indexes = self._indexes
        for chunk in self._chunks:
            column = bytes(chunk.keys[TOKEN_BYTES - 2 :: TOKEN_BYTES])
            for at in [at for at, byte in enumerate(column) if byte % parts == part]:
                token = chunk.key(at)
                if chunk.expires[at] > now and indexes.get(token) == chunk.first + at:
                    yield token, chunk.numbers[at], chunk.expires[at], chunk.digest(at)

    def items(self, now: int) -> dict[bytes, tuple[int, bytes]]:
        """Return number and digest by token, of those that have not expired at ``now``, for comparison."""
        return {token: found for token in self._indexes if (found := self.find(token, now)) is not None}


class ImportedTokens:
    """Tokens that other partitions of the queue have handed over, when it was split or a partition of it drained.

    Each names a message of the partition that stored it, its *origin*: a repeated send is answered with that message's
    id, whichever partition receives it.  A token is remembered a little longer than at its origin.
    """

    __slots__ = ("complete", "retries", "tokens")

    def __init__(self) -> None:
        self.complete: dict[int, int] = {}
        """By partition that has handed over all its tokens: the version of the map for which it did so."""
        self.retries: dict[int, Tokens] = {}
        """Retry tokens, by origin."""
        self.tokens: dict[int, Tokens] = {}
        """Deduplication ids, by origin."""

    def __len__(self) -> int:
        return sum(map(len, self.windows()))

    def __bool__(self) -> bool:
        return any(self.windows())

    def windows(self) -> Iterator[Tokens]:
        yield from self.retries.values()
        yield from self.tokens.values()

    @property
    def next_expiry(self) -> int:
        return min((window.next_expiry for window in self.windows()), default=NEVER)

    def expire(self, now: int) -> None:
        """Free the memory of tokens that have expired at ``now``."""
        for by_origin in (self.retries, self.tokens):
            for origin, window in list(by_origin.items()):
                window.expire(now)
                if not window:
                    del by_origin[origin]

    def retry(self, token: bytes, now: int) -> tuple[int, int, bytes] | None:
        """Return origin, number and digest stored with this retry token, unless it has expired at ``now``."""
        for origin, window in self.retries.items():
            found = window.find(token, now)
            if found is not None:
                return origin, *found
        return None

    def message(self, token: bytes, now: int) -> tuple[int, int] | None:
        """Return origin and number of the message with this deduplication id, unless it has expired at ``now``."""
        for origin, window in self.tokens.items():
            number = window.get(token, now)
            if number is not None:
                return origin, number
        return None


def _first(chunk: Chunk) -> int:
    return chunk.first
