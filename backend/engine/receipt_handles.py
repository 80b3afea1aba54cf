"""Receipt handles.  They contain partition and number (:mod:`backend.engine.ids`), so no handle is issued twice."""

from __future__ import annotations

import struct
from binascii import Error as NotBase64
from binascii import a2b_base64, b2a_base64
from hashlib import blake2b

from backend.api import HandleOutcome

_HEAD = struct.Struct(">BQ")
_CLAIM = struct.Struct(">QIQ")
_VERSION = 1
_CONTENT_BYTES = _HEAD.size + _CLAIM.size
_MAC_BYTES = 13
_HANDLE_BYTES = _CONTENT_BYTES + _MAC_BYTES
_pack_claim, _unpack_claim = _CLAIM.pack, _CLAIM.unpack


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

    __slots__ = ("_head", "_mac")

    def __init__(self, partition: int, key: bytes) -> None:
        self._head = _HEAD.pack(_VERSION, partition)
        self._mac = blake2b(self._head, digest_size=_MAC_BYTES, key=key)
        """Hash of what all handles begin with: key and head are not hashed again for each of them."""

    def issue(self, number: int, receives: int, received_ms: int) -> str:
        claim = _pack_claim(number, receives, received_ms)
        mac = self._mac.copy()
        mac.update(claim)
        return b2a_base64(self._head + claim + mac.digest(), newline=False).decode()

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
        if not packed.startswith(self._head):
            return HandleOutcome.OTHER_QUEUE
        claim = packed[_HEAD.size : _CONTENT_BYTES]
        mac = self._mac.copy()
        mac.update(claim)
        # Deliberately not a constant-time comparison: the caller is already allowed to use this queue.
        if not packed.endswith(mac.digest()):
            return HandleOutcome.MALFORMED
        return _unpack_claim(claim)
