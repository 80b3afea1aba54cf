"""Commands that move queues, as separate processes, and comparison of messages."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from holdfast.commands.main import main
from tests.servers.server import REPOSITORY, Server, clean_environment


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


def environment(server: Server, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment in which the server's data folder is read with the server's settings."""
    return {
        **clean_environment(),
        **server.settings,
        "PYTHONPATH": str(REPOSITORY),
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        **(more or {}),
    }


def command(server: Server, *arguments: str) -> list[str]:
    where = ["--endpoint", server.endpoint, "--data", str(server.data)]
    return [sys.executable, "-m", "holdfast", *arguments, *where]


def holdfast(server: Server, *arguments: str | Path, more: Mapping[str, str] | None = None) -> CommandResult:
    """Run a command to its end in this process, non-interactively, authenticated by the server's data folder."""
    with mock.patch.dict(os.environ, environment(server, more), clear=True):
        return plainly(*command(server, *map(str, arguments))[3:])


def plainly(*arguments: str) -> CommandResult:
    """Run a command with exactly these arguments."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with (
        open(os.devnull) as nobody,
        mock.patch.object(sys, "stdin", nobody),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            code = main(arguments)
        except SystemExit as exit_:
            code = int(str(exit_.code))
    out.flush()
    assert isinstance(out.buffer, io.BytesIO)
    return CommandResult(code, out.buffer.getvalue().decode(), err.getvalue())


def started(server: Server, *arguments: str | Path, more: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a command as a separate process."""
    return subprocess.Popen(
        command(server, *map(str, arguments)),
        env=environment(server, more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def drained(client: Any, name: str) -> list[dict[str, Any]]:
    """Receive and delete all messages available now."""
    url = client.get_queue_url(QueueName=name)["QueueUrl"]
    found: list[dict[str, Any]] = []
    while messages := client.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"], MessageAttributeNames=["All"]
    ).get("Messages"):
        found += messages
        entries = [{"Id": str(place), "ReceiptHandle": one["ReceiptHandle"]} for place, one in enumerate(messages)]
        client.delete_message_batch(QueueUrl=url, Entries=entries)
    return found


def essence(message: Mapping[str, Any], *, fifo: bool = False) -> tuple[Any, ...]:
    """The parts of a message that must not change when it is moved."""
    names = ("MessageGroupId", "AWSTraceHeader", *(("MessageDeduplicationId",) if fifo else ()))
    attributes = {
        name: (value["DataType"], value.get("StringValue"), value.get("BinaryValue"))
        for name, value in message.get("MessageAttributes", {}).items()
    }
    return (message["Body"], sorted(attributes.items()), *(message["Attributes"].get(name) for name in names))


def send(client: Any, name: str, entries: Sequence[Mapping[str, Any]]) -> None:
    """Send messages in batches of ten; ids are assigned."""
    url = client.get_queue_url(QueueName=name)["QueueUrl"]
    for first in range(0, len(entries), 10):
        batch = [{"Id": str(place), **entry} for place, entry in enumerate(entries[first : first + 10])]
        answer = client.send_message_batch(QueueUrl=url, Entries=batch)
        assert not answer.get("Failed"), answer
