"""``holdfast backup``, ``restore`` and ``verify``, with a real service."""

from __future__ import annotations

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
from holdfast.commands import main
from metadata_service.sqlite.copy import MetadataFile
from tests.billing.s3 import BUCKET, S3, SECRET
from tests.servers.server import REPOSITORY, Server, clean_environment
from tests.servers.several import Several
from tests.servers.waiting import wait_until

SETTINGS = {"SEGMENT_BYTES": str(1 << 21), "USAGE": "off"}
"""Settings with small segments, so that there are several."""
BIG = "x" * 200_000


class Command:
    """Runs commands in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str | Path, code: int = 0) -> tuple[str, str]:
        """Run a command that must end with this code; returns both of its outputs."""
        self._capsys.readouterr()
        ended = main.main([str(argument) for argument in arguments])
        printed = self._capsys.readouterr()
        assert ended == code, (ended, printed)
        return printed.out, printed.err

    def told(self, *arguments: str | Path, code: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self(*arguments, "--json", code=code)[0])
        return found


@pytest.fixture
def holdfast(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    for name in set(os.environ) - set(clean_environment()):
        monkeypatch.delenv(name)
    return Command(capsys)


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


def restored(holdfast: Command, server: Server, target: Path) -> Server:
    """Another service, made from the latest backup and the keyring, which was kept separately."""
    other = Server(server.folder.parent / "again", SETTINGS)
    holdfast("restore", target, "--data", other.data)
    shutil.copy(server.data / "keyring.toml", other.data)
    return other


def emptied(client: Any, name: str) -> list[dict[str, Any]]:
    """All messages of a queue, in the order of their delivery."""
    url = client.get_queue_url(QueueName=name)["QueueUrl"]
    found: list[dict[str, Any]] = []
    while messages := client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=600).get(
        "Messages"
    ):
        found += messages
        entries = [{"Id": str(at), "ReceiptHandle": one["ReceiptHandle"]} for at, one in enumerate(messages)]
        client.delete_message_batch(QueueUrl=url, Entries=entries)
    return found


def bodies(client: Any, name: str) -> list[str]:
    return [message["Body"] for message in emptied(client, name)]


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
        arn = client.get_queue_attributes(QueueUrl=self._urls["dead"], AttributeNames=["QueueArn"])
        policy = {"deadLetterTargetArn": arn["Attributes"]["QueueArn"], "maxReceiveCount": "1"}
        attributes = {"RedrivePolicy": json.dumps(policy), "VisibilityTimeout": "0"}
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
        arn = client.get_queue_attributes(QueueUrl=self._urls["dead"], AttributeNames=["QueueArn"])
        try:
            client.start_message_move_task(SourceArn=arn["Attributes"]["QueueArn"])
        except client.exceptions.ClientError:
            pass  # another task is running
        self._stop.wait(0.3)


@pytest.mark.parametrize("backends", [0, 3])
def test_what_was_acknowledged_before_is_there_after_all_was_destroyed(
    tmp_path: Path, target: Path, holdfast: Command, backends: int
) -> None:
    """Also with several backends, and messages moving between them."""
    folder = tmp_path / "service"
    running = Several(folder, {**SETTINGS, "BACKENDS": "3"}, frontends=1) if backends else Server(folder, SETTINGS)
    with running as server:
        load = _Load(server)
        wait_until(lambda: all(len(sent) > 25 for sent in load.sent.values()), "there is something to lose")
        before = {name: list(sent) for name, sent in load.sent.items()}
        holdfast("backup", target, "--data", server.data)
        at_its_end = {name: len(sent) for name, sent in load.sent.items()}
        wait_until(lambda: all(len(load.sent[name]) > at_its_end[name] for name in before), "it goes on")
        load.stop()
        server.kill()
        shutil.copy(server.data / "keyring.toml", tmp_path)
    shutil.rmtree(folder)
    found = holdfast.told("verify", target)
    assert found["whole"]
    counts = {one["queue"]: one["visible"] + one["in_flight"] + one["delayed"] for one in found["counts"]}

    again = Server(tmp_path / "again", {**SETTINGS, "KEYRING_FILE": str(tmp_path / "keyring.toml")})
    holdfast("restore", target, "--data", again.data)
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
            arn = client.get_queue_url(QueueName="dead")["QueueUrl"].rpartition("/")[2]
            tasks = client.list_message_move_tasks(SourceArn=f"arn:aws:sqs:us-east-1:000000000000:{arn}")
            return all(task["Status"] != "RUNNING" for task in tasks.get("Results", []))

        wait_until(settled, "the redrive has ended")
        failed: list[str] = []

        def all_seen() -> bool:
            failed.extend((*bodies(client, "failing"), *bodies(client, "dead")))
            return set(failed) >= set(before["failing"])

        wait_until(all_seen, "each message is in one of the two queues")
        assert len(set(failed)) == len(failed), "and in one only"


# --- content --------------------------------------------------------------------------------------------


def test_a_service_that_does_not_run_and_was_restarted(server: Server, target: Path, holdfast: Command) -> None:
    """A data folder with several logs, checkpoints, and a log without one."""
    fill(server, 8, BIG)
    server.stop()
    server.start()
    fill(server, 30, BIG)
    server.kill()
    out, _ = holdfast("backup", target, "--data", server.data)
    assert "keep it apart from the backups" in out
    assert not [kept.path for kept in open_target(str(target)).files("under-way")]
    found = holdfast.told("verify", target)
    assert (found["whole"], found["messages"], found["queues"]) == (True, 38, 1)
    with restored(holdfast, server, target) as other:
        assert len(bodies(other.client(), "one")) == 38


def test_the_keyring_is_not_in_it_and_its_lack_is_found(stopped: Server, target: Path, holdfast: Command) -> None:
    made = holdfast.told("backup", target, "--data", stopped.data)
    manifest = read_manifest(open_target(str(target)))
    paths = {file.path for file in manifest.files}
    assert "metadata.sqlite" in paths
    assert not [path for path in paths if "keyring" in path]
    assert made["master_keys"] == list(manifest.master_keys) != []
    assert holdfast.told("verify", target)["keys_checked"] is False
    right = holdfast.told("verify", target, "--keyring-file", stopped.data / "keyring.toml")
    assert (right["whole"], right["keys_checked"]) == (True, True)
    holdfast("keyring", "create", "--data", target.parent, "--keyring-file", target.parent / "other.toml")
    wrong = holdfast.told("verify", target, "--keyring-file", target.parent / "other.toml", code=1)
    assert made["master_keys"][0] in " ".join(wrong["wrong"])
    holdfast("verify", target, "--keyring-file", target.parent / "none.toml", code=2)


def test_a_backup_is_signed_with_the_keyring(stopped: Server, target: Path, holdfast: Command) -> None:
    holdfast("backup", target, "--data", stopped.data)
    name = read_manifest(open_target(str(target))).name
    keyring, data = stopped.data / "keyring.toml", target.parent / "restored"
    listed = target / path_of(name)
    whole = json.loads(listed.read_bytes())
    no_signature = {**whole, "sha256": _digest(whole["manifest"])}
    del no_signature["signature"]
    of_another_list = {**whole, "manifest": {**whole["manifest"], "queues": 7}}
    of_another_list["sha256"] = _digest(of_another_list["manifest"], whole["signature"])
    for changed, said in ((no_signature, "is not signed"), (of_another_list, "changed after it was signed")):
        listed.write_bytes(_encoded(changed))
        told = holdfast("restore", target, "--data", data, "--keyring-file", keyring, code=1)[1]
        assert said in told
        assert not data.exists()
        found = holdfast.told("verify", target, "--keyring-file", keyring, code=1)
        assert any(said in one for one in found["wrong"])
        assert holdfast.told("verify", target, "--keyring-file", keyring, "--unsigned")["whole"]
    assert "Who made the backup was not checked" in holdfast("restore", target, "--data", data)[0]
    shutil.rmtree(data)
    listed.write_bytes(_encoded(whole))
    assert "was not checked" not in holdfast("restore", target, "--data", data, "--keyring-file", keyring)[0]
    other = target.parent / "other.toml"
    holdfast("keyring", "create", "--data", target.parent, "--keyring-file", other)
    told = holdfast("restore", target, "--data", target.parent / "again", "--keyring-file", other, code=1)[1]
    assert "which is not in this keyring" in told


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
def test_a_list_that_names_what_no_backup_has_is_refused(
    stopped: Server, target: Path, holdfast: Command, path: str
) -> None:
    """An attacker who can write to the target adds a file, such as a keyring with a known key."""
    holdfast("backup", target, "--data", stopped.data)
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
        assert "names a file that cannot be part of a backup" in holdfast("restore", target, "--data", data, code=1)[1]
        assert not data.exists()
        listed.write_bytes(_encoded(whole))


def _encoded(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _digest(*documents: dict[str, Any]) -> str:
    return sha256(b"".join(_encoded(one) for one in documents)).hexdigest()


def test_a_second_backup_copies_what_is_new(server: Server, target: Path, holdfast: Command) -> None:
    fill(server, 60, BIG)  # more than two segments' worth
    first = holdfast.told("backup", target, "--data", server.data)
    assert first["written_bytes"] == first["size_bytes"] > 12_000_000
    fill(server, 5)
    second = holdfast.told("backup", target, "--data", server.data)
    assert second["written_bytes"] < 4_500_000
    third = holdfast.told("backup", target, "--data", server.data, "--keep", "2")
    assert third["removed_backups"] == 1
    assert names_in(open_target(str(target))) == [second["backup"], third["backup"]]
    assert third["backup"] in holdfast("backup", target, "--list")[0]
    for name in (second["backup"], third["backup"]):
        assert holdfast.told("verify", target, "--backup", name)["messages"] == 65
    holdfast("verify", target, "--backup", first["backup"], code=1)
    one = holdfast.told("backup", target, "--data", server.data, "--keep", "1")
    needed = {file.content for file in read_manifest(open_target(str(target))).files}
    assert {kept.path for kept in open_target(str(target)).files("data")} == needed
    assert holdfast.told("verify", target)["backup"] == one["backup"]


def test_nothing_that_another_backup_may_use_is_removed(stopped: Server, target: Path, holdfast: Command) -> None:
    there = open_target(str(target))
    for mark in ("under-way/another", ""):
        there.write("data/00/what-no-backup-needs", [b""])
        if mark:
            there.write(mark, [b""])
        holdfast("backup", target, "--data", stopped.data)
        kept = holdfast.told("backup", target, "--data", stopped.data, "--keep", "1")
        assert kept["unneeded_left"] is bool(mark)
        assert (there.size("data/00/what-no-backup-needs") is None) is not bool(mark)
        there.remove("under-way/another")
    there.write("removing/another", [b""])
    _, err = holdfast("backup", target, "--data", stopped.data, code=1)
    assert "older backups are just being removed" in err


def test_what_clients_still_have_of_the_lost_time_means_nothing(
    server: Server, target: Path, holdfast: Command
) -> None:
    """Ids and receipt handles that were given out after the backup are not reused."""
    client = server.client()
    url = fill(server, 0)
    holdfast("backup", target, "--data", server.data)
    lost = {client.send_message(QueueUrl=url, MessageBody=f"lost {number}")["MessageId"] for number in range(5)}
    handles = [one["ReceiptHandle"] for one in client.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]]
    server.restart()
    client = server.client()
    lost |= {client.send_message(QueueUrl=url, MessageBody=f"lost {number}")["MessageId"] for number in range(5)}
    handles += [
        one["ReceiptHandle"] for one in client.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    ]
    server.kill()
    with restored(holdfast, server, target) as other:
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


def test_a_backup_that_is_killed_leaves_no_backup_and_the_next_goes_on(
    server: Server, target: Path, holdfast: Command
) -> None:
    fill(server, 90, BIG)
    metadata = server.data / "metadata.sqlite"
    command = [sys.executable, "-c", KILLED, "backup", str(target), "--data", str(server.data)]
    environment = {**clean_environment(), "PYTHONPATH": str(REPOSITORY)}
    assert subprocess.run(command, env=environment, timeout=60, check=False).returncode == -signal.SIGKILL
    assert names_in(open_target(str(target))) == []
    assert _pins(metadata), "nobody could take it away"
    holdfast("restore", target, "--data", target.parent / "none", code=1)
    copied = sum(path.stat().st_size for path in target.glob("data/*/[!.]*"))
    made = holdfast.told("backup", target, "--data", server.data)
    assert 0 < copied <= made["size_bytes"] - made["written_bytes"]
    assert len(_pins(metadata)) == 1, "its own pin is gone"
    assert holdfast.told("verify", target)["messages"] == 90


def _pins(metadata: Path) -> tuple[Any, ...]:
    file = MetadataFile(metadata)
    try:
        return file.pins()
    finally:
        file.close()


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
    stopped: Server, target: Path, holdfast: Command, harm: Callable[[Path], None]
) -> None:
    holdfast("backup", target, "--data", stopped.data)
    manifest = read_manifest(open_target(str(target)))
    kinds = {file.path.rpartition(".")[2]: file for file in manifest.files}
    assert set(kinds) == {"sqlite", "log", "bin"}
    data = target.parent / "again"
    for file in kinds.values():
        place = target / file.content
        whole = place.read_bytes()
        harm(place)
        found = holdfast.told("verify", target, code=1)
        assert file.path in " ".join(found["wrong"]), found["wrong"]
        _, err = holdfast("restore", target, "--data", data, code=1)
        assert file.path in err
        assert not data.exists(), "nothing is left of what was not restored"
        place.write_bytes(whole)
    listed = target / path_of(manifest.name)
    whole = listed.read_bytes()
    harm(listed)
    for arguments in (("verify", target), ("restore", target, "--data", data)):
        _, err = holdfast(*arguments, code=1)
        assert "backup" in err
    listed.write_bytes(whole)
    assert holdfast.told("verify", target)["messages"] == 15


def test_every_byte_of_the_list_counts(stopped: Server, target: Path, holdfast: Command) -> None:
    holdfast("backup", target, "--data", stopped.data)
    manifest = read_manifest(open_target(str(target)))
    listed = target / path_of(manifest.name)
    whole = listed.read_bytes()
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1
        listed.write_bytes(changed)
        with pytest.raises(BackupUnusable):
            read_manifest(open_target(str(target)))


def test_a_service_that_is_damaged_is_backed_up_and_verify_says_so(
    stopped: Server, target: Path, holdfast: Command
) -> None:
    data = target.parent / "data"
    shutil.copytree(stopped.data, data)
    (piece,) = data.glob("journal/*/ckpt-*.bin")
    _flip(piece)
    holdfast("backup", target, "--data", data)
    found = holdfast.told("verify", target, code=1)
    assert "checkpoint is damaged" in " ".join(found["wrong"])
    piece.unlink()
    made = holdfast("backup", target, "--data", data)
    assert piece.name in made[1]
    assert piece.name in " ".join(holdfast.told("verify", target, code=1)["wrong"])


@pytest.mark.parametrize("kind", [".log", ".bin"])
def test_a_command_that_cannot_read_for_a_while_finds_no_damage(
    stopped: Server, target: Path, holdfast: Command, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Commands that examine damage report that the journal cannot be read, and accept no loss."""
    holdfast("backup", target, "--data", stopped.data)
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
            printed, error = holdfast(*arguments, code=1)
            assert "Too many open files" in error, arguments
            assert "accepted" not in printed.lower()
        found = holdfast("doctor", "--data", stopped.data, code=4)[0]
        assert "Too many open files" in found
        assert "damage accept" not in found
    assert holdfast.told("verify", target)["wrong"] == []
    assert "Nothing is damaged" in holdfast("damage", "--data", stopped.data)[0]


def test_a_segment_that_is_dropped_while_it_is_looked_at(
    stopped: Server, target: Path, holdfast: Command, monkeypatch: pytest.MonkeyPatch
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
    holdfast("backup", target, "--data", stopped.data)
    assert looks == 2
    assert holdfast.told("verify", target)["messages"] == 15


def test_only_an_empty_folder_is_restored_into(
    stopped: Server, target: Path, holdfast: Command, tmp_path: Path
) -> None:
    holdfast("backup", target, "--data", stopped.data)
    for data in (stopped.data, target):
        _, err = holdfast("restore", target, "--data", data, code=1)
        assert "is not empty" in err
    empty = tmp_path / "empty"
    empty.mkdir(mode=0o755)
    holdfast("restore", target, "--data", empty)
    assert empty.stat().st_mode & 0o077 == 0
    _, err = holdfast("restore", target, "--data", empty, code=1)
    assert "is not empty" in err
    (empty / "metadata.sqlite").rename(empty / "metadata.sqlite.restoring")  # as left by a restore that was killed
    _, err = holdfast("restore", target, "--data", empty, code=1)
    assert "if a restore into it was killed, remove the folder and restore again" in err
    (empty / "metadata.sqlite.restoring").rename(empty / "metadata.sqlite")
    other = Server(tmp_path / "other", SETTINGS)
    shutil.copytree(empty, other.data)
    with pytest.raises(RuntimeError, match="encrypted under master keys that are not here"):
        other.start()


def test_a_target_that_cannot_be_reached(stopped: Server, tmp_path: Path, holdfast: Command) -> None:
    (tmp_path / "file").write_text("")
    for target, said in (
        (tmp_path / "file" / "target", "cannot be written"),
        ("nowhere://bucket", "is no place for backups"),
        ("file://elsewhere/target", "names another machine"),
    ):
        _, err = holdfast("backup", target, "--data", stopped.data, code=1)
        assert said in err
    for arguments in (("verify", tmp_path / "none"), ("restore", tmp_path / "none", "--data", tmp_path / "x")):
        _, err = holdfast(*arguments, code=1)
        assert "there is no backup" in err
    assert _pins(stopped.data / "metadata.sqlite") == ()
    _, err = holdfast("backup", tmp_path / "target", "--data", tmp_path / "none", code=1)
    assert "is no data folder" in err


def test_an_object_store(stopped: Server, tmp_path: Path, holdfast: Command) -> None:
    """A real server of S3's protocol, which then stops."""
    with S3(tmp_path) as s3:
        url = s3.lake("backups/of-this-one")
        made = holdfast.told("backup", url, "--data", stopped.data)
        again = holdfast.told("backup", url, "--data", stopped.data, "--keep", "1")
        assert made["written_bytes"] == made["size_bytes"]
        assert again["written_bytes"] < made["size_bytes"] // 2
        assert again["removed_backups"] == 1
        assert holdfast.told("verify", url)["messages"] == 15
        holdfast("restore", url, "--data", tmp_path / "data")
        assert (tmp_path / "data" / "metadata.sqlite").exists()
        log = next(file for file in read_manifest(open_target(url)).files if file.path.endswith(".log"))
        key = f"backups/of-this-one/{log.content}"
        s3.client().put_object(Bucket=BUCKET, Key=key, Body=b"damaged")
        assert log.path in str(holdfast.told("verify", url, code=1)["wrong"])
        holdfast("backup", url, "--data", stopped.data)
        assert holdfast.told("verify", url)["whole"], "what had the wrong size was written again"
        printed = "".join(holdfast("backup", url, "--list"))
    assert SECRET not in printed
    _, err = holdfast("backup", url, "--data", stopped.data, code=1)
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
