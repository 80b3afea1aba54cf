"""Clients of Kafka that are tried."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.compat.kafka.go import go_program
from tests.compat.kafka.java import java_program
from tests.compat.kafka.sessions import Program, node_program, python_program

LOCKS = Path(__file__).parents[1] / "clients"
GO_LOCK = "../kafka/clients/go/go.mod"


def locked(file: str, pattern: str) -> str:
    """Return the version in a lock file of ``tests/compat/clients``."""
    found = re.search(pattern, (LOCKS / file).read_text())
    assert found is not None, pattern
    return found[1]


@dataclass(frozen=True)
class TriedClient:
    """A client, and the operations of scenarios that it does not have."""

    program: Callable[[], Program]
    version: Callable[[], str]
    missing: frozenset[str] = frozenset()


TRIED = {
    "confluent-kafka": TriedClient(
        partial(python_program, "confluent"),
        partial(locked, "kafka.txt", r"confluent-kafka==(\S+)"),
        missing=frozenset({"forget"}),
    ),
    "kafka-python": TriedClient(
        partial(python_program, "kafka_python"), partial(locked, "kafka.txt", r"kafka-python==(\S+)")
    ),
    "aiokafka": TriedClient(
        partial(python_program, "aio"),
        partial(locked, "kafka.txt", r"aiokafka==(\S+)"),
        missing=frozenset({"delete_group", "forget", "cooperative_assignor", "fenced_member"}),
    ),
    "kafkajs": TriedClient(
        node_program,
        partial(locked, "node/package.json", r'"kafkajs": "([^"]+)"'),
        missing=frozenset({"forget", "range_assignor", "cooperative_assignor", "static_members"}),
    ),
    "kafka-clients": TriedClient(
        java_program,
        partial(locked, "../kafka/clients/java/pom.xml", r"<artifactId>kafka-tools</artifactId>\s*<version>([^<]+)"),
    ),
    "franz-go": TriedClient(partial(go_program, "franz-go"), partial(locked, GO_LOCK, r"/franz-go v(\S+)")),
    "sarama": TriedClient(partial(go_program, "sarama", "max"), partial(locked, GO_LOCK, r"/sarama v(\S+)")),
}
QUICK_CLIENT = "confluent-kafka"
"""The client that `make test` runs."""
