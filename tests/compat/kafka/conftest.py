"""A server with a port for Kafka's clients, which the tests of a process share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compat.kafka.sessions import StreamServer


@pytest.fixture(scope="session")
def stream_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamServer]:
    """A server without TLS; each test has topics of its own."""
    with StreamServer(tmp_path_factory.mktemp("kafka")) as server:
        yield server
