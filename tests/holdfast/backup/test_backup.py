"""``holdfast backup``, ``restore`` and ``verify``, with a real service."""

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from backend.journal.local.disk import RealDisk
from holdfast.backup import take
from holdfast.backup.kept import names_in, read_manifest
from holdfast.backup.manifest import BackupUnusable, path_of
from holdfast.backup.target import ArrowTarget, LocalTarget, TargetUnusable, open_target
from metadata_service.sqlite.copy import MetadataFile
from tests.billing.s3 import BUCKET, S3, SECRET
from tests.holdfast.command import checked
from tests.holdfast.queues import attribute, bodies, redrive
from tests.holdfast.transcripts import FolderShell, Transcript, cases_of, replay
from tests.servers.server import REPOSITORY, Server, clean_environment
from tests.servers.several import Several
from tests.servers.waiting import wait_until

SETTINGS = {"SEGMENT_BYTES": str(1 << 21), "USAGE": "off"}
"""Settings with small segments, so that there are several."""
BIG = "x" * 200_000


def reported(*arguments: str | Path, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(checked(*arguments, "--json", code=code).out)
    return found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "service", SETTINGS) as server:
        yield server


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server that ended regularly, with logs, a checkpoint and 15 messages.  Not to be changed."""
    server = Server(tmp_path_factory.mktemp("stopped"), SETTINGS).start()
    try:
        fill(server, 15, BIG)
        server.client().delete_queue(QueueUrl=server.client().create_queue(QueueName="two")["QueueUrl"])
        server.stop()
    finally:
        server.kill()
    return server


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


def restored(server: Server, target: Path) -> Server:
    """Another service, made from the latest backup and the keyring, which was kept separately."""
    other = Server(server.folder.parent / "again", SETTINGS)
    checked("restore", target, "--data", other.data)
    shutil.copy(server.data / "keyring.toml", other.data)
    return other


def fill(server: Server, count: int = 20, body: str = "") -> str:
    client = server.client()
    url: str = client.create_queue(QueueName="one")["QueueUrl"]
    for number in range(count):
        client.send_message(QueueUrl=url, MessageBody=f"{number} {body}")
    return url


# --- under load -----------------------------------------------------------------------------------------


class _Load:
    """Clients of a service, each with its own work, until they are stopped; and their answers."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stop = threading.Event()
        self.sent: dict[str, list[str]] = {"first": [], "second": [], "ordered": [], "failing": []}
        """Acknowledged messages by queue, in order."""
        self.taken: set[str] = set()
        """Messages for which a client has started a delete."""
        client = server.client()
        self._urls = {name: client.create_queue(QueueName=name)["QueueUrl"] for name in ("first", "second", "dead")}
        attributes = {"FifoQueue": "true", "VisibilityTimeout": "2"}
        created = client.create_queue(QueueName="ordered.fifo", Attributes=attributes)
        self._urls["ordered"] = created["QueueUrl"]
        attributes = {"RedrivePolicy": redrive(client, "dead"), "VisibilityTimeout": "0"}
        created = client.create_queue(QueueName="failing", Attributes=attributes)
        self._urls["failing"] = created["QueueUrl"]
        self._pool = ThreadPoolExecutor(6)
        work = (
            self._send_in_turn,
            self._send_ordered,
            self._take_ordered,
            self._send_failing,
            self._fail,
            self._redrive,
        )
        self._running = [self._pool.submit(self._loop, one) for one in work]

    def stop(self) -> None:
        self._stop.set()
        for one in self._running:
            one.result(timeout=30)
        self._pool.shutdown()

    def _loop(self, work: Callable[[Any, int], None]) -> None:
        client, number = self._server.client(), 0
        while not self._stop.is_set():
            work(client, number)
            number += 1

    def _send(self, client: Any, name: str, body: str, **more: str) -> None:
        client.send_message(QueueUrl=self._urls[name], MessageBody=body, **more)
        self.sent[name].append(body)

    def _send_in_turn(self, client: Any, number: int) -> None:
        """Send the second after the first was acknowledged: it never exists without the first."""
        self._send(client, "first", str(number))
        self._send(client, "second", str(number))

    def _send_ordered(self, client: Any, number: int) -> None:
        more = {"MessageGroupId": f"g{number % 3}", "MessageDeduplicationId": str(number)}
        self._send(client, "ordered", str(number), **more)

    def _take_ordered(self, client: Any, number: int) -> None:
        for message in client.receive_message(QueueUrl=self._urls["ordered"]).get("Messages", []):
            self.taken.add(message["Body"])
            with suppress(client.exceptions.ClientError):  # the visibility timeout may have ended
                client.delete_message(QueueUrl=self._urls["ordered"], ReceiptHandle=message["ReceiptHandle"])
        self._stop.wait(0.03)

    def _send_failing(self, client: Any, number: int) -> None:
        self._send(client, "failing", f"f{number}")

    def _fail(self, client: Any, number: int) -> None:
        """Messages received a second time go to the dead-letter queue instead."""
        client.receive_message(QueueUrl=self._urls["failing"], MaxNumberOfMessages=10)

    def _redrive(self, client: Any, number: int) -> None:
        """Move them back at intervals."""
        try:
            client.start_message_move_task(SourceArn=attribute(client, "dead", "QueueArn"))
        except client.exceptions.ClientError:
            pass  # another task is running
        self._stop.wait(0.3)


@pytest.mark.parametrize("backends", [0, 3])
def test_acknowledged_messages_are_there_after_all_was_destroyed(tmp_path: Path, target: Path, backends: int) -> None:
    """Also with several backends, and messages moving between them."""
    folder = tmp_path / "service"
    running = Several(folder, {**SETTINGS, "BACKENDS": "3"}, frontends=1) if backends else Server(folder, SETTINGS)
    with running as server:
        load = _Load(server)
        wait_until(lambda: all(len(sent) > 25 for sent in load.sent.values()), "there is something to lose")
        before = {name: list(sent) for name, sent in load.sent.items()}
        checked("backup", target, "--data", server.data)
        at_its_end = {name: len(sent) for name, sent in load.sent.items()}
        wait_until(lambda: all(len(load.sent[name]) > at_its_end[name] for name in before), "it goes on")
        load.stop()
        server.kill()
        shutil.copy(server.data / "keyring.toml", tmp_path)
    shutil.rmtree(folder)
    found = reported("verify", target)
    assert found["whole"]
    counts = {one["queue"]: one["visible"] + one["in_flight"] + one["delayed"] for one in found["counts"]}

    again = Server(tmp_path / "again", {**SETTINGS, "KEYRING_FILE": str(tmp_path / "keyring.toml")})
    checked("restore", target, "--data", again.data)
    with again:
        client = again.client()
        first, second = bodies(client, "first"), bodies(client, "second")
        for name, kept in (("first", first), ("second", second)):
            assert set(kept) >= set(before[name])
            assert len(set(kept)) == len(kept) == counts[name]
        assert {int(one) for one in second} <= {int(one) for one in first}, "it is the state of one moment"
        assert len(first) - len(second) <= 1

        ordered: list[str] = []

        def all_taken() -> bool:
            """Return whether all are received, including messages in flight, after their visibility timeouts."""
            ordered.extend(bodies(client, "ordered.fifo"))
            return bool(len(ordered) == counts["ordered.fifo"])

        wait_until(all_taken, "all that is ordered has come")
        for group in range(3):
            numbers = [int(one) for one in ordered if int(one) % 3 == group]
            wanted = {int(one) for one in before["ordered"] if int(one) % 3 == group and one not in load.taken}
            assert wanted <= set(numbers)
            assert not numbers or numbers == list(range(numbers[0], numbers[-1] + 1, 3)), "in order, without holes"

        url = client.get_queue_url(QueueName="failing")["QueueUrl"]
        client.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": "", "VisibilityTimeout": "60"})

        def settled() -> bool:
            """Wait until moving messages have arrived."""
            tasks = client.list_message_move_tasks(SourceArn=attribute(client, "dead", "QueueArn"))
            return all(task["Status"] != "RUNNING" for task in tasks.get("Results", []))

        wait_until(settled, "the redrive has ended")
        failed: list[str] = []

        def all_seen() -> bool:
            failed.extend((*bodies(client, "failing"), *bodies(client, "dead")))
            return set(failed) >= set(before["failing"])

        wait_until(all_seen, "each message is in one of the two queues")
        assert len(set(failed)) == len(failed), "and in one only"


# --- content --------------------------------------------------------------------------------------------


def test_a_service_that_does_not_run_and_was_restarted(server: Server, target: Path) -> None:
    """A data folder with several logs, checkpoints, and a log without one."""
    fill(server, 8, BIG)
    server.stop()
    server.start()
    fill(server, 30, BIG)
    server.kill()
    out = checked("backup", target, "--data", server.data).out
    assert "apart from the backups" in out
    assert not [kept.path for kept in open_target(str(target)).files("under-way")]
    found = reported("verify", target)
    assert (found["whole"], found["messages"], found["queues"]) == (True, 38, 1)
    with restored(server, target) as other:
        assert len(bodies(other.client(), "one")) == 38


@cases_of(__file__)
def test_transcript(stopped: Server, tmp_path: Path, transcript: Transcript) -> None:
    replay(transcript, FolderShell(), data=str(stopped.data), folder=str(tmp_path))
    assert _pins(stopped.data / "metadata.sqlite") == ()


def test_a_restored_service_needs_its_keyring(stopped: Server, target: Path) -> None:
    made = reported("backup", target, "--data", stopped.data)
    assert made["master_keys"] == list(read_manifest(open_target(str(target))).master_keys) != []
    other = Server(target.parent / "other", SETTINGS)
    checked("restore", target, "--data", other.data)
    with pytest.raises(RuntimeError, match="is encrypted under master keys that are missing here"):
        other.start()


def test_a_backup_is_signed_with_the_keyring(stopped: Server, target: Path) -> None:
    checked("backup", target, "--data", stopped.data)
    name = read_manifest(open_target(str(target))).name
    keyring, data = stopped.data / "keyring.toml", target.parent / "restored"
    listed = target / path_of(name)
    whole = json.loads(listed.read_bytes())
    no_signature = {**whole, "sha256": _digest(whole["manifest"])}
    del no_signature["signature"]
    of_another_list = {**whole, "manifest": {**whole["manifest"], "queues": 7}}
    of_another_list["sha256"] = _digest(of_another_list["manifest"], whole["signature"])
    for changed, message in ((no_signature, "is not signed"), (of_another_list, "changed after it was signed")):
        listed.write_bytes(_encoded(changed))
        error = checked("restore", target, "--data", data, "--keyring-file", keyring, code=1).err
        assert message in error
        assert not data.exists()
        found = reported("verify", target, "--keyring-file", keyring, code=1)
        assert any(message in one for one in found["wrong"])
        assert reported("verify", target, "--keyring-file", keyring, "--unsigned")["whole"]
    assert "signature was not checked" in checked("restore", target, "--data", data).out
    shutil.rmtree(data)
    listed.write_bytes(_encoded(whole))
    assert "was not checked" not in checked("restore", target, "--data", data, "--keyring-file", keyring).out
    other = target.parent / "other.toml"
    checked("keyring", "create", "--data", target.parent, "--keyring-file", other)
    error = checked("restore", target, "--data", target.parent / "again", "--keyring-file", other, code=1).err
    assert "which is not in this keyring" in error


@pytest.mark.parametrize(
    "path",
    [
        *("keyring.toml", "journal/keyring.toml", "journal/a/../../keyring.toml", "journal/../keyring.toml", "/etc/x"),
        *(
            "journal/n-1/1.log/x",
            "journal/n-1/x.log",
            "journal/n\0/1.log",
            "metadata.sqlite-wal",
            "spool/1",
            "",
            "journal",
        ),
        *("clusters/local/entries.json", "journal//1.log"),
    ],
)
def test_a_list_that_names_what_no_backup_has_is_refused(stopped: Server, target: Path, path: str) -> None:
    """An attacker who can write to the target adds a file, such as a keyring with a known key."""
    checked("backup", target, "--data", stopped.data)
    listed = target / path_of(read_manifest(open_target(str(target))).name)
    whole = json.loads(listed.read_bytes())
    for place in ("files", "folders"):
        planted = json.loads(listed.read_bytes())["manifest"]
        if place == "files":
            planted["files"].append({**planted["files"][0], "path": path})
        else:
            planted["folders"].append("journal/a/b" if path in ("journal", "journal/keyring.toml") else path)
        changed = {"manifest": planted, "sha256": _digest(planted)}
        listed.write_bytes(_encoded(changed))
        data = target.parent / "restored"
        assert "names an invalid file" in checked("restore", target, "--data", data, code=1).err
        assert not data.exists()
        listed.write_bytes(_encoded(whole))


def _encoded(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _digest(*documents: dict[str, Any]) -> str:
    return sha256(b"".join(_encoded(one) for one in documents)).hexdigest()


def test_a_second_backup_copies_what_is_new(server: Server, target: Path) -> None:
    fill(server, 60, BIG)  # more than two segments' worth
    first = reported("backup", target, "--data", server.data)
    assert first["written_bytes"] == first["size_bytes"] > 12_000_000
    fill(server, 5)
    second = reported("backup", target, "--data", server.data)
    assert second["written_bytes"] < 4_500_000
    third = reported("backup", target, "--data", server.data, "--keep", "2")
    assert third["removed_backups"] == 1
    assert names_in(open_target(str(target))) == [second["backup"], third["backup"]]
    assert third["backup"] in checked("backup", target, "--list").out
    for name in (second["backup"], third["backup"]):
        assert reported("verify", target, "--backup", name)["messages"] == 65
    checked("verify", target, "--backup", first["backup"], code=1)
    one = reported("backup", target, "--data", server.data, "--keep", "1")
    needed = {file.content for file in read_manifest(open_target(str(target))).files}
    assert {kept.path for kept in open_target(str(target)).files("data")} == needed
    assert reported("verify", target)["backup"] == one["backup"]


def test_nothing_that_another_backup_may_use_is_removed(stopped: Server, target: Path) -> None:
    there = open_target(str(target))
    for mark in ("under-way/another", ""):
        there.write("data/00/what-no-backup-needs", [b""])
        if mark:
            there.write(mark, [b""])
        checked("backup", target, "--data", stopped.data)
        kept = reported("backup", target, "--data", stopped.data, "--keep", "1")
        assert kept["unneeded_left"] is bool(mark)
        assert (there.size("data/00/what-no-backup-needs") is None) is not bool(mark)
        there.remove("under-way/another")
    there.write("removing/another", [b""])
    err = checked("backup", target, "--data", stopped.data, code=1).err
    assert "older backups are being removed" in err


def test_ids_and_handles_of_the_lost_time_are_void(server: Server, target: Path) -> None:
    """Ids and receipt handles that were given out after the backup are not reused."""
    client = server.client()
    url = fill(server, 0)
    checked("backup", target, "--data", server.data)
    lost = {client.send_message(QueueUrl=url, MessageBody=f"lost {number}")["MessageId"] for number in range(5)}
    handles = [one["ReceiptHandle"] for one in client.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]]
    server.restart()
    client = server.client()
    lost |= {client.send_message(QueueUrl=url, MessageBody=f"lost {number}")["MessageId"] for number in range(5)}
    handles += [
        one["ReceiptHandle"] for one in client.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    ]
    server.kill()
    with restored(server, target) as other:
        client = other.client()
        url = client.get_queue_url(QueueName="one")["QueueUrl"]
        kept = {client.send_message(QueueUrl=url, MessageBody=f"kept {number}")["MessageId"] for number in range(12)}
        assert not kept & lost
        for handle in handles:
            client.delete_message(QueueUrl=url, ReceiptHandle=handle)
        assert sorted(bodies(client, "one")) == sorted(f"kept {number}" for number in range(12))


# --- failures -------------------------------------------------------------------------------------------


KILLED = """
import os, signal, sys
from holdfast.commands import main as cli
from holdfast.backup.target import LocalTarget

write = LocalTarget.write

def write_last(target, path, chunks):
    write(target, path, chunks)
    if path.startswith("data/"):
        os.kill(os.getpid(), signal.SIGKILL)

LocalTarget.write = write_last
cli.main(sys.argv[1:])
"""
"""Program that ends when the first content is complete."""


def test_a_killed_backup_leaves_nothing_and_the_next_one_continues(server: Server, target: Path) -> None:
    fill(server, 90, BIG)
    metadata = server.data / "metadata.sqlite"
    command = [sys.executable, "-c", KILLED, "backup", str(target), "--data", str(server.data)]
    environment = {**clean_environment(), "PYTHONPATH": str(REPOSITORY)}
    assert subprocess.run(command, env=environment, timeout=60, check=False).returncode == -signal.SIGKILL
    assert names_in(open_target(str(target))) == []
    assert _pins(metadata), "nobody could take it away"
    checked("restore", target, "--data", target.parent / "none", code=1)
    copied = sum(path.stat().st_size for path in target.glob("data/*/[!.]*"))
    made = reported("backup", target, "--data", server.data)
    assert 0 < copied <= made["size_bytes"] - made["written_bytes"]
    assert len(_pins(metadata)) == 1, "its own pin is gone"
    assert reported("verify", target)["messages"] == 90


def _pins(metadata: Path) -> tuple[Any, ...]:
    with contextlib.closing(MetadataFile(metadata)) as file:
        return file.pins()


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _grow(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"\0")


@pytest.mark.parametrize("harm", [_flip, _cut, _grow, Path.unlink])
def test_a_damaged_backup_is_found_out_and_not_restored(
    stopped: Server, target: Path, harm: Callable[[Path], None]
) -> None:
    checked("backup", target, "--data", stopped.data)
    manifest = read_manifest(open_target(str(target)))
    kinds = {file.path.rpartition(".")[2]: file for file in manifest.files}
    assert set(kinds) == {"sqlite", "log", "bin"}
    data = target.parent / "again"
    for file in kinds.values():
        place = target / file.content
        whole = place.read_bytes()
        harm(place)
        found = reported("verify", target, code=1)
        assert file.path in " ".join(found["wrong"]), found["wrong"]
        err = checked("restore", target, "--data", data, code=1).err
        assert file.path in err
        assert not data.exists(), "nothing is left of what was not restored"
        place.write_bytes(whole)
    listed = target / path_of(manifest.name)
    whole = listed.read_bytes()
    harm(listed)
    for arguments in (("verify", target), ("restore", target, "--data", data)):
        err = checked(*arguments, code=1).err
        assert "backup" in err
    listed.write_bytes(whole)
    assert reported("verify", target)["messages"] == 15


def test_every_byte_of_the_list_counts(stopped: Server, target: Path) -> None:
    checked("backup", target, "--data", stopped.data)
    manifest = read_manifest(open_target(str(target)))
    listed = target / path_of(manifest.name)
    whole = listed.read_bytes()
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1
        listed.write_bytes(changed)
        with pytest.raises(BackupUnusable):
            read_manifest(open_target(str(target)))


@pytest.mark.parametrize("kind", [".log", ".bin"])
def test_a_command_that_cannot_read_for_a_while_finds_no_damage(
    stopped: Server, target: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Commands that examine damage report that the journal cannot be read, and accept no loss."""
    checked("backup", target, "--data", stopped.data)
    real = RealDisk.open

    def without_files(self: RealDisk, path: str) -> int:
        if path.endswith(kind):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return real(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(RealDisk, "open", without_files)
        for arguments in (
            ("verify", target),
            ("damage", "--data", stopped.data),
            ("damage", "accept", "--data", stopped.data),
        ):
            _, printed, error = checked(*arguments, code=1)
            assert "Too many open files" in error, arguments
            assert "accepted" not in printed.lower()
        found = checked("doctor", "--data", stopped.data, code=4).out
        assert "Too many open files" in found
        assert "damage accept" not in found
    assert reported("verify", target)["wrong"] == []
    assert "No damage" in checked("damage", "--data", stopped.data).out


def test_a_segment_that_is_dropped_while_it_is_looked_at(
    stopped: Server, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is pinned yet, so the service may delete unneeded files: then the command restarts."""
    real, looks = take._at_this_moment, 0

    def dropped(*arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise FileNotFoundError
        return real(*arguments)

    monkeypatch.setattr(take, "_at_this_moment", dropped)
    checked("backup", target, "--data", stopped.data)
    assert looks == 2
    assert reported("verify", target)["messages"] == 15


def test_an_object_store(stopped: Server, tmp_path: Path) -> None:
    """A real server of S3's protocol, which then stops."""
    with S3(tmp_path) as s3:
        url = s3.lake("backups/of-this-one")
        made = reported("backup", url, "--data", stopped.data)
        again = reported("backup", url, "--data", stopped.data, "--keep", "1")
        assert made["written_bytes"] == made["size_bytes"]
        assert again["written_bytes"] < made["size_bytes"] // 2
        assert again["removed_backups"] == 1
        assert reported("verify", url)["messages"] == 15
        checked("restore", url, "--data", tmp_path / "data")
        assert (tmp_path / "data" / "metadata.sqlite").exists()
        log = next(file for file in read_manifest(open_target(url)).files if file.path.endswith(".log"))
        key = f"backups/of-this-one/{log.content}"
        s3.client().put_object(Bucket=BUCKET, Key=key, Body=b"damaged")
        assert log.path in str(reported("verify", url, code=1)["wrong"])
        checked("backup", url, "--data", stopped.data)
        assert reported("verify", url)["whole"], "what had the wrong size was written again"
        listed = checked("backup", url, "--list")
    assert SECRET not in listed.out + listed.err
    err = checked("backup", url, "--data", stopped.data, code=1).err
    assert "cannot be" in err
    assert SECRET not in err


@pytest.mark.parametrize("kind", [LocalTarget, lambda folder: ArrowTarget(folder.as_uri())])
def test_targets(kind: Callable[[Path], Any], tmp_path: Path) -> None:
    target = kind(tmp_path / "target")
    assert target.read("a/b") is None
    assert target.size("a/b") is None
    assert target.files("a") == []
    target.write("a/b", [b"one", b"two"])
    assert b"".join(target.read("a/b")) == b"onetwo"
    assert target.size("a/b") == 6
    target.write("a/b", [])
    assert target.size("a/b") == 0
    target.write("a/c/d", [bytes(3 << 20)])
    assert [(kept.path, kept.size_bytes) for kept in target.files("a")] == [("a/b", 0), ("a/c/d", 3 << 20)]
    assert all(-5 < kept.age_seconds < 100 for kept in target.files("a"))
    assert [len(chunk) for chunk in target.read("a/c/d")] == [1 << 20] * 3
    target.remove("a/b")
    target.remove("a/b")
    assert [kept.path for kept in target.files("a")] == ["a/c/d"]

    def breaks() -> Iterator[bytes]:
        yield b"one"
        raise ValueError("it breaks")

    with pytest.raises(ValueError, match="it breaks"):
        target.write("a/e", breaks())
    assert target.size("a/e") is None
    with pytest.raises(TargetUnusable, match="cannot be written"):
        target.write("a/c/d/e", [b""])
