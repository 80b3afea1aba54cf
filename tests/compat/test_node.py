"""The npm packages @aws-sdk/client-sqs and sqs-consumer, in a Node.js of their own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.compat.conftest import NODE, walked
from tests.servers.server import Server

MODULES = ("sdk.mjs", "consumer.mjs")
STEPS = [
    name
    for module in MODULES
    for name in re.findall(r"^export async function (\w+)", (NODE / module).read_text(), re.M)
]


@pytest.fixture(scope="module")
def outcome(server: Server, current_bin: Path, node_folder: Path) -> dict[str, Any]:
    return walked([current_bin / "node", node_folder / "main.mjs"], server.client_environment())


@pytest.mark.parametrize("name", STEPS)
def test_step(outcome: dict[str, Any], name: str, server: Server) -> None:
    failure = outcome["failures"][name]
    assert failure is None, f"\n{failure}"


def test_all_actions_were_called(outcome: dict[str, Any]) -> None:
    actions = boto3.session.Session().client("sqs", "us-east-1").meta.service_model.operation_names
    assert set(outcome["called"]) == set(actions)
    assert set(outcome["failures"]) == set(STEPS)
