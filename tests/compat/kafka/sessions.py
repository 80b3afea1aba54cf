"""Runs of a client's program at a server, and the judgement of its results."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.compat.conftest import CLIENTS, NODE, installed
from tests.compat.kafka.scenarios import ClientStep
from tests.servers.server import REPOSITORY, Server, clean_environment, free_port

RUN_SECONDS = 110


class StreamServer(Server):
    """A Holdfast in one process that serves Kafka's clients too."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.kafka_port = free_port()
        super().__init__(folder, {"KAFKA_PORT": str(self.kafka_port), **(settings or {})})

    def sign_in(self, mechanism: str = "SCRAM-SHA-256") -> ClientSignIn:
        """Return a sign-in with the root tenant's access key."""
        return ClientSignIn(self.kafka_port, mechanism, self.access_key_id, self.secret_access_key)


@dataclass(frozen=True)
class ClientSignIn:
    """A credential for Kafka's port.  The certificate is that of a service with TLS."""

    port: int
    mechanism: str
    user: str
    password: str
    certificate: Path | None = None

    def arguments(self) -> dict[str, Any]:
        return {
            "address": f"127.0.0.1:{self.port}",
            "mechanism": self.mechanism,
            "user": self.user,
            "password": self.password,
            "certificate": str(self.certificate) if self.certificate else None,
        }


@dataclass(frozen=True)
class Program:
    """Command line of a client's program, and its folder."""

    command: Sequence[str | Path]
    folder: Path = REPOSITORY

    def run(self, sign_in: ClientSignIn, scenarios: Mapping[str, list[ClientStep]]) -> dict[str, list[Any]]:
        """Return the results of each scenario's steps."""
        steps = {name: [[one.operation, one.arguments] for one in steps] for name, steps in scenarios.items()}
        done = subprocess.run(
            self.command,
            cwd=self.folder,
            env={**clean_environment(), "PYTHONPATH": os.fspath(REPOSITORY)},
            input=json.dumps({"sign_in": sign_in.arguments(), "scenarios": steps}),
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-8000:]
        results: dict[str, list[Any]] = json.loads(done.stdout.splitlines()[-1])
        return results


def python_program(module: str) -> Program:
    """Return a program of :mod:`tests.compat.kafka.clients`."""
    python = installed(CLIENTS / "kafka" / "bin" / "python")
    return Program([python, "-m", f"tests.compat.kafka.clients.{module}"])


def node_program() -> Program:
    """Return the program of kafkajs."""
    installed(NODE / "node_modules" / ".installed")
    return Program([installed(CLIENTS / "current" / "bin" / "node"), NODE / "kafka.mjs"])


def judge(steps: Sequence[ClientStep], results: Sequence[Any]) -> None:
    """Fail at the first step with another result than the scenario says."""
    for number, one in enumerate(steps):
        assert number < len(results), f"step {number}, {one.operation}, was not performed"
        result = results[number]
        if isinstance(result, dict) and "failure" in result:
            raise AssertionError(f"step {number}, {one.operation}:\n{result['failure']}")
        assert one.result == result, f"step {number}: {one.operation} {one.arguments}"[:2000]
