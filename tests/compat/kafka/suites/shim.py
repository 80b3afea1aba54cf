"""A pytest plugin by which kafka-python's integration tests run at a service that is there already.

The tests import the brokers that they start, and the parameters of clients, from ``test.integration.fixtures``.  This
module takes its place: a broker is the service, and each client gets a sign-in, which the service asks of everyone.
SCRAM is without TLS.  PLAIN, which the service refuses without TLS, is with it, as is the transport SSL.  Sessions of
groups are at least as long as Kafka allows by default; the suite's own brokers allow shorter ones.

The environment variable :data:`~tests.compat.kafka.suites.SIGN_INS` has the sign-ins, by mechanism.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from kafka import KafkaAdminClient

from tests.compat.kafka.suites import SIGN_INS

DEFAULT_MECHANISM = "SCRAM-SHA-256"
SESSION_MS_MIN = 6_000


class KafkaFixture:
    """The service, with the attributes of the suite's brokers that its tests use."""

    zookeeper = None
    partitions = 4

    def __init__(self, mechanism: str, folder: Path | None) -> None:
        sign_in = json.loads(os.environ[SIGN_INS])[mechanism]
        self.port = int(sign_in["address"].rpartition(":")[2])
        self.params = {
            "bootstrap_servers": sign_in["address"],
            "security_protocol": "SASL_SSL" if sign_in["certificate"] else "SASL_PLAINTEXT",
            "sasl_mechanism": mechanism,
            "sasl_plain_username": sign_in["user"],
            "sasl_plain_password": sign_in["password"],
            "ssl_cafile": sign_in["certificate"],
        }
        self.child = self
        self.ssl_dir = folder
        if folder:
            shutil.copy(sign_in["certificate"], folder / "ca-cert")

    @classmethod
    def instance(
        cls, broker_id: int, transport: str = "", sasl_mechanism: str = "", tmp_dir: Any = None, **_: Any
    ) -> Self:
        """Return the service as a broker.  A transport without sign-in is TLS."""
        mechanism = sasl_mechanism or ("PLAIN" if transport == "SSL" else DEFAULT_MECHANISM)
        return cls(mechanism, Path(tmp_dir) if tmp_dir else None)

    def get_topic_names(self) -> list[str]:
        with KafkaAdminClient(**client_params(self, "topics")) as admin:
            return list(admin.list_topics())

    def start(self) -> None:
        """Do nothing: the service runs."""

    def close(self) -> None:
        """Do nothing: the service runs on."""

    def dump_logs(self) -> None:
        """Do nothing: who started the service has its log."""


ZookeeperFixture = KafkaFixture
"""Imported by the suite, and not used: no broker has a ZooKeeper."""


def client_params(broker: KafkaFixture, client_id: str = "client", **overrides: Any) -> dict[str, Any]:
    """Return the parameters of a client."""
    params = {"client_id": client_id, **broker.params, **overrides}
    if params.get("session_timeout_ms", SESSION_MS_MIN) < SESSION_MS_MIN:
        # kafka-python wants requests to wait longer than a session
        params |= {"session_timeout_ms": SESSION_MS_MIN, "request_timeout_ms": SESSION_MS_MIN + 1_000}
    return params


def create_topics(broker: KafkaFixture, names: Iterable[str], num_partitions: int = KafkaFixture.partitions) -> None:
    """Create topics, and wait until they are listed."""
    with KafkaAdminClient(**client_params(broker, "topic_creator")) as admin:
        wanted = {name: {"num_partitions": num_partitions, "replication_factor": 1} for name in names}
        admin.create_topics(wanted, wait_for_metadata=True)


sys.modules["test.integration.fixtures"] = sys.modules[__name__]
