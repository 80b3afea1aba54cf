"""Scenarios that each client of Kafka performs, with the results that they have."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

TOPIC_EXISTS = 36
UNKNOWN_TOPIC = 3
INVALID_PARTITIONS = 37
FENCED_INSTANCE_ID = 82

NOW = int(time.time() * 1000)
"""Timestamp of records, in ms: those of the past are deleted by retention."""

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True)
class ClientStep:
    """A call of an operation with its arguments and its result."""

    operation: str
    arguments: dict[str, Any]
    result: Any = None


def step(operation: str, result: Any = None, **arguments: Any) -> ClientStep:
    return ClientStep(operation, arguments, result)


def record(value: str | None, key: str | None = None, **fields: Any) -> dict[str, Any]:
    """Return a record to produce; its partition is 0 unless it is named."""
    return {"key": key, "value": value, "headers": [], "partition": 0, "timestamp": NOW, **fields}


def stored(offset: int, produced: dict[str, Any]) -> dict[str, Any]:
    """Return a record as it is read."""
    return {"offset": offset, **{name: value for name, value in produced.items() if name != "partition"}}


def create(topic: str, partitions: int = 1, configs: Mapping[str, str] = MappingProxyType({})) -> ClientStep:
    return step("create", topic=topic, partitions=partitions, configs=dict(configs))


def produce(
    topic: str, records: Sequence[dict[str, Any]], result: Any, codec: str = "none", idempotent: bool = True
) -> ClientStep:
    return step("produce", result, topic=topic, records=list(records), codec=codec, idempotent=idempotent, acks="all")


def numbered(first: int, count: int, partition: int = 0) -> list[dict[str, Any]]:
    return [record(f"value {number}", f"key {number}", partition=partition) for number in range(first, first + count)]


def places(first: int, count: int, partition: int = 0) -> list[list[int]]:
    return [[partition, offset] for offset in range(first, first + count)]


def codec(topic: str, name: str) -> list[ClientStep]:
    """Records that compress well are produced with a codec, and read."""
    records = [record(f"{number} " + "text " * 50, f"key {number}") for number in range(100)]
    return [
        create(topic),
        produce(topic, records, places(0, 100), name),
        step("read", [stored(n, one) for n, one in enumerate(records)], topic=topic, partition=0, offset=0, count=100),
    ]


def idempotent(topic: str) -> list[ClientStep]:
    """Idempotent producers and one that is not append to the same partition."""
    return [
        create(topic),
        produce(topic, numbered(0, 20), places(0, 20)),
        produce(topic, numbered(20, 10), places(20, 10), idempotent=False),
        produce(topic, numbered(30, 20), places(30, 20)),
        step("offsets", [0, 50], topic=topic, partition=0),
    ]


def fields(topic: str) -> list[ClientStep]:
    """Keys, values, headers and timestamps are read as they were produced."""
    records = [
        record("plain", timestamp=1_600_000_000_000),
        record("keyed", "key", timestamp=1_600_000_001_000),
        record("", "", timestamp=1_600_000_002_000),
        record(None, "tombstone", timestamp=1_600_000_003_000),
        record("Füße", "ключ", headers=[["name", "wert"], ["empty", ""]], timestamp=1_600_000_004_000),
        record("twice", headers=[["same", "1"], ["same", "2"]], timestamp=1_600_000_005_000),
        record("x" * 100_000, "large", timestamp=1_600_000_006_000),
    ]
    return [
        create(topic, configs={"retention.ms": "-1"}),
        produce(topic, records, places(0, 7)),
        step("read", [stored(n, one) for n, one in enumerate(records)], topic=topic, partition=0, offset=0, count=7),
        step("offset_at", 0, topic=topic, partition=0, timestamp=1_500_000_000_000),
        step("offset_at", 3, topic=topic, partition=0, timestamp=1_600_000_002_001),
        step("offset_at", 4, topic=topic, partition=0, timestamp=1_600_000_004_000),
    ]


def seek(topic: str) -> list[ClientStep]:
    """A consumer goes to the middle, back to the start, and to the end."""
    return [
        create(topic),
        produce(topic, numbered(0, 60), places(0, 60)),
        produce(topic, numbered(60, 40), places(60, 40), "gzip"),
        step(
            "seek",
            [[50, 51, 52], [0, 1, 2], [97, 98, 99], [73, 74, 75]],
            topic=topic,
            partition=0,
            offsets=[50, 0, 97, 73],
            count=3,
        ),
    ]


def group(topic: str) -> list[ClientStep]:
    """A group's members go on from what it has committed; its offsets are reset, and it is deleted."""
    read = [[partition, number, f"value {number}"] for partition in range(2) for number in range(10)]
    later = [[partition, number, f"value {number}"] for partition in range(2) for number in range(10, 15)]
    return [
        create(topic, 2),
        *(produce(topic, numbered(0, 10, partition), places(0, 10, partition)) for partition in range(2)),
        step("consume", read, topic=topic, group=topic, count=20),
        step("committed", [[0, 10], [1, 10]], topic=topic, group=topic),
        *(produce(topic, numbered(10, 5, partition), places(10, 5, partition)) for partition in range(2)),
        step("consume", later, topic=topic, group=topic, count=10),
        step("groups", [topic], prefix=topic),
        step("group_state", "empty", group=topic),
    ]


def admin_offsets(topic: str) -> list[ClientStep]:
    """Committed offsets of a group are set by an administrator, and the group is deleted."""
    return [
        create(topic),
        produce(topic, numbered(0, 10), places(0, 10)),
        step("reset", topic=topic, group=topic, partition=0, offset=7),
        step("committed", [[0, 7]], topic=topic, group=topic),
        step("consume", [[0, number, f"value {number}"] for number in (7, 8, 9)], topic=topic, group=topic, count=3),
        step("delete_group", group=topic),
        step("groups", [], prefix=topic),
    ]


def rebalance(topic: str) -> list[ClientStep]:
    """A second member of a group gets half of the partitions, which the first gets back when it leaves."""
    return [
        create(topic, 4),
        step(
            "rebalance",
            [[0, 1, 2, 3]] * 3,  # of both members together, while there are two
            topic=topic,
            group=topic,
            partitions=4,
        ),
    ]


def range_assignor(topic: str) -> list[ClientStep]:
    """A second member joins and leaves; range gives each neighbouring partitions."""
    return _assigned(topic, "range_assignor", [[0, 1], [2, 3]])


def roundrobin_assignor(topic: str) -> list[ClientStep]:
    """A second member joins and leaves; roundrobin gives each every second partition."""
    return _assigned(topic, "roundrobin_assignor", [[0, 2], [1, 3]])


def _assigned(topic: str, operation: str, shared: list[list[int]]) -> list[ClientStep]:
    everything = [[0, 1, 2, 3]]
    return [
        *_four_partitions(topic),
        step(operation, [everything, shared, everything], topic=topic, group=topic, partitions=4),
    ]


def _four_partitions(topic: str) -> list[ClientStep]:
    """Create a topic with a record in each partition."""
    return [create(topic, 4), *(produce(topic, numbered(0, 1, one), places(0, 1, one)) for one in range(4))]


def cooperative_assignor(topic: str) -> list[ClientStep]:
    """A second member joins and leaves; the first gives up half of its partitions, and keeps the others meanwhile."""
    return [
        *_four_partitions(topic),
        step(
            "cooperative_assignor",
            [[0, 1, 2, 3], 2, 2],  # of both members together; given up by the first until then, and until the end
            topic=topic,
            group=topic,
            partitions=4,
        ),
    ]


def static_members(topic: str) -> list[ClientStep]:
    """Each of two static members returns to its partitions, unnoticed by the other; of doubles the first is fenced."""
    shares = [[0, 1], [2, 3]]
    return [
        *_four_partitions(topic),
        step(
            "static_members",
            [shares, [shares, 0], [shares, 0]],  # 0: partitions that the other had to give up
            topic=topic,
            group=topic,
            partitions=4,
        ),
        step("fenced_member", FENCED_INSTANCE_ID, topic=topic, group=f"{topic}-double", partitions=4),
    ]


def forgotten_offsets(topic: str) -> list[ClientStep]:
    """The committed offset of one of two partitions is deleted."""
    offsets = [step("reset", topic=topic, group=topic, partition=number, offset=3 + number) for number in range(2)]
    return [
        create(topic, 2),
        *(produce(topic, numbered(0, 10, partition), places(0, 10, partition)) for partition in range(2)),
        *offsets,
        step("committed", [[0, 3], [1, 4]], topic=topic, group=topic),
        step("forget", topic=topic, group=topic, partition=0),
        step("committed", [[1, 4]], topic=topic, group=topic),
    ]


def topics(topic: str) -> list[ClientStep]:
    """Topics are created, described, altered, and deleted."""
    return [
        create(topic, 2, {"retention.ms": "3600000"}),
        step("create", {"error": TOPIC_EXISTS}, topic=topic, partitions=2, configs={}),
        step("topics", [topic], prefix=topic),
        step("partitions", 2, topic=topic),
        step("grow", topic=topic, partitions=4),
        step("partitions", 4, topic=topic),
        step("delete", topic=topic),
        step("topics", [], prefix=topic),
    ]


def configs(topic: str) -> list[ClientStep]:
    """The configuration of a topic is described and altered."""
    return [
        create(topic, 1, {"retention.ms": "3600000"}),
        step("configs", {"retention.ms": "3600000"}, topic=topic, names=["retention.ms"]),
        step("alter", topic=topic, configs={"retention.ms": "7200000", "max.message.bytes": "2000000"}),
        step(
            "configs",
            {"retention.ms": "7200000", "max.message.bytes": "2000000"},
            topic=topic,
            names=["retention.ms", "max.message.bytes"],
        ),
    ]


def deleted_records(topic: str) -> list[ClientStep]:
    """Records before an offset are deleted."""
    return [
        create(topic),
        produce(topic, numbered(0, 10), places(0, 10)),
        step("delete_records", 4, topic=topic, partition=0, before=4),
        step("offsets", [4, 10], topic=topic, partition=0),
        step(
            "read",
            [stored(number, numbered(number, 1)[0]) for number in range(4, 10)],
            topic=topic,
            partition=0,
            offset=4,
            count=6,
        ),
    ]


SCENARIOS = {
    "idempotent": idempotent,
    "fields": fields,
    "seek": seek,
    "group": group,
    "admin-offsets": admin_offsets,
    "forgotten-offsets": forgotten_offsets,
    "rebalance": rebalance,
    "range": range_assignor,
    "roundrobin": roundrobin_assignor,
    "cooperative": cooperative_assignor,
    "static-members": static_members,
    "topics": topics,
    "configs": configs,
    "deleted-records": deleted_records,
}


def scenarios(prefix: str, codecs: Sequence[str] = CODECS) -> dict[str, list[ClientStep]]:
    """Return all scenarios, whose topics and groups begin with the prefix."""
    found = {f"codec-{name}": codec(f"{prefix}-codec-{name}", name) for name in codecs}
    return found | {name: make(f"{prefix}-{name}") for name, make in SCENARIOS.items()}
