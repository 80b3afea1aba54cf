"""A real Kafka broker of one node, for tests that compare answers and for the bench.

Its jars come from the Maven repository (:mod:`tests.servers.java.maven`); ``python -m
tests.servers.java.kafka_broker`` fetches them beforehand.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from tests.servers.java.maven import JarsMissing, fetch_jars
from tests.servers.started import KeptProcess, ServerContext
from tests.servers.waiting import wait_until

READY_SECONDS = 120
_FORMAT_SECONDS = 110
_NEVER_MS = str(24 * 3_600_000)
_CLUSTER_ID = "bm90LWEtcmVhbC1jbHVzdA"
"""16 bytes in base64, as the broker's storage has to be formatted with."""


@cache
def jars() -> Path:
    """The folder of the jars.  Raises :class:`tests.servers.java.maven.JarsMissing`."""
    return fetch_jars(Path(__file__).parent / "broker" / "pom.xml", "Kafka")


class KafkaBroker(KeptProcess, ServerContext):
    """A broker that is its own controller, on loopback without sign-in; topics have one replica."""

    def __init__(self, settings: Mapping[str, str] | None = None, *, heap_mib: int = 384) -> None:
        """``settings``: entries of ``server.properties`` beside those that the broker needs here."""
        folder = Path(tempfile.mkdtemp(prefix="kafka-"))
        super().__init__("kafka", folder / "log", folder)
        self._settings = dict(settings or {})
        self._heap_mib = heap_mib
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, with new storage the first time.  Returns when the broker accepts connections and requests."""
        file = self._folder / "server.properties"
        if not file.exists():
            self._format(file)
        self.launch(self._java("kafka.Kafka", str(file)), os.environ)
        wait_until(self._is_ready, "Kafka has started", READY_SECONDS)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self._folder)

    def _format(self, file: Path) -> None:
        """Choose ports and write the configuration and the broker's own first records."""
        with socket.socket() as client, socket.socket() as controller:
            for each in (client, controller):
                each.bind(("127.0.0.1", 0))
            self.port, controller_port = client.getsockname()[1], controller.getsockname()[1]
        entries = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self._folder / "data"),
            "offsets.topic.num.partitions": "4",
            "offsets.topic.replication.factor": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
            # Batches of tests may have times of years ago: deletion by retention would begin after 30 s.
            "log.initial.task.delay.ms": _NEVER_MS,
            **self._settings,
        }
        file.write_text("".join(f"{name}={value}\n" for name, value in entries.items()))
        command = self._java("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(file))
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FORMAT_SECONDS, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def _java(self, main: str, *arguments: str) -> list[str]:
        heap = f"{self._heap_mib}m"
        return ["java", f"-Xmx{heap}", "-XX:+UseSerialGC", "-cp", f"{jars()}/*", main, *arguments]

    def _is_ready(self) -> bool:
        assert self.running, f"Kafka ended:\n{self.log_file.read_text()[-4000:]}"
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(bytes.fromhex("0000000a 0012 0000 00000001 ffff"))  # ApiVersions 0
            return len(connection.recv(4)) == 4
        return False


if __name__ == "__main__":
    try:
        jars()
    except JarsMissing as missing:
        sys.exit(f"{missing}; the tests that compare with Kafka's broker need it")
