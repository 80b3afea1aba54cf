"""Choice of a record's partition: by its key, as Kafka's clients choose, and in turn without one."""

from __future__ import annotations

from itertools import count
from typing import Final

_SEED: Final = 0x9747B28C
_FACTOR: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


class Partitioner:
    """Chooses partitions; those of records without a key follow each other, over all topics."""

    def __init__(self) -> None:
        self._turns = count()

    def choose(self, key: bytes | None, partitions: int) -> int:
        """Return the number of the partition for a record with this key."""
        return next(self._turns) % partitions if key is None else partition_of_key(key, partitions)


def partition_of_key(key: bytes, partitions: int) -> int:
    """Number of the partition that Kafka's Java client chooses for this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """MurmurHash2 of 32 bits, with the seed of Kafka's clients; unsigned."""
    length = len(data)
    hashed = _SEED ^ length
    whole = length - length % 4
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * _FACTOR & _MASK
        word = (word ^ word >> 24) * _FACTOR & _MASK
        hashed = hashed * _FACTOR & _MASK ^ word
    if whole < length:
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * _FACTOR & _MASK
    hashed = (hashed ^ hashed >> 13) * _FACTOR & _MASK
    return hashed ^ hashed >> 15
