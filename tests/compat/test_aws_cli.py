"""The AWS CLI as a new user uses it: start the service, paste the three lines that it prints, use every command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore import xform_name

from tests.servers.server import Server
from tests.servers.waiting import wait_until

COMMAND_SECONDS = 60


@dataclass
class Shell:
    """A shell into which ``lines`` were pasted, in a home without any AWS configuration."""

    lines: list[str]
    home: Path
    programs: Path
    used: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)

    def run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``aws sqs`` with this command."""
        self.used.add(command)
        script = "\n".join([*self.lines, 'aws sqs "$@"'])
        return subprocess.run(
            ["bash", "-c", script, "bash", command, *arguments],
            env={"PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}", "HOME": str(self.home)},
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )

    def sqs(self, command: str, *arguments: str) -> Any:
        """Return the output of the command, which has to succeed; None if it is empty."""
        done = self.run(command, *arguments)
        assert done.returncode == 0, f"aws sqs {command}: {done.stderr}"
        return json.loads(done.stdout) if done.stdout.strip() else None

    def create(self, what: str, **attributes: str) -> str:
        """Create a queue; returns its URL."""
        name = f"cli-{what}-{uuid.uuid4().hex[:12]}" + (".fifo" if "FifoQueue" in attributes else "")
        url: str = self.sqs("create-queue", "--queue-name", name, "--attributes", json.dumps(attributes))["QueueUrl"]
        return url

    def arn(self, url: str) -> str:
        """The queue's ARN."""
        answer = self.sqs("get-queue-attributes", "--queue-url", url, "--attribute-names", "QueueArn")
        return str(answer["Attributes"]["QueueArn"])

    def receive(self, url: str, *options: str) -> list[dict[str, Any]]:
        """Receive messages by long polls."""
        answer = self.sqs("receive-message", "--queue-url", url, "--wait-time-seconds", "20", *options)
        messages: list[dict[str, Any]] = answer["Messages"]
        return messages


@pytest.fixture(scope="module")
def fresh_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Server at its first start, which creates its key itself."""
    with Server(tmp_path_factory.mktemp("first-start"), known_keys=False) as server:
        yield server


@pytest.fixture(scope="module")
def shell(fresh_server: Server, current_bin: Path, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    lines = re.findall(r"^\s*(export .*)$", fresh_server.log_text(), re.MULTILINE)
    assert len(lines) == 3, fresh_server.log_text()
    return Shell(lines, tmp_path_factory.mktemp("home"), current_bin)


def manage_a_queue(shell: Shell) -> None:
    url = shell.create("manage", VisibilityTimeout="60")
    name = url.split("/")[-1]
    assert shell.sqs("get-queue-url", "--queue-name", name) == {"QueueUrl": url}
    assert shell.sqs("list-queues", "--queue-name-prefix", name) == {"QueueUrls": [url]}
    on = ("--queue-url", url)
    shell.sqs("set-queue-attributes", *on, "--attributes", "VisibilityTimeout=61,DelaySeconds=2")
    found = shell.sqs("get-queue-attributes", *on, "--attribute-names", "All")["Attributes"]
    assert (found["VisibilityTimeout"], found["DelaySeconds"]) == ("61", "2")
    shell.sqs("tag-queue", *on, "--tags", "team=blue,cost=none")
    shell.sqs("untag-queue", *on, "--tag-keys", "cost")
    assert shell.sqs("list-queue-tags", *on) == {"Tags": {"team": "blue"}}
    shell.sqs("add-permission", *on, "--label", "l", "--aws-account-ids", "111122223333", "--actions", "ReceiveMessage")
    policy = shell.sqs("get-queue-attributes", *on, "--attribute-names", "Policy")["Attributes"]["Policy"]
    assert json.loads(policy)["Statement"][0]["Sid"] == "l"
    shell.sqs("remove-permission", *on, "--label", "l")
    shell.sqs("purge-queue", *on)
    shell.sqs("delete-queue", *on)
    assert "NonExistentQueue" in shell.run("get-queue-url", "--queue-name", name).stderr


def pass_messages(shell: Shell) -> None:
    on = ("--queue-url", shell.create("messages", FifoQueue="true", ContentBasedDeduplication="true"))
    attributes = {"n": {"DataType": "Number", "StringValue": "1"}}
    options = ("--message-group-id", "g", "--message-attributes", json.dumps(attributes))
    sent = shell.sqs("send-message", *on, "--message-body", "grüße & <tags>", *options)
    names = ("--message-attribute-names", "All", "--message-system-attribute-names", "All")
    (message,) = shell.receive(on[1], *names)
    assert (message["MessageId"], message["Body"]) == (sent["MessageId"], "grüße & <tags>")
    assert (message["MessageAttributes"], message["Attributes"]["MessageGroupId"]) == (attributes, "g")
    handle = ("--receipt-handle", message["ReceiptHandle"])
    shell.sqs("change-message-visibility", *on, *handle, "--visibility-timeout", "100")
    shell.sqs("delete-message", *on, *handle)

    entries = [{"Id": i, "MessageBody": i, "MessageGroupId": "g"} for i in ("a", "b")]
    assert len(shell.sqs("send-message-batch", *on, "--entries", json.dumps(entries))["Successful"]) == 2
    pair = shell.receive(on[1], "--max-number-of-messages", "10")
    assert [m["Body"] for m in pair] == ["a", "b"]
    handles = [{"Id": m["Body"], "ReceiptHandle": m["ReceiptHandle"]} for m in pair]
    hide = json.dumps([{**h, "VisibilityTimeout": 90} for h in handles])
    assert len(shell.sqs("change-message-visibility-batch", *on, "--entries", hide)["Successful"]) == 2
    assert len(shell.sqs("delete-message-batch", *on, "--entries", json.dumps(handles))["Successful"]) == 2


def move_dead_letters(shell: Shell) -> None:
    dead, other = shell.create("dead"), shell.create("other")
    dead_arn = shell.arn(dead)
    policy = {"deadLetterTargetArn": dead_arn, "maxReceiveCount": 1}
    source = shell.create("source", RedrivePolicy=json.dumps(policy))
    assert shell.sqs("list-dead-letter-source-queues", "--queue-url", dead) == {"queueUrls": [source]}
    entries = json.dumps([{"Id": str(i), "MessageBody": str(i)} for i in range(10)])
    for _ in range(2):
        shell.sqs("send-message-batch", "--queue-url", dead, "--entries", entries)
    slowly = ("--destination-arn", shell.arn(other), "--max-number-of-messages-per-second", "1")
    task = shell.sqs("start-message-move-task", "--source-arn", dead_arn, *slowly)["TaskHandle"]
    shell.sqs("cancel-message-move-task", "--task-handle", task)

    def newest() -> bool:
        tasks = shell.sqs("list-message-move-tasks", "--source-arn", dead_arn, "--max-results", "10")["Results"]
        return [t["Status"] for t in tasks] == ["CANCELLED"]

    wait_until(newest, "the move task is cancelled")


PARTS = (manage_a_queue, pass_messages, move_dead_letters)


def take(shell: Shell, part: Callable[[Shell], None]) -> None:
    """Run this part unless it was run before."""
    if part.__name__ not in shell.taken:
        part(shell)
        shell.taken.add(part.__name__)


@pytest.mark.parametrize("part", PARTS)
def test_part(shell: Shell, part: Callable[[Shell], None]) -> None:
    take(shell, part)


def test_every_command_was_used(shell: Shell) -> None:
    for part in PARTS:
        take(shell, part)
    actions = boto3.session.Session().client("sqs", "us-east-1").meta.service_model.operation_names
    assert shell.used == {xform_name(action, "-") for action in actions}


def test_listing_goes_on_where_it_stopped(shell: Shell) -> None:
    urls = {shell.create("list") for _ in range(3)}
    page = shell.sqs("list-queues", "--queue-name-prefix", "cli-list-", "--page-size", "1", "--max-items", "2")
    rest = shell.sqs("list-queues", "--queue-name-prefix", "cli-list-", "--starting-token", page["NextToken"])
    assert len(page["QueueUrls"]) == 2
    assert {*page["QueueUrls"], *rest["QueueUrls"]} == urls


def test_a_refusal_is_said_plainly(shell: Shell) -> None:
    done = shell.run("send-message", "--queue-url", "http://127.0.0.1/000000000000/missing", "--message-body", "x")
    assert done.returncode != 0
    assert "The specified queue does not exist" in done.stderr
    stranger = Shell([*shell.lines, "export AWS_SECRET_ACCESS_KEY=guessed"], shell.home, shell.programs)
    assert "SignatureDoesNotMatch" in stranger.run("list-queues").stderr
