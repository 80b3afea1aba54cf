"""Each client of Kafka performs the scenarios, as far as it has their operations."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

from tests.compat.kafka.go import go_program
from tests.compat.kafka.scenarios import CODECS, SCENARIOS, ClientStep, scenarios
from tests.compat.kafka.sessions import StreamServer, judge
from tests.compat.kafka.tried import GO_LOCK, QUICK_CLIENT, TRIED, locked
from tests.servers.server import REPOSITORY

NAMES = [f"codec-{name}" for name in CODECS] + list(SCENARIOS)
SLOW = {"seek", "group", "rebalance", "range", "roundrobin", "cooperative", "static-members"}
"""Scenarios that are long with the quick client too: members wait for each other."""

SARAMA_VERSIONS = ("1.0.0", "2.0.0", "2.6.0", "3.6.0", "4.0.0")
"""Versions of Kafka that sarama is set to, which sends requests as they were then."""
OLDEST = {"idempotent", "fields", "seek", "group", "rebalance", "deleted-records"}
"""Scenarios beside those of codecs that sarama has in each of them."""


def cases() -> list[Any]:
    return [
        pytest.param(client, name, marks=() if client == QUICK_CLIENT and name not in SLOW else pytest.mark.long)
        for client in TRIED
        for name in NAMES
    ]


@cache
def performed(
    server: StreamServer, client: str, slow: bool
) -> tuple[dict[str, list[ClientStep]], dict[str, list[Any]]]:
    """Scenarios and their results, from one run of a client's program."""
    given = {name: steps for name, steps in scenarios(client).items() if (name in SLOW) == slow}
    return given, TRIED[client].program().run(server.sign_in(), given)


@pytest.mark.parametrize(("client", "scenario"), cases())
def test_scenario(stream_server: StreamServer, client: str, scenario: str) -> None:
    given, results = performed(stream_server, client, scenario in SLOW)
    steps, found = given[scenario], results[scenario]
    lacking = next((n for n, one in enumerate(steps) if one.operation in TRIED[client].missing), None)
    if lacking is not None:
        assert found[lacking:] == [{"missing": steps[lacking].operation}]
        steps, found = steps[:lacking], found[:lacking]
    judge(steps, found)


@pytest.mark.long
@pytest.mark.parametrize("version", SARAMA_VERSIONS)
def test_sarama_with_the_protocol_of_an_older_kafka(stream_server: StreamServer, version: str) -> None:
    given = scenarios(f"sarama-{version}", ["none", "gzip", "snappy", "lz4"])
    chosen = {name: steps for name, steps in given.items() if name.startswith("codec-") or name in OLDEST}
    results = go_program("sarama", version).run(stream_server.sign_in(), chosen)
    for name, steps in chosen.items():
        judge(steps, results[name])


def test_the_page_of_clients_has_their_versions() -> None:
    page = (REPOSITORY / "docs" / "kafka-coverage.md").read_text()
    table = page.split("## Clients that are tried")[1].split("| scenario |")[0]
    rows = dict(re.findall(r"^\| ([\w-]+)[^|]* \| (\d[^ ]*) \|", table, re.MULTILINE))
    assert rows == {name: client.version() for name, client in TRIED.items()}
    kadm = locked(GO_LOCK, r"/kadm v(\S+)")
    assert f"kadm {kadm}" in table
