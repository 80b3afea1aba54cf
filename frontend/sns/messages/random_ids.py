"""Random ids of publications, made from random bytes that are read for many of them at once."""

from __future__ import annotations

import os

_TOGETHER = 256
"""Number of ids that are made of one read, which costs as much as that for one."""


class RandomIds:
    """Makes UUIDs of version 4.  For one process: it must not be copied by a fork once it was used."""

    def __init__(self) -> None:
        self._digits = ""
        self._used = 0

    def __call__(self) -> str:
        if self._used == len(self._digits):
            self._digits, self._used = os.urandom(16 * _TOGETHER).hex(), 0
        digits = self._digits[self._used : self._used + 32]
        self._used += 32
        variant = "89ab"[int(digits[16], 16) & 3]
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"
