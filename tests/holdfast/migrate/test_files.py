"""Export and import of files, between real services, each command as a separate process."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from holdfast.commandline.client import RestClient
from tests.holdfast.migrate.sides import drained, essence, holdfast, send, started
from tests.servers.server import Server
from tests.servers.waiting import wait_until

BINARY = bytes(range(256))
TRACE = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988-bd862e3fe1be46a994272793"}}
SETTINGS = {"SEGMENT_BYTES": str(1 << 22)}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("source"), settings=SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {**SETTINGS, "REGION": "eu-west-1", "ACCOUNT": "111122223333"}
    with Server(tmp_path_factory.mktemp("target"), settings=settings) as running:
        running.region = "eu-west-1"
        yield running


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def exported(source: Server, path: Path, name: str, *more: str) -> list[dict[str, Any]]:
    done = holdfast(source, "export", name, "--file", path, *more)
    assert done.code == 0, done.err
    return lines(path)


# --- round trip
# ------------------------------------------------------------------------------------------------


def test_a_standard_queue_arrives_as_it_was(source: Server, target: Server, tmp_path: Path) -> None:
    there = source.client()
    dead_arn = "arn:aws:sqs:us-east-1:000000000000:dead"
    allow = {"redrivePermission": "byQueue", "sourceQueueArns": ["arn:aws:sqs:us-east-1:000000000000:work"]}
    attributes = {"MessageRetentionPeriod": "1209600", "RedriveAllowPolicy": json.dumps(allow)}
    there.create_queue(QueueName="dead", Attributes=attributes)
    policy = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "us",
                "Effect": "Allow",
                "Principal": {"AWS": ["arn:aws:iam::000000000000:user/sender", "arn:aws:iam::999988887777:root"]},
                "Action": "sqs:SendMessage",
                "Resource": "arn:aws:sqs:us-east-1:000000000000:work",
            }
        ],
    }
    attributes = {
        "VisibilityTimeout": "120",
        "DelaySeconds": "0",
        "HoldfastMaximumMessages": "5000",
        "RedrivePolicy": json.dumps({"deadLetterTargetArn": dead_arn, "maxReceiveCount": 3}),
        "Policy": json.dumps(policy),
    }
    url = there.create_queue(QueueName="work", Attributes=attributes, tags={"team": "shop", "tür": "zu"})["QueueUrl"]
    value = {
        "binary": {"DataType": "Binary.png", "BinaryValue": BINARY},
        "number": {"DataType": "Number", "StringValue": "-1.5e3"},
    }
    entries: list[dict[str, Any]] = [
        {"MessageBody": f'{place} \n\t"ü🚀\\', "MessageAttributes": value, "MessageSystemAttributes": TRACE}
        for place in range(25)
    ]
    entries += [{"MessageBody": "of a group", "MessageGroupId": "tenant-7"}]
    entries += [{"MessageBody": "x" * 1_000_000}]
    send(there, "work", entries)
    send(there, "work", [{"MessageBody": "later", "DelaySeconds": 600}])
    (claimed,) = there.receive_message(QueueUrl=url, VisibilityTimeout=600)["Messages"]

    path = tmp_path / "work.jsonl"
    first, *messages, end = exported(source, path, "work")
    assert (first["type"], first["version"], first["dead_letter_queue"]) == ("queue", 1, "dead")
    assert end == {"type": "end", "messages": 28, "unreadable": 0}
    assert [one["state"] for one in messages].count("in_flight") == 1
    in_flight = next(one for one in messages if one["state"] == "in_flight")
    assert (in_flight["id"], in_flight["receives"]) == (claimed["MessageId"], 1)
    delayed = messages[-1]
    assert delayed["state"] == "delayed"
    assert 0 < delayed["due"] - delayed["sent"] <= 600
    assert "28 messages of queue work" in holdfast(source, "export", "work", "--file", tmp_path / "again.jsonl").err

    dead = tmp_path / "dead.jsonl"
    exported(source, dead, "dead")
    alone = holdfast(target, "import", "file", path)
    assert (alone.code, "which is neither there nor imported with it" in alone.err) == (1, True)
    dry = holdfast(target, "import", "file", path, dead, "--dry-run", "--json")
    assert dry.json["queues"]["work"]["action"] == "create"
    assert any("999988887777:root, which stays" in note for note in dry.json["queues"]["work"]["notes"])
    assert any("1 messages were in flight" in note for note in dry.json["queues"]["work"]["notes"])
    assert not holdfast(target, "queue", "list", "--json").json["queues"]

    done = holdfast(target, "import", "file", path, dead)
    assert done.code == 0, done.err
    assert "28 messages are in queue work." in done.out

    shown = holdfast(target, "queue", "show", "work", "--json").json
    assert shown["tags"] == {"team": "shop", "tür": "zu"}
    assert shown["messages"]["delayed"] == 1
    redrive = json.loads(shown["attributes"]["RedrivePolicy"])
    assert redrive["deadLetterTargetArn"] == "arn:aws:sqs:eu-west-1:111122223333:dead"
    (statement,) = json.loads(shown["attributes"]["Policy"])["Statement"]
    assert statement["Resource"] == "arn:aws:sqs:eu-west-1:111122223333:work"
    assert sorted(statement["Principal"]["AWS"]) == [
        "arn:aws:iam::111122223333:user/sender",
        "arn:aws:iam::999988887777:root",
    ]
    assert (shown["attributes"]["VisibilityTimeout"], shown["attributes"]["HoldfastMaximumMessages"]) == ("120", "5000")
    dead_letters = holdfast(target, "queue", "show", "dead", "--json").json["attributes"]
    assert json.loads(dead_letters["RedriveAllowPolicy"]) == {
        "redrivePermission": "byQueue",
        "sourceQueueArns": ["arn:aws:sqs:eu-west-1:111122223333:work"],
    }
    here = target.client()
    got = drained(here, "work")
    there.change_message_visibility(QueueUrl=url, ReceiptHandle=claimed["ReceiptHandle"], VisibilityTimeout=0)
    assert sorted(map(essence, got)) == sorted(map(essence, drained(there, "work")))
    assert len(got) == 27


def test_a_fifo_queue_keeps_its_groups_their_order_and_its_ids(source: Server, target: Server, tmp_path: Path) -> None:
    there, name = source.client(), "steps.fifo"
    there.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})
    send(
        there,
        name,
        [
            {"MessageBody": f"{place}", "MessageGroupId": f"g{place % 7}", "MessageDeduplicationId": f"d{place}"}
            for place in range(95)
        ],
    )
    path = tmp_path / "steps.jsonl"
    _, *messages, _ = exported(source, path, name)
    assert [one["body"] for one in messages] == [str(place) for place in range(95)]
    assert sorted(one["sequence_number"] for one in messages) == [one["sequence_number"] for one in messages]
    done = holdfast(target, "import", "file", path, "--json")
    assert done.json == {"queues": {name: {"messages": 95}}}
    got = [essence(one, fifo=True) for one in drained(target.client(), name)]
    for group in range(7):
        of_group = [(body, id_) for body, _, named, _, id_ in got if named == f"g{group}"]
        assert of_group == [(str(place), f"d{place}") for place in range(group, 95, 7)]


def test_twins_that_were_sent_far_apart_both_arrive(source: Server, target: Server, tmp_path: Path) -> None:
    """The same deduplication id, of an old message and of a recent one."""
    name = "twins.fifo"
    source.client().create_queue(QueueName=name, Attributes={"FifoQueue": "true"})
    path = tmp_path / "twins.jsonl"
    first, end = exported(source, path, name)
    more = [
        {"type": "message", "body": body, "group": "g", "deduplication_id": id_}
        for body, id_ in (("a", "one"), ("b", "two"), ("c", "one"), ("d", "one"), ("e", "three"))
    ]
    end["messages"] = 5
    path.write_text("".join(json.dumps(line) + "\n" for line in (first, *more, end)))
    assert holdfast(target, "import", "file", path).code == 0
    got = drained(target.client(), name)
    assert [one["Body"] for one in got] == ["a", "b", "c", "d", "e"]
    assert [one["Attributes"]["MessageDeduplicationId"] for one in got[:2]] == ["one", "two"]


def test_standard_output_and_what_is_there_already(source: Server, tmp_path: Path) -> None:
    source.client().create_queue(QueueName="plain")
    send(source.client(), "plain", [{"MessageBody": "m"}])
    done = holdfast(source, "export", "plain")
    assert [json.loads(line)["type"] for line in done.out.splitlines()] == ["queue", "message", "end"]
    path = tmp_path / "plain.jsonl"
    path.write_text("mine")
    refused = holdfast(source, "export", "plain", "--file", path)
    assert (refused.code, path.read_text(), "is there already" in refused.err) == (1, "mine", True)
    assert holdfast(source, "export", "none", "--file", tmp_path / "none").code == 3
    assert holdfast(source, "export", "plain", "--file", tmp_path / "no" / "folder").code == 1
    assert [one.name for one in tmp_path.iterdir()] == ["plain.jsonl"]
    assert [one["type"] for one in exported(source, tmp_path / "d", "plain", "--definition-only")] == ["queue", "end"]


def test_what_cannot_be_read_has_its_line_and_its_exit_code(source: Server, target: Server, tmp_path: Path) -> None:
    source.client().create_queue(QueueName="rotten")
    send(source.client(), "rotten", [{"MessageBody": f"{place}"} for place in range(8)])
    path, call = tmp_path / "rotten.jsonl", RestClient.call

    def rotten(self: RestClient, method: str, *parts: str, **more: Any) -> Any:
        answer = call(self, method, *parts, **more)
        for one in answer.get("messages", ()) if parts[-1] == "export" else ():
            one["body"] = None if one["body"] == "4" else one["body"]
        return answer

    with mock.patch.object(RestClient, "call", rotten), mock.patch("holdfast.migrate.export._PAGE", 3):
        done = holdfast(source, "export", "rotten", "--file", path)
    assert done.code == 1
    assert "1 messages of queue rotten could not be read" in done.err
    assert [one.get("body", one["type"]) for one in lines(path)[1:-1]] == [*"0123", "unreadable", *"567"]
    assert lines(path)[-1] == {"type": "end", "messages": 7, "unreadable": 1}
    dry = holdfast(target, "import", "file", path, "--dry-run", "--json").json["queues"]["rotten"]
    assert dry["messages"] == 7
    assert any("1 messages could not be read" in note for note in dry["notes"])


# --- existing queues
# -------------------------------------------------------------------------------------------


def test_a_queue_that_is_another_is_told_and_needs_a_flag(source: Server, target: Server, tmp_path: Path) -> None:
    source.client().create_queue(QueueName="same", Attributes={"VisibilityTimeout": "77"}, tags={"a": "1"})
    here = target.client()
    url = here.create_queue(QueueName="same", Attributes={"DelaySeconds": "9"}, tags={"b": "2"})["QueueUrl"]
    path = tmp_path / "same.jsonl"
    exported(source, path, "same")
    refused = holdfast(target, "import", "file", path)
    assert refused.code == 1
    for told in ("VisibilityTimeout is 30, not 77", "DelaySeconds is 9, not 0", "the tag b is 2, not not set"):
        assert told in refused.err
    assert holdfast(target, "import", "file", path, "--existing", "keep").code == 0
    assert here.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]["DelaySeconds"] == "9"
    assert holdfast(target, "import", "file", path, "--existing", "update").code == 0
    attributes = here.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert (attributes["DelaySeconds"], attributes["VisibilityTimeout"]) == ("0", "77")
    assert here.list_queue_tags(QueueUrl=url)["Tags"] == {"a": "1"}
    assert holdfast(target, "import", "file", path, "--progress", tmp_path / "fresh").code == 0
    several = holdfast(target, "import", "file", path, path, "--progress", tmp_path / "one")
    assert (several.code, "--progress is for one file" in several.err) == (2, True)


# --- interruption
# ----------------------------------------------------------------------------------------------


def test_an_import_that_is_killed_goes_on_and_stores_nothing_twice(
    source: Server, target: Server, tmp_path: Path
) -> None:
    name = "killed.fifo"
    source.client().create_queue(QueueName=name, Attributes={"FifoQueue": "true"})
    path = tmp_path / "killed.jsonl"
    first, end = exported(source, path, name)
    count = 3_000
    end["messages"] = count
    with path.open("w") as file:
        file.write(json.dumps(first) + "\n")
        for place in range(count):
            message = {"body": f"{place}", "group": f"g{place % 3}", "deduplication_id": f"d{place}"}
            file.write(json.dumps({"type": "message", **message}) + "\n")
        file.write(json.dumps(end) + "\n")
    for most in (300, 900):
        _killed(target, path, lambda most=most: len(_progress(path)) > most / 5)  # type: ignore[misc]
    assert holdfast(target, "import", "file", path, "--json").json == {"queues": {name: {"messages": count}}}
    again = holdfast(target, "import", "file", path, "--json")
    assert again.json == {"queues": {name: {"messages": count}}}, "there was nothing left to do"
    got = [one["Body"] for one in drained(target.client(), name)]
    assert len(got) == count
    for group in range(3):
        assert [body for body in got if int(body) % 3 == group] == [str(place) for place in range(group, count, 3)]


def test_a_standard_queue_gets_a_batch_in_doubt_once(source: Server, target: Server, tmp_path: Path) -> None:
    """The answer is lost, and the process killed: the batch is stored, and the next run does not know it."""
    source.client().create_queue(QueueName="doubt")
    send(source.client(), "doubt", [{"MessageBody": f"{place}"} for place in range(35)])
    path = tmp_path / "doubt.jsonl"
    exported(source, path, "doubt")
    assert holdfast(target, "import", "file", path).code == 0
    progress = path.with_name("doubt.jsonl.progress")
    header, *entries = progress.read_text().splitlines(keepends=True)
    assert [json.loads(one)["type"] for one in entries] == ["sending", "sent"] * 4
    for kept in (3, 1, 0, 7):
        progress.write_text("".join([header, *entries[:kept]]) + ('{"type":"sen' if kept else ""))
        assert holdfast(target, "import", "file", path).code == 0
    assert sorted(int(one["Body"]) for one in drained(target.client(), "doubt")) == list(range(35))


def _progress(path: Path) -> list[str]:
    try:
        return path.with_name(f"{path.name}.progress").read_text().splitlines()
    except FileNotFoundError:
        return []


def _killed(target: Server, path: Path, when: Callable[[], bool]) -> None:
    process = started(target, "import", "file", path)
    try:
        wait_until(lambda: when() or process.poll() is not None, "the import is under way")
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()


# --- hostile files ---------------------------------------------------------------------------------------------


MESSAGE = {"type": "message", "body": "m"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda good: b"", "is empty"),
        (lambda good: b"\n", "line 1: "),
        (lambda good: b"\x00\xff\xfe", "line 1: it was cut off"),
        (lambda good: good[0], "line 1: the end is missing"),
        (lambda good: good[1] + good[0], "line 1: it has to be the queue's"),
        (lambda good: good[0].replace(b'"version":1', b'"version":2') + good[2], "has version 2 of the form"),
        (lambda good: good[0].replace(b"arn:aws:sqs", b"arn:aws:sns") + good[2], "is not the ARN of a queue"),
        (lambda good: good[0].replace(b'"DelaySeconds"', b'"DelaySecond"') + good[2], "no attributes DelaySecond"),
        (lambda good: good[0] + good[1], "line 2: the end is missing"),
        (lambda good: good[0] + good[1] + good[2][:-1], "line 3: it was cut off"),
        (lambda good: good[0] + good[1] * 2 + good[2], "line 4: by the end there are 1 messages"),
        (lambda good: good[0] + good[1] + good[2] + good[1], "line 4: it is after the end line"),
        (lambda good: good[0] * 2 + good[2], "line 2: only the first line can be a queue"),
        (lambda good: good[0] + b'{"type":"message","bdy":"m"}\n' + good[2], "unknown field `bdy`"),
        (lambda good: good[0] + b'{"type":"message","body":7}\n' + good[2], "line 2: Expected `str`, got `int`"),
        (lambda good: good[0] + b'{"type":"message","body":""}\n' + good[2], "line 2: its body is empty"),
        (lambda good: good[0] + b'{"type":"message","body":"\\u0000"}\n' + good[2], "line 2: "),
        (lambda good: good[0] + b'{"type":"message","body":"\\ud800"}\n' + good[2], "line 2: "),
        (lambda good: good[0] + b'{"type":"' + b"m" * 9_000_000 + b'"}\n' + good[2], "longer than 8 MiB"),
        (lambda good: good[0] + b"[" * 100_000 + b"\n" + good[2], "line 2: "),
        (lambda good: good[0] + _with_attributes(a=("Binary", "no base64!")) + good[2], "'a' is not base64"),
        (lambda good: good[0] + _with_attributes(a=("Number", "seven")) + good[2], "line 2: Can't cast"),
        (lambda good: good[0] + _with_attributes(a=("Strange", "x")) + good[2], "line 2: The type of message"),
        (lambda good: good[0] + _message(body="x" * 1_048_577) + good[2], "1048577 bytes, and the queue takes 1048576"),
        (lambda good: good[0] + _message(state="delayed", due=time.time() + 90_000) + good[2], "DelaySeconds must be"),
        (lambda good: good[0] + _message(deduplication_id="not here \n") + good[2], "MessageDeduplicationId"),
    ],
)
def test_a_bad_file_is_told_with_its_line_and_changes_nothing(
    target: Server, tmp_path: Path, change: Callable[[list[bytes]], bytes], told: str
) -> None:
    heading = {
        "type": "queue",
        "version": 1,
        "name": "hostile",
        "arn": "arn:aws:sqs:us-east-1:000000000000:hostile",
        "attributes": {"DelaySeconds": "0"},
        "tags": {},
        "dead_letter_queue": None,
        "exported": "2026-11-22T00:00:00Z",
    }
    end = {"type": "end", "messages": 1, "unreadable": 0}
    good = [json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in (heading, MESSAGE, end)]
    path = tmp_path / "hostile.jsonl"
    path.write_bytes(change(good))
    refused = holdfast(target, "import", "file", path)
    assert refused.code == 1, refused.out
    assert told in refused.err
    assert "Traceback" not in refused.err
    assert [one.name for one in tmp_path.iterdir()] == ["hostile.jsonl"]
    assert "QueueUrls" not in target.client().list_queues(QueueNamePrefix="hostile")


def _message(**members: Any) -> bytes:
    return json.dumps({**MESSAGE, **members}).encode() + b"\n"


def _with_attributes(**values: tuple[str, str]) -> bytes:
    return _message(attributes={name: {"type": type_, "value": value} for name, (type_, value) in values.items()})
