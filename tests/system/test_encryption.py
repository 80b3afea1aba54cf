"""Encryption at rest: a real server, real clients, and a search of every byte of its files."""

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from auth.credentials import Tenant, new_access_key
from auth.encryption.encrypted_store import encrypted
from auth.encryption.keyring import Keyring
from auth.encryption.master_keys import master_key_id, new_master_key, read_file
from holdfast.runtime.keyring import open_keyring
from holdfast.settings import Settings
from metadata_service.sqlite.store import SQLiteStore
from tests.closing import closing
from tests.holdfast.queues import attribute, bodies, count, redrive
from tests.servers.server import SECRET_ACCESS_KEY, Server
from tests.servers.waiting import wait_until

T = TypeVar("T")

BODIES = {"needle-body-json", "needle-body-query", "needle-body-batch", "needle-body-fifo", "needle-body-after-kill"}
OTHERS = {"needle-attribute-text", "needle-attribute-bytes", "needle-trace", "needle-deduplication"}
LARGE = ("needle-large-" * 81_000)[: 1024 * 1024]


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


def traffic(server: Server) -> None:
    """Send messages by both protocols, make dead letters and moves, drain with a checkpoint, and kill -9."""
    sqs = server.client()
    dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
    attributes = {"RedrivePolicy": redrive(sqs, dead), "VisibilityTimeout": "0"}
    url = sqs.create_queue(QueueName="q", Attributes=attributes)["QueueUrl"]
    fifo = sqs.create_queue(QueueName="q.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    named: dict[str, Any] = {
        "text": {"DataType": "String", "StringValue": "needle-attribute-text"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"needle-attribute-bytes"},
    }
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "needle-trace"}}
    sqs.send_message(
        QueueUrl=url, MessageBody="needle-body-json", MessageAttributes=named, MessageSystemAttributes=trace
    )
    server.query("SendMessage", QueueUrl=url, MessageBody="needle-body-query")
    entries = [{"Id": str(number), "MessageBody": f"needle-body-batch {number}"} for number in range(10)]
    assert len(sqs.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == 10
    sqs.send_message(
        QueueUrl=fifo,
        MessageBody="needle-body-fifo",
        MessageGroupId="group",
        MessageDeduplicationId="needle-deduplication",
    )
    assert "needle-body" in server.query("ReceiveMessage", QueueUrl=url)

    def all_dead() -> bool:
        sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)
        return count(sqs, dead) == 12

    wait_until(all_dead, "all messages are dead letters")
    server.restart()
    sqs = server.client()
    task = sqs.start_message_move_task(SourceArn=attribute(sqs, dead, "QueueArn"))
    assert task["TaskHandle"]
    wait_until(lambda: count(sqs, url) == 12, "all messages are back")
    sqs.send_message(QueueUrl=dead, MessageBody="needle-body-after-kill", MessageAttributes=named)
    sqs.send_message(QueueUrl=dead, MessageBody=LARGE)
    server.kill()


def with_keyring(server: Server, do: Callable[[Keyring, SQLiteStore], Awaitable[T]]) -> T:
    """Work on the data of a stopped server."""

    async def run() -> T:
        async with closing(SQLiteStore(server.data / "metadata.sqlite")) as store:
            return await do(await open_keyring(Settings(data=server.data), store), store)

    return asyncio.run(run())


async def data_keys(keyring: Keyring, store: SQLiteStore) -> list[bytes]:
    return [
        await keyring.masters.unwrap(key.master_id, key.wrapped, key.context)
        for key in await store.data_keys.data_keys()
    ]


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
        received = bodies(sqs, "dead")
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


def test_without_its_data_keys_what_a_tenant_stored_cannot_be_read(tmp_path: Path) -> None:
    account = "222222222222"
    first, second = new_access_key(account), new_access_key(account)

    async def make(keyring: Keyring, store: SQLiteStore) -> None:
        outside = encrypted(store.credentials, keyring)
        await outside.put_tenant(Tenant(account, "other"))
        await outside.put_access_key(first)

    async def destroy(keyring: Keyring, store: SQLiteStore) -> None:
        await store.credentials.delete_access_key(first.access_key_id)
        assert await keyring.destroy_tenant_keys(account) == 1
        await encrypted(store.credentials, keyring).put_access_key(second)

    server = Server(tmp_path)
    with server:
        own = server.client().create_queue(QueueName="q")["QueueUrl"]
        server.client().send_message(QueueUrl=own, MessageBody="stays")
        server.stop()
    with_keyring(server, make)
    with server:
        other_client = server.client(aws_access_key_id=first.access_key_id, aws_secret_access_key=first.secret)
        url = other_client.create_queue(QueueName="q")["QueueUrl"]
        other_client.send_message(QueueUrl=url, MessageBody="goes")
        server.stop()
    with_keyring(server, destroy)
    with server:
        other_client = server.client(aws_access_key_id=second.access_key_id, aws_secret_access_key=second.secret)
        assert bodies(other_client, url) == []
        assert f"of arn:aws:sqs:us-east-1:{account}:q cannot be decrypted" in server.log_text()
        other_client.send_message(QueueUrl=url, MessageBody="new")
        assert bodies(other_client, url) == ["new"]
        assert bodies(server.client(), own) == ["stays"]
