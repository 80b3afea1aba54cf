"""Message ids and receipt handles: both carry partition and number, so that none is ever issued twice.

A message's number has the shard's ownership epoch in its upper 24 bits.  Records that a crash took away were of an
older epoch than whatever is numbered after it, so their numbers, ids and handles do not come again.
"""

from __future__ import annotations

import binascii
import struct
from hashlib import blake2b
from typing import NamedTuple
from zlib import crc32

from backend.api import HandleOutcome

COUNTER_BITS = 40
"""Messages of one epoch: 10^12.  Epochs: 2^24."""

_MASK = (1 << 122) - 1
# Two odd constants of 122 bits (digits of the golden ratio and of pi): multiplying by them modulo 2^122 and folding
# the upper half onto the lower is a bijection, so distinct (partition, number) pairs keep distinct ids.
_MIX_1 = 0x27220A94FE8B82EE3A4B1CF5C4D3A57 | 1
_MIX_2 = 0x243F6A8885A308D313198A2E0370734 | 1


def first_number(epoch: int) -> int:
    """The first message number of an epoch."""
    return epoch << COUNTER_BITS | 1


def message_id(partition: int, number: int) -> str:
    """A UUID that looks random and says nothing of volumes; unique, for it is a bijection of its arguments."""
    mixed = ((partition << 64 | number) * _MIX_1) & _MASK
    mixed ^= mixed >> 61
    mixed = (mixed * _MIX_2) & _MASK
    mixed ^= mixed >> 61
    digits = f"{mixed >> 74:012x}4{mixed >> 62 & 0xFFF:03x}{8 | mixed >> 60 & 3:x}{mixed & (1 << 60) - 1:015x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def pack_id(text: str) -> bytes:
    """A message id as 16 bytes."""
    return bytes.fromhex(text.replace("-", ""))


def unpack_id(packed: bytes) -> str:
    digits = packed.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


class Handle(NamedTuple):
    """What a receipt handle says: which claim of which message."""

    number: int
    receives: int
    received_ms: int


_HANDLE = struct.Struct(">BQQIQ")
_CHECK = struct.Struct(">I")
_VERSION = 1
_MAC_BYTES = 9
_HANDLE_BYTES = _HANDLE.size + _CHECK.size + _MAC_BYTES


class Handles:
    """Issues and reads the receipt handles of one partition.

    A handle is authenticated, so that one that was never issued is told from one whose message is gone, and guessing
    is of no use.  The unkeyed checksum tells a handle of another queue from garbage without asking that queue.
    """

    __slots__ = ("_base", "_partition")

    def __init__(self, partition: int, key: bytes) -> None:
        self._partition = partition
        self._base = blake2b(digest_size=_MAC_BYTES, key=key)

    def _mac(self, content: bytes) -> bytes:
        mac = self._base.copy()
        mac.update(content)
        return mac.digest()

    def issue(self, number: int, receives: int, received_ms: int) -> str:
        content = _HANDLE.pack(_VERSION, self._partition, number, receives, received_ms)
        packed = content + _CHECK.pack(crc32(content)) + self._mac(content)
        return binascii.b2a_base64(packed, newline=False).decode()

    def read(self, handle: str) -> Handle | HandleOutcome:
        """The claim, or why there is none: MALFORMED or OTHER_QUEUE."""
        try:
            packed = binascii.a2b_base64(handle, strict_mode=True)
        except ValueError:
            return HandleOutcome.MALFORMED
        if len(packed) != _HANDLE_BYTES:
            return HandleOutcome.MALFORMED
        content = packed[: _HANDLE.size]
        if crc32(content) != int.from_bytes(packed[_HANDLE.size : _HANDLE.size + _CHECK.size], "big"):
            return HandleOutcome.MALFORMED
        version, partition, number, receives, received_ms = _HANDLE.unpack(content)
        if version != _VERSION:
            return HandleOutcome.MALFORMED
        if partition != self._partition:
            return HandleOutcome.OTHER_QUEUE
        # Not compared in constant time on purpose: the caller is already allowed to use this queue.
        if self._mac(content) != packed[_HANDLE.size + _CHECK.size :]:
            return HandleOutcome.MALFORMED
        return Handle(number, receives, received_ms)
