"""Named data keys with real servers and boto3: the effects of destroying one, on its messages and on processes."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from botocore.exceptions import ClientError

from auth.encryption.named_keys import NamedKey
from metadata_service.sqlite.store import SQLiteStore
from tests.closing import closing
from tests.holdfast.command import holdfast
from tests.holdfast.queues import count, redrive
from tests.servers.server import Server
from tests.servers.waiting import wait_until
from tests.system.test_encryption import found

GONE = "KMS.NotFoundException"


def refusal(call: Any, **members: Any) -> str:
    """Return the code of the error; empty: there was none."""
    try:
        call(**members)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""


def make(sqs: Any, name: str, key: str, **attributes: str) -> str:
    url: str = sqs.create_queue(QueueName=name, Attributes={"KmsMasterKeyId": key, **attributes})["QueueUrl"]
    return url


def bodies(sqs: Any, url: str) -> list[str]:
    answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=0)
    return [message["Body"] for message in answer.get("Messages", [])]


def destroy(server: Server, name: str) -> None:
    done = holdfast(server, "keyring", "destroy", name, "--yes")
    assert done.code == 0, done.err


def stored(server: Server) -> list[NamedKey]:
    """Return the keys of a stopped server."""

    async def read() -> list[NamedKey]:
        async with closing(SQLiteStore(server.data / "metadata.sqlite")) as store:
            return await store.named_keys.named_keys()

    return asyncio.run(read())


def test_all_frontends_learn_of_a_destroyed_key(tmp_path: Path) -> None:
    with Server(tmp_path, {"FRONTENDS": "2"}) as server:
        clients = [server.client() for _ in range(6)]
        url, other = make(clients[0], "q", "alias/k"), make(clients[0], "other", "alias/other")
        for sqs in clients:
            sqs.send_message(QueueUrl=url, MessageBody="m")
            sqs.send_message(QueueUrl=other, MessageBody="m")
        destroy(server, "alias/k")
        wait_until(
            lambda: (
                {refusal(sqs.send_message, QueueUrl=url, MessageBody="late") for sqs in clients}
                | {refusal(sqs.receive_message, QueueUrl=url) for sqs in clients}
                == {GONE}
            ),
            "all frontends say that the key was destroyed",
        )
        with pytest.raises(clients[0].exceptions.KmsNotFound):
            clients[0].receive_message(QueueUrl=url)
        assert count(clients[0], url) >= 6
        assert len(bodies(clients[1], other)) == 6


def test_a_destroyed_key_stays_so_after_a_crash_and_is_in_no_file(tmp_path: Path) -> None:
    server = Server(tmp_path)
    with server:
        sqs = server.client()
        url, other = make(sqs, "q", "alias/k"), make(sqs, "other", "alias/other")
        for one in (url, other):
            sqs.send_message(QueueUrl=one, MessageBody="needle")
        server.stop()
    wrapped = {key.name: msgspec.json.encode(key.versions[0].wrapped).strip(b'"') for key in stored(server)}
    assert found(server.data, wrapped.values()) == set(wrapped.values())
    with server:
        destroy(server, "alias/k")
        assert found(server.data, [wrapped["alias/k"]]) == set()
        server.kill()
    with server:
        sqs = server.client()
        assert refusal(sqs.receive_message, QueueUrl=url) == GONE
        assert refusal(sqs.send_message, QueueUrl=url, MessageBody="m") == GONE
        assert count(sqs, url) == 1
        assert bodies(sqs, other) == ["needle"]
        assert sqs.create_queue(QueueName="q", Attributes={"KmsMasterKeyId": "alias/k"})["QueueUrl"] == url
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"KmsMasterKeyId": "alias/new"})
        sqs.send_message(QueueUrl=url, MessageBody="new")
        assert bodies(sqs, url) == ["new"]
        server.stop()
    assert found(server.data, [*wrapped.values()]) == {wrapped["alias/other"]}
    assert b"needle" not in server.log_text().encode()


def test_messages_that_cannot_be_read_become_dead_letters_and_none_is_lost(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        sqs = server.client()
        dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
        url = make(sqs, "q", "alias/k", RedrivePolicy=redrive(sqs, dead))
        sqs.send_message(QueueUrl=url, MessageBody="m")
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"KmsMasterKeyId": ""})
        destroy(server, "alias/k")
        assert refusal(sqs.receive_message, QueueUrl=url, VisibilityTimeout=0) == GONE
        assert count(sqs, url) == 1, "it is there and can be received again"
        assert refusal(sqs.receive_message, QueueUrl=url, VisibilityTimeout=0) == ""
        wait_until(lambda: count(sqs, dead) == 1, "it is a dead letter")
        assert refusal(sqs.receive_message, QueueUrl=dead, VisibilityTimeout=0) == GONE
        assert (count(sqs, url), count(sqs, dead)) == (0, 1)


def test_a_backup_has_the_keys_as_they_were_at_its_moment(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    server = Server(tmp_path / "service")
    with server:
        sqs = server.client()
        make(sqs, "q", "alias/k")
        sqs.send_message(QueueUrl=sqs.get_queue_url(QueueName="q")["QueueUrl"], MessageBody="m")
        assert holdfast(server, "backup", str(before)).code == 0
        destroy(server, "alias/k")
        assert holdfast(server, "backup", str(after)).code == 0
        keyring = ("--keyring-file", str(server.data / "keyring.toml"))
        assert holdfast(server, "verify", str(after), *keyring, data=False).code == 0
    for source, expected in ((before, ""), (after, GONE)):
        other = Server(tmp_path / f"restored-{source.name}")
        assert holdfast(server, "restore", str(source), "--data", str(other.data), data=False).code == 0
        shutil.copy(server.data / "keyring.toml", other.data)
        with other:
            sqs = other.client()
            url = sqs.get_queue_url(QueueName="q")["QueueUrl"]
            assert refusal(sqs.receive_message, QueueUrl=url, VisibilityTimeout=0) == expected
            assert count(sqs, url) == 1
