"""``holdfast doctor``."""

import json
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from backend.engine.records import Message
from backend.journal.local.segments import segment_name
from backend.journal.rows import RecordView, place_of
from holdfast.doctor import cluster, findings, shared_redis
from holdfast.doctor.findings import Finding
from holdfast.settings import Settings
from metadata_service.models import (
    BackupPin,
    ClusterReport,
    Heartbeat,
    LogEntry,
    ReportedNode,
    ShardEntry,
    StoppedPartition,
)
from metadata_service.sqlite.copy import MetadataFile
from tests.faults.tools import places
from tests.holdfast.command import checked
from tests.holdfast.pairs import make_pair
from tests.holdfast.transcripts import FolderShell, Transcript, cases_of, replay
from tests.servers.redis_server import RedisServer
from tests.servers.server import Server

SETTINGS = {"SEGMENT_BYTES": str(1 << 21), "USAGE": "off"}


def doctor(*arguments: str | Path, code: int) -> list[dict[str, Any]]:
    printed = checked("doctor", "--json", *arguments, code=code).out
    found: list[dict[str, Any]] = json.loads(printed)["findings"] if printed else []
    return found


@pytest.fixture(autouse=True)
def _segment_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SEGMENT_BYTES", SETTINGS["SEGMENT_BYTES"])


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server that has ended.  Not to be changed."""
    server = Server(tmp_path_factory.mktemp("stopped"), SETTINGS).start()
    try:
        client = server.client()
        url = client.create_queue(QueueName="one")["QueueUrl"]
        for number in range(5):
            client.send_message(QueueUrl=url, MessageBody=str(number))
        server.stop()
    finally:
        server.kill()
    return server


@pytest.fixture
def data(stopped: Server, tmp_path: Path) -> Path:
    """A writable copy of its data folder."""
    shutil.copytree(stopped.data, tmp_path / "data")
    return tmp_path / "data"


def of(found: list[dict[str, Any]], *levels: str) -> list[str]:
    return [one["what"] for one in found if one["level"] in levels]


@cases_of(__file__)
def test_transcript(data: Path, transcript: Transcript) -> None:
    replay(transcript, FolderShell(), data=str(data))


def test_a_running_service_is_called(data: Path) -> None:
    server = Server(data.parent, SETTINGS)
    with server:
        found = doctor("--data", data, "--port", str(server.port), code=0)
        assert f"the service runs (process {server.pid})" in str(found)
        server.client().create_queue(QueueName="it-goes-on")
        found = doctor("--data", data, "--port", "1", code=4)
        assert "does not answer" in str(of(found, "wrong"))


def test_messages_lost_by_damage_are_counted(data: Path) -> None:
    (log,) = places.logs(data)
    sent = [
        (row, position, record)
        for row in places.rows_of(log)
        for position, record in row.records
        if isinstance(record, RecordView) and record.kind == Message.KIND
    ]
    row, position, record = sent[0]
    places.FilePosition(log / segment_name(row.segment), place_of(position).offset + record.size_bytes - 12).flip()
    server = Server(data.parent, SETTINGS)
    with server:
        client = server.client()
        url = client.get_queue_url(QueueName="one")["QueueUrl"]
        received = [one for _ in range(5) for one in client.receive_message(QueueUrl=url).get("Messages", [])]
        assert len(received) == len(sent) - 1
        assert server.stop() == 0
    assert "1 messages of the queues are lost" in str(of(doctor("--data", data, code=0), "note"))


def test_an_old_pin_of_a_backup_is_removed(data: Path) -> None:
    file = MetadataFile(data / "metadata.sqlite")
    for name, until in (("killed", 1), ("under-way", time.time_ns())):
        with file.held():
            file.pin(BackupPin(name, until, ()))
    assert len([one for one in doctor("--data", data, code=3) if one["can_be_mended"]]) == 1
    assert len([one for one in doctor("--data", data, "--mend", "--yes", code=0) if one["mended"]]) == 1
    file.forget()
    assert [pin.name for pin in file.pins()] == ["under-way"]
    file.close()


# --- checks of every service ----------------------------------------------------------------------------


def texts_of(found: Iterator[Finding]) -> list[tuple[str, str]]:
    return [(one.level, one.what) for one in found]


@pytest.mark.parametrize(
    ("in_days", "soon_days", "found"),
    [
        (-8, 30, [("wrong", "is valid only from")]),
        (0, 30, [("warning", "expires on")]),
        (0, 1, []),
        (3, 30, [("wrong", "has expired")]),
    ],
)
def test_certificates_that_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_days: int, soon_days: int, found: list[tuple[str, str]]
) -> None:
    """The certificates began seven days ago, and end in two."""
    monkeypatch.setattr(findings, "EXPIRES_SOON", timedelta(days=soon_days))
    make_pair().write(tmp_path / "cert.pem", tmp_path / "key.pem")
    shown = texts_of(findings.certificate(tmp_path / "cert.pem", datetime.now(UTC) + timedelta(days=in_days)))
    assert [level for level, _ in shown] == [level for level, _ in found]
    assert all(what in text for (_, text), (_, what) in zip(shown, found, strict=True))


def test_files_that_are_no_certificates(tmp_path: Path) -> None:
    assert "cannot be read" in texts_of(findings.certificate(tmp_path / "none"))[0][1]
    (tmp_path / "text").write_text("no certificate")
    assert "is no certificate" in texts_of(findings.certificate(tmp_path / "text"))[0][1]


def test_disks_that_are_full(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    assert ("wrong", "MiB are free") not in texts_of(findings.disk(tmp_path, 1, "x"))
    (found,) = [one for one in findings.disk(tmp_path, 2 * free, "sends are refused") if one.level == "wrong"]
    assert "sends are refused" in found.what


# --- Redis ----------------------------------------------------------------------------------------------


def test_a_redis_is_tried(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(rate_limit_storage=redis_server.url, metadata_invalidation=redis_server.url)
    assert texts_of(shared_redis.check(Settings())) == []
    monkeypatch.setattr(shared_redis, "SLOW_SECONDS", 60)
    assert texts_of(shared_redis.check(settings)) == []
    monkeypatch.setattr(shared_redis, "SLOW_SECONDS", 0)
    assert [level for level, _ in texts_of(shared_redis.check(settings))] == ["warning"]
    monkeypatch.setattr(shared_redis, "SLOW_SECONDS", 60)
    with redis_server.client as client:
        client.replicaof("127.0.0.1", "1")
    ((level, what),) = texts_of(shared_redis.check(settings))
    assert level == "wrong"
    assert "is a replica" in what
    with redis_server.client as client:
        client.replicaof("NO", "ONE")
        client.config_set("requirepass", "right")
    password = "hidden-from-all"  # not a real one
    ((level, what),) = texts_of(
        shared_redis.check(Settings(metadata_invalidation=redis_server.url.replace("://", f"://:{password}@")))
    )
    assert level == "wrong"
    assert "refuses the user or password" in what
    assert password not in what
    with Redis.from_url(redis_server.url, password="right") as client:
        client.config_set("requirepass", "")
    monkeypatch.setattr(shared_redis, "ANSWER_SECONDS", 0.1)
    redis_server.stall(30)
    assert "cannot be used" in texts_of(shared_redis.check(settings))[0][1]
    redis_server.kill()
    (found,) = shared_redis.check(settings)
    assert (found.level, "cannot be used" in found.what) == ("wrong", True)
    assert "rate_limit_storage" in found.todo
    assert "metadata_invalidation" in found.todo


# --- clusters -------------------------------------------------------------------------------------------


def test_shards_without_a_live_owner() -> None:
    logs = [LogEntry(1, "a", 1), LogEntry(2, "b", 1), LogEntry(3, "c", 1, state="sealed", sealed_seq=4)]
    shards = [ShardEntry(number, 1 + number % 2, 1) for number in range(256)]
    assert texts_of(cluster._owners("local", logs, shards, {"a", "b"})) == []
    assert texts_of(cluster._owners("local", logs, shards, {"a"})) == [
        ("wrong", "the node b of local has 128 shards and sends no heartbeats")
    ]
    orphans = [*shards[:-2], ShardEntry(254, 3, 1)]
    assert texts_of(cluster._owners("local", logs, orphans, {"a", "b"})) == [
        ("wrong", "2 shards of local have no owner")
    ]
    stopped = StoppedPartition(9, 1, None, (), ())
    harmed = [*shards[:-1], ShardEntry(255, 2, 1, stopped=(stopped,))]
    ((level, what),) = texts_of(cluster._owners("local", logs, harmed, {"a", "b"}))
    assert (level, what.rpartition(" ")[2]) == ("wrong", "255")


def test_nodes_that_have_died() -> None:
    logs = [LogEntry(1, "a", 1), LogEntry(2, "b", 1, state="sealed"), LogEntry(3, "c", 1, state="sealed")]
    beats = [Heartbeat(name, log_id, 1, 1, 1, at) for name, log_id, at in (("a", 1, "x"), ("b", 2, "y"), ("c", 3, ""))]
    assert texts_of(cluster._silent("local", beats, logs, {"a"})) == [
        ("warning", "the node b of local has died, and other nodes have its shards")
    ]


def test_clocks_that_are_apart() -> None:
    beats = [
        Heartbeat(name, 1, 1, 1, at) for name, at in (("a", 100_000), ("b", 98_500), ("c", 95_000), ("d", 103_000))
    ]
    assert [what.partition(" is ")[0] for _, what in texts_of(cluster._clocks(beats, 100_000.0))] == [
        "the clock of the node c",
        "the clock of the node d",
    ]


def test_reports_of_clusters() -> None:
    whole = ClusterReport(1, 1, 1, 100_000, 0.1, "a", (ReportedNode("a"), ReportedNode("b")))
    assert texts_of(cluster._report("local", whole, 101.0)) == []
    assert "has not reported for 20 s" in texts_of(cluster._report("local", whole, 120.0))[0][1]
    assert texts_of(cluster._report("local", None, 101.0))[0][0] == "warning"
    nodes = (ReportedNode("a", live=False), ReportedNode("b", unreachable=True), ReportedNode("c", storage=0.95))
    bad = ClusterReport(1, 1, 1, 100_000, 0.1, "a", nodes, unassigned=3)
    assert [level for level, _ in texts_of(cluster._report("local", bad, 101.0))] == [
        "wrong",
        "wrong",
        "wrong",
        "warning",
    ]
