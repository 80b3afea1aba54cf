"""Brokers of Kafka's protocol: Kafka itself, with and without a sync before it answers, and Holdfast."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from typing import Self

from bench.servers.servers import Holdfast, ServerMissing, ServerProcess, free_port
from tests.servers.java import kafka_broker
from tests.servers.java.maven import JarsMissing

HEAP_MIB = 1024
"""Heap of Kafka, as its own start script has it."""


class Kafka(ServerProcess):
    """Kafka of the Maven repository, one node, which syncs each batch before it answers."""

    name = "kafka"
    settings: Mapping[str, str] = {"log.flush.interval.messages": "1"}

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        super().__init__(environment)
        self._broker = kafka_broker.KafkaBroker(self.settings, heap_mib=HEAP_MIB)

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> float:
        started_at = time.perf_counter()
        self._broker.start()
        self.port = self._broker.port
        return time.perf_counter() - started_at

    def kill(self) -> None:
        self._broker.close()

    @property
    def pid(self) -> int:
        pid = self._broker.pid
        assert pid is not None
        return pid

    def log(self) -> str:
        return self._broker.log_file.read_text(errors="replace")

    @classmethod
    def version(cls) -> str:
        try:
            (jar,) = kafka_broker.jars().glob("kafka-server-[0-9]*.jar")
        except (JarsMissing, ValueError):
            return ""
        return jar.stem.removeprefix("kafka-server-")

    @classmethod
    def fetch(cls) -> None:
        """Copy the broker's jars from the Maven repository, unless present.  Raises :class:`ServerMissing`."""
        if not shutil.which("java"):
            raise ServerMissing("Kafka is left out: there is no java on this machine")
        try:
            kafka_broker.jars()
        except JarsMissing as error:
            raise ServerMissing(f"Kafka is left out: {error}") from error


class KafkaUnsynced(Kafka):
    """The same with Kafka's default: a batch is acknowledged before it is on the disk."""

    name = "kafka-unsynced"
    settings: Mapping[str, str] = {}


class HoldfastStreams(Holdfast):
    """Holdfast with the port for Kafka's clients."""

    name = "holdfast-streams"

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.kafka_port = free_port()
        super().__init__({"HOLDFAST_KAFKA_PORT": str(self.kafka_port)} | dict(environment or {}))
