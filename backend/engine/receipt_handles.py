"""Receipt handles.  They contain partition and number (:mod:`backend.engine.ids`), so no handle is issued twice."""

from __future__ import annotations

import struct
from binascii import Error as NotBase64
from binascii import a2b_base64, b2a_base64
from hashlib import blake2b

from backend.api import HandleOutcome

_HANDLE = struct.Struct(">BQQIQ")
_CONTENT_BYTES = _HANDLE.size
_VERSION = 1
_MAC_BYTES = 13
_HANDLE_BYTES = _CONTENT_BYTES + _MAC_BYTES
_pack, _unpack = _HANDLE.pack, _HANDLE.unpack_from
_HEAD = struct.Struct(">BQ")


def partition_of(handle: str) -> int:
    """Return the partition that a receipt handle names; 0 if it is not a receipt handle."""
    try:
        version, partition = _HEAD.unpack_from(a2b_base64(handle))
    except (NotBase64, ValueError, struct.error):
        return 0
    return int(partition) if version == _VERSION else 0


class Handles:
    """Issues and reads the receipt handles of one partition.

    A handle is authenticated: one that was never issued is distinguished from one whose message is gone, and guessing
    is useless.  For a handle that names another partition, the answer does not reveal whether it was ever issued.
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
        """Return (number, receives, received_ms) of the claim, or the reason there is none: MALFORMED or
        OTHER_QUEUE.
        """
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
        # Deliberately not a constant-time comparison: the caller is already allowed to use this queue.
        if mac.digest() != packed[_CONTENT_BYTES:]:
            return HandleOutcome.MALFORMED
        return number, receives, received_ms
