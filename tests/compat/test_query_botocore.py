"""All steps with the last boto3 for the Query protocol, under its own interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.compat.conftest import walked
from tests.compat.walk.steps import STEPS
from tests.servers.server import REPOSITORY, Server, aws_client


@pytest.fixture(scope="module")
def outcome(server: Server, query_bin: Path) -> dict[str, Any]:
    environment = {**server.client_environment(), "WALK_ACCOUNT": server.account}
    return walked([query_bin / "python", "-m", "tests.compat.walk"], environment, REPOSITORY)


@pytest.mark.parametrize("name", STEPS)
def test_step(outcome: dict[str, Any], name: str, server: Server) -> None:
    failure = outcome["failures"][name]
    assert failure is None, f"\n{failure}"


def test_the_walk_called_all_actions_over_query(outcome: dict[str, Any]) -> None:
    actions = aws_client("sqs", region_name="us-east-1").meta.service_model.operation_names
    assert outcome["called"] == sorted(actions)
    assert outcome["surfaces"] == ["query"]
    assert outcome["botocore"] == "1.34.0"
