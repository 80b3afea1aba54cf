"""Which slot of a queue something goes to.

Rendezvous hashing: each slot draws a number from the key, and the highest wins.  So where slots are added, keys move to
these only, and where slots go, only their keys move, to all others alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

TOKEN_KEY_BYTES = 15
"""Of a retry token; its last byte is the place in the call, and a call goes to one slot as a whole."""

_MASK = (1 << 64) - 1
# The finaliser of a known 64-bit mixer (splitmix64), with its constants.
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_ONE = 0xBF58476D1CE4E5B9
_MIX_TWO = 0x94D049BB133111EB


def slot_of_token(token: bytes, slots: Sequence[int]) -> int:
    """The slot of a retry token, which is random; ``slots`` are those there are, in any order."""
    return _slot(int.from_bytes(token[:8], "little"), slots)


def slot_of_name(name: str, slots: Sequence[int]) -> int:
    """The slot of a message group, or of any other name."""
    return _slot(int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little"), slots)


def is_slot_of_token(slot: int, token: bytes, slots: Sequence[int]) -> bool:
    """Whether :func:`slot_of_token` is this slot: mostly it takes a few of the others to tell that it is not."""
    key = int.from_bytes(token[:8], "little")
    mine = _drawn(key, slot)
    for other in slots:
        drawn = _drawn(key, other)
        if drawn > mine:
            return False
    return slot in slots


def _slot(key: int, slots: Sequence[int]) -> int:
    best, most = -1, -1
    for slot in slots:
        drawn = _drawn(key, slot)
        if drawn > most:
            best, most = slot, drawn
    return best


def _drawn(key: int, slot: int) -> int:
    drawn = key + (slot + 1) * _GOLDEN & _MASK
    drawn = (drawn ^ drawn >> 30) * _MIX_ONE & _MASK
    drawn = (drawn ^ drawn >> 27) * _MIX_TWO & _MASK
    return drawn ^ drawn >> 31
