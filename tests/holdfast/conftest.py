"""Asynchronous tests here run on the loop of the service, and on Python's own; those with a Cassandra, which
take long, only on the former."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    loops = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
    return {"uvloop": uvloop.new_event_loop} if "cassandra" in getattr(item, "fixturenames", ()) else loops
