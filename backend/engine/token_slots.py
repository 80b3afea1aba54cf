"""Choice of the slot of a queue for a token or a name, by rendezvous hashing.

A number is computed for each slot from the key, and the slot with the highest is chosen.  So when slots are added, keys
move only to these, and when slots are removed, only their keys move, evenly to all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

TOKEN_KEY_BYTES = 15
"""Bytes of a retry token that choose its slot; the last byte is the index in the call, and a call goes to one slot."""

_MASK = (1 << 64) - 1
# The finaliser of the 64-bit mixer splitmix64, with its constants.
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_ONE = 0xBF58476D1CE4E5B9
_MIX_TWO = 0x94D049BB133111EB


def slot_of_token(token: bytes, slots: Sequence[int]) -> int:
    """Return the slot of a retry token, which is random; ``slots``: all slots, in any order."""
    return _slot(int.from_bytes(token[:8], "little"), slots)


def slot_of_name(name: str, slots: Sequence[int]) -> int:
    """Return the slot of a message group, or of any other name."""
    return _slot(int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little"), slots)


def is_slot_of_token(slot: int, token: bytes, slots: Sequence[int]) -> bool:
    """Return whether :func:`slot_of_token` is this slot; a few other slots mostly suffice to rule it out."""
    key = int.from_bytes(token[:8], "little")
    own_draw = _drawn(key, slot)
    for other in slots:
        drawn = _drawn(key, other)
        if drawn > own_draw:
            return False
    return slot in slots


def _slot(key: int, slots: Sequence[int]) -> int:
    best, highest = -1, -1
    for slot in slots:
        drawn = _drawn(key, slot)
        if drawn > highest:
            best, highest = slot, drawn
    return best


def _drawn(key: int, slot: int) -> int:
    drawn = key + (slot + 1) * _GOLDEN & _MASK
    drawn = (drawn ^ drawn >> 30) * _MIX_ONE & _MASK
    drawn = (drawn ^ drawn >> 27) * _MIX_TWO & _MASK
    return drawn ^ drawn >> 31
