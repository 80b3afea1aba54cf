"""The npm packages @aws-sdk/client-sqs, @aws-sdk/client-sns, sqs-consumer and validators, in a Node.js of their own."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from frontend.sns.protocol.model import SNS_ACTIONS
from tests.compat.conftest import NODE, walked
from tests.servers.server import Server, aws_client

MODULES = {"sqs": ("sdk.mjs", "consumer.mjs"), "sns": ("sns.mjs",)}
STEPS = [
    (service, name)
    for service, modules in MODULES.items()
    for module in modules
    for name in re.findall(r"^export async function (\w+)", (NODE / module).read_text(), re.M)
]
Outcome = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def outcome(server: Server, secure_server: Server, current_bin: Path, node_folder: Path) -> Outcome:
    """Function that runs the steps of a service once, and returns their report."""

    @cache
    def run(service: str) -> dict[str, Any]:
        environment = (server if service == "sqs" else secure_server).client_environment()
        environment |= {"NODE_EXTRA_CA_CERTS": str(secure_server.folder / "cert.pem")}
        return walked([current_bin / "node", node_folder / "main.mjs", *MODULES[service]], environment)

    return run


@pytest.mark.parametrize(("service", "name"), STEPS)
def test_step(outcome: Outcome, service: str, name: str) -> None:
    failure = outcome(service)["failures"][name]
    assert failure is None, f"\n{failure}"


@pytest.mark.parametrize("service", MODULES)
def test_all_actions_were_called(outcome: Outcome, service: str) -> None:
    sqs = aws_client("sqs", region_name="us-east-1").meta.service_model.operation_names
    assert set(outcome(service)["called"]) >= set(sqs if service == "sqs" else SNS_ACTIONS)
    assert set(outcome(service)["failures"]) == {name for of, name in STEPS if of == service}
