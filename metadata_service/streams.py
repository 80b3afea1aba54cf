"""Streams, which are the topics of Kafka's protocol, and the ids of consumer groups.

A stream belongs to an account, as a queue does, and has a name in a space of its own: an account may have a queue and
a stream of the same name.  Its id and the ids of its partitions come from the counters that queues use, so no id is
both a queue's and a stream's, and a partition's id alone selects its cluster and its shard.

Consumer groups have no record here: :func:`group_partition` computes the partition that keeps a group.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

import msgspec

from metadata_service.models import CLUSTER_BITS, CLUSTERS_MAX, SERIAL_BITS

PARTITIONS_MAX: Final = 1000
"""Maximum number of partitions of a stream, whose record has an id for each."""
GROUP_BIT: Final = 1 << 62
"""Bit that ids of consumer groups have, and no id of a queue, a stream or one of their partitions: those are counted,
and end at 52 bits."""

PRODUCER_COUNTER: Final = "producer"
"""Counter of the ids of idempotent producers."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}\Z")
_STREAM_ID_BYTES: Final = 8
_GROUP_HASH_BITS: Final = GROUP_BIT.bit_length() - 1 - CLUSTER_BITS
"""Bits of a group's hash in the id of its partition: 50."""


def check_stream_name(name: str) -> str:
    """Return the name if a stream can have it, by Kafka's rule.  Raises ``ValueError``."""
    if name in (".", "..") or not _NAME.match(name):
        raise ValueError(
            f"a topic cannot have the name {name[:300]!r}: it has to be 1 to 249 letters (A-Z, a-z), digits, periods, "
            "underscores and hyphens, and neither '.' nor '..'"
        )
    return name


class Stream(msgspec.Struct, frozen=True):
    """One incarnation of a stream: recreated after a deletion it has another ``stream_id`` and ``topic_id``."""

    stream_id: int
    """Id, in one number space with the ids of queues."""
    account: str
    name: str
    version: int
    """Version, from 1; incremented by every change of settings, tags or partitions."""
    settings: dict[str, str]
    """Canonical values of the entries that were set, by Kafka's names (:mod:`metadata_service.stream_settings`);
    others have their defaults."""
    tags: dict[str, str]
    created_s: int
    modified_s: int
    """Time when settings were last set; tags and partitions do not change it."""
    topic_id: bytes
    """Id in Kafka's protocol, 16 bytes: random ones, then the ``stream_id`` (:func:`stream_id_of`)."""
    partition_ids: tuple[int, ...]
    """Id of each partition, by its number in the stream.  Partitions are added and never removed."""

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return len(self.partition_ids)


class NewStream(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stream to be created."""

    account: str
    name: str
    settings: dict[str, str]
    tags: dict[str, str]
    now_ms: int
    clusters: tuple[int, ...] = (0,)
    """Backend cluster of each partition."""
    streams_max: int | None = None
    """Maximum number of streams of the account; None: no limit."""
    partitions_max: int | None = None
    """Maximum number of partitions of all streams of the account together; None: no limit."""

    def check(self) -> None:
        """Raise ``ValueError`` if there cannot be such a stream."""
        check_stream_name(self.name)
        _check_partitions(self.name, len(self.clusters))

    def made(self, stream_id: int, partition_ids: Iterable[int]) -> Stream:
        """Build the stream, with these partitions and a new topic id."""
        return Stream(
            stream_id=stream_id,
            account=self.account,
            name=self.name,
            version=1,
            settings=self.settings,
            tags=self.tags,
            created_s=self.now_ms // 1000,
            modified_s=self.now_ms // 1000,
            topic_id=_new_topic_id(stream_id),
            partition_ids=tuple(partition_ids),
        )


def with_more_partitions(stream: Stream, ids: Iterable[int]) -> Stream:
    """The stream with further partitions of these ids; the caller increments its version.  Raises ``ValueError``."""
    partition_ids = (*stream.partition_ids, *ids)
    _check_partitions(stream.name, len(partition_ids))
    if len(partition_ids) == stream.partitions:
        raise ValueError(f"no partitions are to be added to the topic {stream.name!r}")
    return msgspec.structs.replace(stream, partition_ids=partition_ids)


def stream_id_of(topic_id: bytes) -> int:
    """Id of the stream that may have this topic id: its own has to be compared.  0 for other bytes."""
    return int.from_bytes(topic_id[-_STREAM_ID_BYTES:], "big") if len(topic_id) == 16 else 0


def _new_topic_id(stream_id: int) -> bytes:
    """Make a topic id.  Its first bit is 0, so that its text in base 64 never begins with the hyphen of an option."""
    random = secrets.token_bytes(16 - _STREAM_ID_BYTES)
    return bytes([random[0] & 0x7F]) + random[1:] + stream_id.to_bytes(_STREAM_ID_BYTES, "big")


def _check_partitions(name: str, count: int) -> None:
    if not 1 <= count <= PARTITIONS_MAX:
        raise ValueError(f"a topic has 1 to {PARTITIONS_MAX} partitions, and {name!r} would have {count}")


# --- consumer groups --------------------------------------------------------------------------------------


def group_partition(account: str, group: str, cluster: int = 0) -> int:
    """Id of the partition that keeps a consumer group, in a backend cluster.

    It has :data:`GROUP_BIT`, so it is never the id of a queue's or a stream's partition.  The number of the cluster is
    where other partitions have it too (:func:`~metadata_service.models.cluster_of`), and the shard is computed from
    the whole id, as for others.  The remaining 50 bits are a hash of account and group, so two groups of a million have
    the same partition with a probability of 1 in 2000: a caller compares :func:`group_id` too.

    The cluster has to be the same for all time: :meth:`~metadata_service.store.StreamStore.group_cluster`.
    """
    assert 0 <= cluster < CLUSTERS_MAX
    hashed = int.from_bytes(_group_hash(account, group)[:8], "big") & (1 << _GROUP_HASH_BITS) - 1
    low, high = hashed & (1 << SERIAL_BITS) - 1, hashed >> SERIAL_BITS
    return GROUP_BIT | high << SERIAL_BITS + CLUSTER_BITS | cluster << SERIAL_BITS | low


def group_id(account: str, group: str) -> int:
    """Id of a consumer group in place of a queue's or a stream's id: a hash with :data:`GROUP_BIT`.

    It is independent of the hash in the partition's id, so that a call for another group with the same partition is
    recognized by it.
    """
    return GROUP_BIT | int.from_bytes(_group_hash(account, group)[8:], "big") & GROUP_BIT - 1


def is_group(number: int) -> bool:
    """True for a result of :func:`group_partition` or :func:`group_id`, false for any id of a queue or a stream."""
    return bool(number & GROUP_BIT)


def _group_hash(account: str, group: str) -> bytes:
    return blake2b(f"{account}/{group}".encode(), digest_size=16, person=b"holdfast group").digest()
