"""``holdfast doctor``."""

from __future__ import annotations

import json
import os
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
from bench.servers.redis_server import RedisServer
from holdfast.commands import main
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
from tests.holdfast.pairs import make_pair
from tests.servers.server import Server, clean_environment

SETTINGS = {"SEGMENT_BYTES": str(1 << 21), "USAGE": "off"}


class Doctor:
    """Runs the command in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str | Path, code: int) -> list[dict[str, Any]]:
        self._capsys.readouterr()
        ended = main.main(["doctor", "--json", *map(str, arguments)])
        printed = self._capsys.readouterr()
        assert ended == code, (ended, printed)
        found: list[dict[str, Any]] = json.loads(printed.out)["findings"] if printed.out else []
        return found

    def text(self, *arguments: str | Path) -> str:
        main.main(["doctor", *map(str, arguments)])
        return self._capsys.readouterr().out


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Doctor:
    for name in set(os.environ) - set(clean_environment()):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOLDFAST_SEGMENT_BYTES", SETTINGS["SEGMENT_BYTES"])
    return Doctor(capsys)


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


def kept(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_that_is_well_is_left_as_it_is(data: Path, doctor: Doctor) -> None:
    before = kept(data)
    found = doctor("--data", data, code=0)
    assert of(found, "wrong", "warning") == []
    assert "keep a copy of it apart" in str(found)
    assert kept(data) == before
    assert doctor.text("--data", data).endswith("Nothing is wrong.\n")


def test_a_service_that_runs_is_asked(data: Path, doctor: Doctor) -> None:
    server = Server(data.parent, SETTINGS)
    with server:
        found = doctor("--data", data, "--port", str(server.port), code=0)
        assert f"the service runs (process {server.pid})" in str(found)
        server.client().create_queue(QueueName="it-goes-on")
        found = doctor("--data", data, "--port", "1", code=4)
        assert "does not answer" in str(of(found, "wrong"))


def test_messages_that_were_lost_by_damage_are_counted(data: Path, doctor: Doctor) -> None:
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
    assert "1 messages of the queues here are lost" in str(of(doctor("--data", data, code=0), "note"))


def test_what_is_damaged_is_named(data: Path, doctor: Doctor) -> None:
    (piece,) = data.glob("journal/*/ckpt-*.bin")
    damaged = bytearray(piece.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    piece.write_bytes(damaged)
    assert "checkpoint is damaged" in str(of(doctor("--data", data, code=4), "wrong"))
    metadata = data / "metadata.sqlite"
    metadata.write_bytes(metadata.read_bytes()[:4096] + os.urandom(20_000))
    assert "metadata" in str(of(doctor("--data", data, code=4), "wrong"))
    metadata.unlink()
    assert "a journal and no metadata" in str(of(doctor("--data", data, code=4), "wrong"))
    assert "there is no folder" in str(of(doctor("--data", data / "none", code=4), "wrong"))


def test_keys_that_are_missing_or_open_to_others(data: Path, doctor: Doctor) -> None:
    keyring = data / "keyring.toml"
    keyring.chmod(0o644)
    found = doctor("--data", data, code=4)
    assert "others may read or write the keyring file" in str(of(found, "wrong"))
    found = doctor("--data", data, "--mend", "--yes", code=0)
    assert [one["mended"] for one in found if "others may read" in one["what"]] == [True]
    assert keyring.stat().st_mode & 0o777 == 0o640
    assert of(doctor("--data", data, code=0), "wrong") == []
    keyring.unlink()
    assert "there is no keyring" in str(of(doctor("--data", data, code=4), "wrong"))


def test_what_others_left_is_mended_with_consent_alone(data: Path, doctor: Doctor, capsys: Any) -> None:
    data.chmod(0o755)
    left = data / ".backup-left"
    left.mkdir()
    (left / "metadata.sqlite").write_text("")
    os.utime(left, (1, 1))
    (data / "metadata.sqlite.restoring").write_text("")
    (data / ".backup-of-one-that-runs").mkdir()
    file = MetadataFile(data / "metadata.sqlite")
    with file.held():
        file.pin(BackupPin("killed", 1, ()))
    with file.held():
        file.pin(BackupPin("under-way", time.time_ns(), ()))
    found = doctor("--data", data, code=4)
    assert len([one for one in found if one["can_be_mended"]]) == 4
    assert left.exists()
    assert main.main(["doctor", "--data", str(data), "--mend"]) == 2, "nobody can be asked"
    assert left.exists()
    found = doctor("--data", data, "--mend", "--yes", code=0)
    assert len([one for one in found if one["mended"]]) == 4
    assert not left.exists()
    assert not (data / "metadata.sqlite.restoring").exists()
    assert (data / ".backup-of-one-that-runs").exists()
    assert data.stat().st_mode & 0o777 == 0o700
    file.forget()
    assert [pin.name for pin in file.pins()] == ["under-way"]
    file.close()
    assert of(doctor("--data", data, code=0), "wrong", "warning") == []


def test_a_log_that_nothing_names(data: Path, doctor: Doctor) -> None:
    (data / "journal" / "node-77").mkdir()
    assert "nothing names the log" in str(of(doctor("--data", data, code=3), "warning"))


# --- checks of every service ----------------------------------------------------------------------------


def said(found: Iterator[Finding]) -> list[tuple[str, str]]:
    return [(one.level, one.what) for one in found]


@pytest.mark.parametrize(
    ("in_days", "level", "what"),
    [(-8, "wrong", "is valid only from"), (0, "warning", "expires on"), (3, "wrong", "has expired")],
)
def test_certificates_that_end(tmp_path: Path, in_days: int, level: str, what: str) -> None:
    """The certificates began seven days ago, and end in two."""
    make_pair().write(tmp_path / "cert.pem", tmp_path / "key.pem")
    ((found, text),) = said(findings.certificate(tmp_path / "cert.pem", datetime.now(UTC) + timedelta(days=in_days)))
    assert found == level
    assert what in text


def test_certificates_that_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "EXPIRES_SOON", timedelta(days=1))
    make_pair().write(tmp_path / "cert.pem", tmp_path / "key.pem")
    assert said(findings.certificate(tmp_path / "cert.pem")) == []


def test_certificates_that_are_none(tmp_path: Path) -> None:
    assert "cannot be read" in said(findings.certificate(tmp_path / "none"))[0][1]
    (tmp_path / "text").write_text("no certificate")
    assert "is no certificate" in said(findings.certificate(tmp_path / "text"))[0][1]


def test_disks_that_are_full(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    assert ("wrong", "MiB are free") not in said(findings.disk(tmp_path, 1, "x"))
    (found,) = [one for one in findings.disk(tmp_path, 2 * free, "sends are refused") if one.level == "wrong"]
    assert "sends are refused" in found.what


# --- Redis ----------------------------------------------------------------------------------------------


def test_a_redis_is_tried(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(rate_limit_storage=redis_server.url, metadata_hints=redis_server.url)
    assert said(shared_redis.check(Settings())) == []
    monkeypatch.setattr(shared_redis, "SLOW_SECONDS", 60)
    assert said(shared_redis.check(settings)) == []
    monkeypatch.setattr(shared_redis, "SLOW_SECONDS", 0)
    assert [level for level, _ in said(shared_redis.check(settings))] == ["warning"]
    monkeypatch.setattr(shared_redis, "SLOW_SECONDS", 60)
    with redis_server.client as client:
        client.replicaof("127.0.0.1", "1")
    ((level, what),) = said(shared_redis.check(settings))
    assert level == "wrong"
    assert "is a replica" in what
    with redis_server.client as client:
        client.replicaof("NO", "ONE")
        client.config_set("requirepass", "right")
    password = "hidden-from-all"  # not a real one
    ((level, what),) = said(
        shared_redis.check(Settings(metadata_hints=redis_server.url.replace("://", f"://:{password}@")))
    )
    assert level == "wrong"
    assert "refuses the user or password" in what
    assert password not in what
    with Redis.from_url(redis_server.url, password="right") as client:
        client.config_set("requirepass", "")
    monkeypatch.setattr(shared_redis, "ANSWER_SECONDS", 0.1)
    redis_server.pause(30)
    assert "cannot be used" in said(shared_redis.check(settings))[0][1]
    redis_server.kill()
    (found,) = shared_redis.check(settings)
    assert (found.level, "cannot be used" in found.what) == ("wrong", True)
    assert "rate_limit_storage" in found.todo
    assert "metadata_hints" in found.todo


def test_a_redis_of_a_folder_is_tried(data: Path, doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_RATE_LIMIT_STORAGE", "redis://user:hidden@127.0.0.1:1/0")
    found = doctor("--data", data, code=4)
    assert "the Redis at redis://127.0.0.1:1/0 cannot be used" in str(of(found, "wrong"))
    assert "hidden" not in str(found)


# --- clusters -------------------------------------------------------------------------------------------


def test_shards_and_who_is_to_have_them() -> None:
    logs = [LogEntry(1, "a", 1), LogEntry(2, "b", 1), LogEntry(3, "c", 1, state="sealed", sealed_seq=4)]
    shards = [ShardEntry(number, 1 + number % 2, 1) for number in range(256)]
    assert said(cluster._owners("local", logs, shards, {"a", "b"})) == []
    assert said(cluster._owners("local", logs, shards, {"a"})) == [
        ("wrong", "the node b of local has 128 shards and is not heard")
    ]
    orphans = [*shards[:-2], ShardEntry(254, 3, 1)]
    assert said(cluster._owners("local", logs, orphans, {"a", "b"})) == [("wrong", "2 shards of local have no owner")]
    stopped = StoppedPartition(9, 1, None, (), ())
    harmed = [*shards[:-1], ShardEntry(255, 2, 1, stopped=(stopped,))]
    ((level, what),) = said(cluster._owners("local", logs, harmed, {"a", "b"}))
    assert (level, what.rpartition(" ")[2]) == ("wrong", "255")


def test_nodes_that_have_died() -> None:
    logs = [LogEntry(1, "a", 1), LogEntry(2, "b", 1, state="sealed"), LogEntry(3, "c", 1, state="sealed")]
    beats = [Heartbeat(name, log_id, 1, 1, 1, at) for name, log_id, at in (("a", 1, "x"), ("b", 2, "y"), ("c", 3, ""))]
    assert said(cluster._silent("local", beats, logs, {"a"})) == [
        ("warning", "the node b of local has died, and others have its shards")
    ]


def test_clocks_that_are_apart() -> None:
    beats = [
        Heartbeat(name, 1, 1, 1, at) for name, at in (("a", 100_000), ("b", 98_500), ("c", 95_000), ("d", 103_000))
    ]
    assert [what.partition(" is ")[0] for _, what in said(cluster._clocks(beats, 100_000.0))] == [
        "the clock of the node c",
        "the clock of the node d",
    ]


def test_reports_of_clusters() -> None:
    whole = ClusterReport(1, 1, 1, 100_000, 0.1, "a", (ReportedNode("a"), ReportedNode("b")))
    assert said(cluster._report("local", whole, 101.0)) == []
    assert "has not reported for 20 s" in said(cluster._report("local", whole, 120.0))[0][1]
    assert said(cluster._report("local", None, 101.0))[0][0] == "warning"
    nodes = (ReportedNode("a", live=False), ReportedNode("b", cut_off=True), ReportedNode("c", storage=0.95))
    bad = ClusterReport(1, 1, 1, 100_000, 0.1, "a", nodes, unassigned=3)
    assert [level for level, _ in said(cluster._report("local", bad, 101.0))] == ["wrong", "wrong", "wrong", "warning"]
