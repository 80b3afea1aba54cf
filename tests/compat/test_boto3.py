"""All steps with current boto3 over AWS JSON."""

from __future__ import annotations

import pytest

from tests.compat.walk.kit import ServiceAddress, Walk, take
from tests.compat.walk.steps import STEPS
from tests.servers.server import Server


@pytest.fixture(scope="module")
def walk(server: Server) -> Walk:
    return Walk(
        ServiceAddress(server.endpoint, server.region, server.account, server.access_key_id, server.secret_access_key)
    )


@pytest.mark.parametrize("name", STEPS)
def test_step(walk: Walk, name: str, server: Server) -> None:
    take(walk, name)


def test_the_walk_called_all_actions_over_json(walk: Walk, server: Server) -> None:
    for name in STEPS:
        take(walk, name)
    assert walk.called == set(walk.client.meta.service_model.operation_names)
    assert len(walk.called) == 23
    assert walk.surfaces == {"json"}
