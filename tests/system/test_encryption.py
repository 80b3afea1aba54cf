"""Encryption at rest: a real server, real clients, and a search of every byte of its files."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from base64 import b64encode
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as ClientCredentials

from auth.credentials import Tenant, new_access_key
from auth.encryption.encrypted_store import sealed
from auth.encryption.keyring import Keyring
from auth.encryption.master_keys import master_key_id, new_master_key, read_file
from holdfast.runtime.keyring import open_keyring
from holdfast.settings import Settings
from metadata_service.sqlite.store import SQLiteStore
from tests.servers.server import REGION, REPOSITORY, SECRET_ACCESS_KEY, Server, clean_environment, show_log_on_failure
from tests.servers.waiting import wait_until

T = TypeVar("T")

BODIES = {"needle-body-json", "needle-body-query", "needle-body-batch", "needle-body-fifo", "needle-body-after-kill"}
OTHERS = {"needle-attribute-text", "needle-attribute-bytes", "needle-trace", "needle-deduplication"}
LARGE = ("needle-large-" * 81_000)[: 1024 * 1024]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    show_log_on_failure(item, report)
    return report


def forms(needle: bytes) -> Iterator[bytes]:
    """Encodings of a text in a file: plain, hexadecimal, and base64 at any offset of a longer text."""
    yield needle
    yield needle.hex().encode()
    yield needle.hex().upper().encode()
    for before in range(3):
        encoded = b64encode(bytes(before) + needle)
        cut = encoded[4 if before else 0 : -4]
        yield cut
        yield cut.translate(bytes.maketrans(b"+/", b"-_"))


def found(folder: Path, needles: Iterable[str | bytes]) -> set[str | bytes]:
    """Return the texts that occur in any file below the folder, in any encoding."""
    contents = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert contents
    return {
        needle
        for needle in needles
        for form in forms(needle.encode() if isinstance(needle, str) else needle)
        if any(form in content for content in contents)
    }


def query(server: Server, action: str, **parameters: str) -> str:
    """Make a call in the Query protocol, which current boto3 no longer supports."""
    body = urlencode({"Action": action, "Version": "2012-11-05", **parameters})
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    request = AWSRequest("POST", server.endpoint + "/", headers=headers, data=body.encode())
    SigV4Auth(ClientCredentials(server.access_key_id, server.secret_access_key), "sqs", REGION).add_auth(request)
    prepared = urllib.request.Request(server.endpoint + "/", body.encode(), dict(request.headers.items()))
    with urllib.request.urlopen(prepared, timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def traffic(server: Server) -> None:
    """Send messages by both protocols, make dead letters and moves, drain with a checkpoint, and kill -9."""
    sqs = server.client()
    dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    url = sqs.create_queue(QueueName="q", Attributes={"RedrivePolicy": policy, "VisibilityTimeout": "0"})["QueueUrl"]
    fifo = sqs.create_queue(QueueName="q.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    attributes = {
        "text": {"DataType": "String", "StringValue": "needle-attribute-text"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"needle-attribute-bytes"},
    }
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "needle-trace"}}
    sqs.send_message(
        QueueUrl=url, MessageBody="needle-body-json", MessageAttributes=attributes, MessageSystemAttributes=trace
    )
    query(server, "SendMessage", QueueUrl=url, MessageBody="needle-body-query")
    entries = [{"Id": str(number), "MessageBody": f"needle-body-batch {number}"} for number in range(10)]
    assert len(sqs.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == 10
    sqs.send_message(
        QueueUrl=fifo,
        MessageBody="needle-body-fifo",
        MessageGroupId="group",
        MessageDeduplicationId="needle-deduplication",
    )
    assert "needle-body" in query(server, "ReceiveMessage", QueueUrl=url)

    def all_dead() -> bool:
        sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)
        return waiting(sqs, dead) == 12

    wait_until(all_dead, "all messages are dead letters")
    server.restart()
    sqs = server.client()
    task = sqs.start_message_move_task(SourceArn=arn)
    assert task["TaskHandle"]
    wait_until(lambda: waiting(sqs, url) == 12, "all messages are back")
    sqs.send_message(QueueUrl=dead, MessageBody="needle-body-after-kill", MessageAttributes=attributes)
    sqs.send_message(QueueUrl=dead, MessageBody=LARGE)
    server.kill()


def waiting(sqs: Any, url: str) -> int:
    name = "ApproximateNumberOfMessages"
    return int(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name])


def bodies(sqs: Any, url: str) -> list[str]:
    """Receive and delete all messages available now."""
    received = []
    while messages := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        for message in messages:
            received.append(message["Body"])
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return received


def with_keyring(server: Server, do: Callable[[Keyring, SQLiteStore], Awaitable[T]]) -> T:
    """Work on the data of a stopped server."""

    async def run() -> T:
        store = SQLiteStore(server.data / "metadata.sqlite")
        try:
            return await do(await open_keyring(Settings(data=server.data), store), store)
        finally:
            await store.close()

    return asyncio.run(run())


async def data_keys(keyring: Keyring, store: SQLiteStore) -> list[bytes]:
    return [await keyring.masters.unwrap(key.master_id, key.wrapped, key.context) for key in await store.data_keys()]


@pytest.mark.parametrize("encryption", ["on", "off"])
def test_no_file_holds_a_body_an_attribute_or_a_secret(tmp_path: Path, encryption: str) -> None:
    """With encryption off the same search finds all but the secrets, which shows that it works."""
    needles = BODIES | OTHERS | {LARGE[:64], SECRET_ACCESS_KEY}
    server = Server(tmp_path, {"ENCRYPTION": encryption, "SEGMENT_BYTES": str(1 << 21)})
    with server:
        traffic(server)
    visible = set() if encryption == "on" else needles - {SECRET_ACCESS_KEY}
    assert found(server.data, needles) == visible
    with server:
        assert found(server.data, needles) == visible
        sqs = server.client()
        received = bodies(sqs, sqs.get_queue_url(QueueName="dead")["QueueUrl"])
        assert sorted(map(len, received)) == [len("needle-body-after-kill"), 1024 * 1024]
        assert server.stop() == 0
    if encryption == "on":
        assert found(server.data, needles) == set()
    (master,) = read_file(server.data / "keyring.toml")
    keys = with_keyring(server, data_keys)
    assert keys
    assert found(server.data, keys) == set()
    (server.data / "keyring.toml").unlink()
    assert found(server.data, [master]) == set()
    assert not any(form in server.log.read_bytes() for key in [master, *keys] for form in forms(key))


def test_a_wrong_or_missing_key_stops_the_start(tmp_path: Path) -> None:
    right, wrong = new_master_key(), new_master_key()
    server = Server(tmp_path, {"MASTER_KEY": b64encode(right).decode()})
    with server:
        sqs = server.client()
        url = sqs.create_queue(QueueName="q")["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="waits")
        server.stop()
    assert not (server.data / "keyring.toml").exists()
    server.settings["HOLDFAST_MASTER_KEY"] = b64encode(wrong).decode()
    for here in (f"only {master_key_id(wrong)}", "no master key"):
        with pytest.raises(RuntimeError, match="ended with 1") as caught:
            server.start()
        assert here in str(caught.value)
        assert "HOLDFAST_MASTER_KEY" in str(caught.value)
        server.settings.pop("HOLDFAST_MASTER_KEY", None)
    assert master_key_id(right) in server.log_text()
    server.settings["HOLDFAST_MASTER_KEY"] = b64encode(right).decode()
    with server:
        assert bodies(server.client(), url) == ["waits"]
    for key in (right, wrong):
        assert b64encode(key).decode() not in server.log_text()


def test_keys_are_rotated_while_messages_wait(tmp_path: Path) -> None:
    server = Server(tmp_path)
    with server:
        url = server.client().create_queue(QueueName="q")["QueueUrl"]
        server.client().send_message(QueueUrl=url, MessageBody="before")
        assert rotate(server).returncode == 1  # the service is running
        server.kill()
    (old,) = read_file(server.data / "keyring.toml")
    done = rotate(server, "--data-keys")
    assert done.returncode == 0, done.stderr
    new = read_file(server.data / "keyring.toml")[0]
    assert master_key_id(new) in done.stdout
    assert new != old
    with server:
        server.client().send_message(QueueUrl=url, MessageBody="after")
        assert sorted(bodies(server.client(), url)) == ["after", "before"]


def rotate(server: Server, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", "keyring", "rotate", "--data", str(server.data), *more]
    environment = {**clean_environment(), "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)


def test_without_its_data_keys_what_a_tenant_stored_cannot_be_read(tmp_path: Path) -> None:
    account = "222222222222"
    first, second = new_access_key(account), new_access_key(account)

    async def make(keyring: Keyring, store: SQLiteStore) -> None:
        outside = sealed(store, keyring)
        await outside.put_tenant(Tenant(account, "other"))
        await outside.put_access_key(first)

    async def destroy(keyring: Keyring, store: SQLiteStore) -> None:
        await store.delete_access_key(first.access_key_id)
        assert await keyring.destroy_tenant_keys(account) == 1
        await sealed(store, keyring).put_access_key(second)

    server = Server(tmp_path)
    with server:
        mine = server.client().create_queue(QueueName="q")["QueueUrl"]
        server.client().send_message(QueueUrl=mine, MessageBody="stays")
        server.stop()
    with_keyring(server, make)
    with server:
        theirs = server.client(aws_access_key_id=first.access_key_id, aws_secret_access_key=first.secret)
        url = theirs.create_queue(QueueName="q")["QueueUrl"]
        theirs.send_message(QueueUrl=url, MessageBody="goes")
        server.stop()
    with_keyring(server, destroy)
    with server:
        theirs = server.client(aws_access_key_id=second.access_key_id, aws_secret_access_key=second.secret)
        assert bodies(theirs, url) == []
        assert f"of arn:aws:sqs:us-east-1:{account}:q cannot be opened" in server.log_text()
        theirs.send_message(QueueUrl=url, MessageBody="new")
        assert bodies(theirs, url) == ["new"]
        assert bodies(server.client(), mine) == ["stays"]
