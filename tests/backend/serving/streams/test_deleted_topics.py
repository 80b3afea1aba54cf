"""A topic that was deleted or changed while its node was down."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from backend.serving.streams import deleted_topics
from backend.stream_commands import DropStream
from metadata_service.store import StoreError
from tests.backend.serving.streams.stream_node import StreamNode
from tests.servers.waiting import until


async def test_a_topic_deleted_while_the_node_was_down_is_dropped(node: StreamNode) -> None:
    deleted, changed = await node.stream(7), await node.stream(8)
    await node.append(deleted)
    await node.append(changed)
    del node.resolver.streams[7]
    node.resolver.streams[8] = msgspec.structs.replace(node.resolver.streams[8], version=2, retention_ms=5)
    await node.crash()

    async def is_done() -> bool:
        settings = node.opened(changed).fold.settings
        assert settings is not None
        return settings.version == 2 and 7 not in node.incarnation.shards.streams

    async with asyncio.timeout(20):
        await until(is_done)


async def test_a_topic_that_cannot_be_looked_up_stays(node: StreamNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleted_topics, "RETRY_SECONDS", 0.01)
    target = await node.stream(7)
    await node.append(target, b"one")
    lookups = 0

    async def failing(asked: object) -> None:
        nonlocal lookups
        lookups += 1
        if lookups < 3:
            raise StoreError("the metadata cannot be read")

    monkeypatch.setattr(node.resolver, "stream_settings", failing)
    await node.crash()
    assert await node.fetch_all(target) == [(0, b"one")]

    async def is_dropped() -> bool:
        return 7 not in node.incarnation.shards.streams

    async with asyncio.timeout(20):
        await until(is_dropped)
    assert lookups == 3
    await node.node.call(DropStream(target))
