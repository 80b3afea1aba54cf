"""Backups of a data folder with streams."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer

from backend.extent_ids import ExtentId
from backend.node import Node
from backend.stream_commands import DeleteRecords
from holdfast.backup import restore, take
from holdfast.backup.target import LocalTarget
from metadata_service.models import BackupPin
from metadata_service.sqlite.store import SQLiteStore
from tests.backend.serving.streams.stream_node import StreamNode
from tests.frontend.kafka.test_real_service import KafkaServer
from tests.holdfast.backup.test_backup import reported
from tests.holdfast.command import checked
from tests.servers.waiting import wait_until

VALUE = bytes(range(48, 58)) * 1_600
RECORDS = 600
"""Together more than stays in the log."""


class _ServiceNode(StreamNode):
    """A node in a data folder as the service has it."""

    async def start(self) -> None:
        self.store = SQLiteStore(self.folder / "metadata.sqlite")
        self.node = await Node.start(
            self.disk, str(self.folder / "journal"), self.store.entries, self.resolver, settings=self.settings
        )


async def test_a_restored_service_has_the_streams_of_the_moment(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    node = _ServiceNode(data)
    await node.start()
    target, group = await node.stream(7), await node.group(8)
    await node.append(target, b"in an extent")
    await node.bind(target)
    await node.append(target, b"in the log")
    await node.commit(group, "", -1, 1)
    before = node.state(target), node.state(group)
    result = await asyncio.to_thread(take.take, data, LocalTarget(tmp_path / "backups"))
    await node.bind(target)
    await node.append(target, b"later")
    await node.stop()
    restore.restore(LocalTarget(tmp_path / "backups"), result.manifest, tmp_path / "again")
    again = _ServiceNode(tmp_path / "again")
    await again.start()
    assert (again.state(target), again.state(group)) == before
    assert await again.fetch_all(target) == [(0, b"in an extent"), (1, b"in the log")]
    assert (await again.append(target, b"other")).base_offset == 2
    await again.bind(target)
    await again.restart()
    assert [payload for _, payload in await again.fetch_all(target)] == [b"in an extent", b"in the log", b"other"]
    await again.stop()


async def test_extents_stay_while_a_backup_is_in_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = _ServiceNode(tmp_path)
    await node.start()
    target = await node.stream(7)
    await node.append(target)
    await node.bind(target)
    await node.node.call(DeleteRecords(target, 1))
    checkpointer = node.node._checkpointer
    assert checkpointer is not None

    async def in_progress() -> list[BackupPin]:
        return [BackupPin("backup", 1 << 60, ())]

    with monkeypatch.context() as patched:
        patched.setattr(checkpointer, "_backups", in_progress)
        await node.node.checkpoint()
    assert await node.stored_extents() == [ExtentId(7, 1, 1)]
    await node.node.checkpoint()
    assert await node.stored_extents() == []
    await node.stop()


@pytest.mark.long
def test_batches_in_extents_are_verified(tmp_path: Path) -> None:
    settings = {"SEGMENT_BYTES": str(1 << 22), "USAGE": "off"}
    with KafkaServer(tmp_path, settings) as server:
        server.create("orders", 2)
        with closing(KafkaProducer(**server.sign_in)) as producer:
            for _ in range(RECORDS):
                producer.send("orders", VALUE, partition=1)
            producer.flush()
        server.create("small")
        server.produce("small", 0, 1)
        server.consume("small", 1, "readers")
        extents = server.data / "journal" / "extents"
        wait_until(lambda: extents.is_dir() and list(extents.iterdir()), "batches are in an extent")
        assert server.stop() == 0
    (extent,) = extents.iterdir()

    target = tmp_path / "backups"
    taken = checked("backup", target, "--data", server.data)
    assert "0 queues, 2 topics, " in taken.out
    assert json.loads(checked("backup", target, "--list", "--json").out)[0]["topics"] == 2
    found = reported("verify", target)
    assert found["whole"], found["wrong"]
    counts = [(one["topic"], one["partitions"], one["records"]) for one in found["topic_counts"]]
    assert counts == [("orders", 2, RECORDS), ("small", 1, 1)]
    assert "2 topics and 601 records, 1 consumer group, all of them readable" in checked("verify", target).out

    again = KafkaServer(tmp_path / "again", {**settings, "KEYRING_FILE": str(server.data / "keyring.toml")})
    checked("restore", target, "--data", again.data)
    with again, closing(KafkaConsumer("orders", auto_offset_reset="earliest", **again.sign_in)) as consumer:
        read: list[bytes] = []

        def is_whole() -> bool:
            read.extend(record.value for records in consumer.poll(500).values() for record in records)
            return len(read) >= RECORDS

        wait_until(is_whole, "all records of the restored topic were read")
        assert read == [VALUE] * RECORDS

    content = extent.read_bytes()
    at = content.index(VALUE) if VALUE in content else len(content) // 2
    extent.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    assert _findings(server, code=0) == [], "the doctor does not read what the batches contain"
    checked("backup", target, "--data", server.data)
    (wrong,) = reported("verify", target, code=1)["wrong"]
    assert extent.stem in wrong
    assert wrong.endswith("the payload of a batch is corrupt")

    extent.write_bytes(content[:at])
    (finding,) = _findings(server, code=4)
    assert f"{extent} has {at} of " in finding
    assert "of partition 1 of the topic orders (account 000000000000) are lost" in finding


def _findings(server: KafkaServer, *, code: int) -> list[str]:
    """Return the texts of what the doctor finds wrong."""
    found: list[dict[str, Any]] = json.loads(checked("doctor", "--json", "--data", server.data, code=code).out)[
        "findings"
    ]
    return [one["what"] for one in found if one["level"] == "wrong"]
