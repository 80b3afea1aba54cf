"""A node with streams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.backend.quorum_node import OpenTables
from tests.backend.serving.streams.stream_node import QuorumStreamNode, StreamNode


@pytest.fixture
async def node(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StreamNode]:
    """Start a node with the settings of the parameter, on files, or with the setting ``tables`` on tables."""
    settings = dict(getattr(request, "param", {}))
    on_tables = settings.pop("tables", False)
    node = QuorumStreamNode(tmp_path, OpenTables(), **settings) if on_tables else StreamNode(tmp_path, **settings)
    await node.start()
    yield node
    await node.stop()
