"""A real Redis for the tests of hints."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.redis_server import RedisServer


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    server = RedisServer()
    try:
        server.start()
        yield server
    finally:
        server.close()
