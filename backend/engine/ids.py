"""Message ids and receipt handles: both carry partition and number, so that none is ever issued twice.

A message's number has the shard's ownership epoch in its upper 24 bits.  Records that a crash took away were of an
older epoch than whatever is numbered after it, so their numbers, ids and handles do not come again.
"""

from __future__ import annotations

import struct
from binascii import a2b_base64, b2a_base64
from hashlib import blake2b

from backend.api import HandleOutcome

COUNTER_BITS = 40
"""Messages of one epoch: 10^12.  Epochs: 2^24."""

_MASK_58 = (1 << 58) - 1
_MASK_64 = (1 << 64) - 1
# Odd constants (golden ratio; two of a known 64-bit mixer): multiplying by an odd number modulo a power of two is a
# bijection, and so is folding the upper half of a word onto the lower.
_MIX_NUMBER = 0x9E3779B97F4A7C15
_MIX_PARTITION = 0xD6E8FEB86659FD93
_MIX_BOTH = 0xFF51AFD7ED558CCD


def first_number(epoch: int) -> int:
    """The first message number of an epoch."""
    return epoch << COUNTER_BITS | 1


def message_id(partition: int, number: int) -> str:
    """A UUID that looks random and says nothing of volumes.

    Unique: its 64 lower bits are a bijection of the number, its 58 upper ones, given those, of the partition.
    """
    low = number * _MIX_NUMBER & _MASK_64
    low ^= low >> 32
    high = partition * _MIX_PARTITION + low * _MIX_BOTH & _MASK_58
    return "%08x-%04x-%04x-%04x-%012x" % (  # noqa: UP031 - faster than an f-string, and made for every message
        high >> 26,
        high >> 10 & 0xFFFF,
        0x4000 | (high & 0x3FF) << 2 | low >> 62,
        0x8000 | low >> 48 & 0x3FFF,
        low & 0xFFFFFFFFFFFF,
    )


def pack_id(text: str) -> bytes:
    """A message id as 16 bytes."""
    return bytes.fromhex(text.replace("-", ""))


def unpack_id(packed: bytes) -> str:
    digits = packed.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


_HANDLE = struct.Struct(">BQQIQ")
_CONTENT_BYTES = _HANDLE.size
_VERSION = 1
_MAC_BYTES = 13
_HANDLE_BYTES = _CONTENT_BYTES + _MAC_BYTES
_pack, _unpack = _HANDLE.pack, _HANDLE.unpack_from


class Handles:
    """Issues and reads the receipt handles of one partition.

    A handle is authenticated, so that one that was never issued is told from one whose message is gone, and guessing
    is of no use.  Whether a handle that names another partition was ever issued, nobody is told.
    """

    __slots__ = ("_base", "_partition")

    def __init__(self, partition: int, key: bytes) -> None:
        self._partition = partition
        self._base = blake2b(digest_size=_MAC_BYTES, key=key)

    def issue(self, number: int, receives: int, received_ms: int) -> str:
        content = _pack(_VERSION, self._partition, number, receives, received_ms)
        mac = self._base.copy()
        mac.update(content)
        return b2a_base64(content + mac.digest(), newline=False).decode()

    def read(self, handle: str) -> tuple[int, int, int] | HandleOutcome:
        """(number, receives, received_ms) of the claim, or why there is none: MALFORMED or OTHER_QUEUE."""
        try:
            packed = a2b_base64(handle, strict_mode=True)
        except ValueError:
            return HandleOutcome.MALFORMED
        if len(packed) != _HANDLE_BYTES or packed[0] != _VERSION:
            return HandleOutcome.MALFORMED
        _, partition, number, receives, received_ms = _unpack(packed)
        if partition != self._partition:
            return HandleOutcome.OTHER_QUEUE
        mac = self._base.copy()
        mac.update(packed[:_CONTENT_BYTES])
        # Not compared in constant time on purpose: the caller is already allowed to use this queue.
        if mac.digest() != packed[_CONTENT_BYTES:]:
            return HandleOutcome.MALFORMED
        return number, receives, received_ms
