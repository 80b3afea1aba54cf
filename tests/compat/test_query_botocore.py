"""The last boto3 that speaks Query takes the same walk, under its own interpreter."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.compat.walk.steps import STEPS
from tests.system.server import REPOSITORY, Server

WALK_SECONDS = 100


@pytest.fixture(scope="module")
def outcome(server: Server, query_bin: Path) -> dict[str, Any]:
    done = subprocess.run(
        [query_bin / "python", "-m", "tests.compat.walk"],
        cwd=REPOSITORY,
        env={**server.client_environment(), "WALK_ACCOUNT": server.account},
        capture_output=True,
        text=True,
        timeout=WALK_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("name", STEPS)
def test_step(outcome: dict[str, Any], name: str, server: Server) -> None:
    failure = outcome["failures"][name]
    assert failure is None, f"\n{failure}"


def test_the_walk_called_all_actions_over_query(outcome: dict[str, Any]) -> None:
    actions = boto3.session.Session().client("sqs", "us-east-1").meta.service_model.operation_names
    assert outcome["called"] == sorted(actions)
    assert outcome["surfaces"] == ["query"]
    assert outcome["botocore"] == "1.34.0"
