"""Export and import of files, between real services, each command as a separate process."""

import itertools
import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from holdfast.commandline.client import RestClient
from tests.holdfast.command import holdfast, started
from tests.holdfast.queues import bodies, drained, essence, fifo_entries, send_all, sending_policy
from tests.holdfast.transcripts import ServiceShell, Transcript, TwoShells, cases_of, replay
from tests.servers.server import Server
from tests.servers.waiting import wait_until
from tests.tables import beside, table

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


def without_date(definition: dict[str, Any]) -> dict[str, Any]:
    """A queue's definition with its policy parsed, and without the time of its export."""
    attributes = definition["attributes"]
    return {
        **definition,
        "exported": "",
        "attributes": attributes | {"Policy": json.loads(attributes.get("Policy", "0"))},
    }


@cases_of(__file__)
def test_transcript(source: Server, target: Server, tmp_path: Path, transcript: Transcript) -> None:
    replay(transcript, TwoShells(there=ServiceShell(source), here=ServiceShell(target)), folder=str(tmp_path))


# --- round trip


def test_a_standard_queue_arrives_as_it_was(source: Server, target: Server, tmp_path: Path) -> None:
    there = source.client()
    dead_arn = "arn:aws:sqs:us-east-1:000000000000:dead"
    allow = {"redrivePermission": "byQueue", "sourceQueueArns": ["arn:aws:sqs:us-east-1:000000000000:work"]}
    attributes = {"MessageRetentionPeriod": "1209600", "RedriveAllowPolicy": json.dumps(allow)}
    there.create_queue(QueueName="dead", Attributes=attributes)
    principals = ("arn:aws:iam::000000000000:user/sender", "arn:aws:iam::999988887777:root")
    attributes = {
        "VisibilityTimeout": "120",
        "DelaySeconds": "0",
        "HoldfastMaximumMessages": "5000",
        "RedrivePolicy": json.dumps({"deadLetterTargetArn": dead_arn, "maxReceiveCount": 3}),
        "Policy": sending_policy("arn:aws:sqs:us-east-1:000000000000:work", *principals),
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
    send_all(there, "work", entries)
    send_all(there, "work", [{"MessageBody": "later", "DelaySeconds": 600}])
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
    assert (alone.code, "which neither exists nor is imported with it" in alone.err) == (1, True)
    dry = holdfast(target, "import", "file", path, dead, "--dry-run", "--json")
    assert dry.json["queues"]["work"]["action"] == "create"
    assert any("999988887777:root, which is not changed" in note for note in dry.json["queues"]["work"]["notes"])
    assert any("1 messages were in flight" in note for note in dry.json["queues"]["work"]["notes"])
    assert "work" not in {one["name"] for one in holdfast(target, "queue", "list", "--json").json["queues"]}

    done = holdfast(target, "import", "file", path, dead)
    assert done.code == 0, done.err
    assert "28 messages are in queue work." in done.out

    assert holdfast(target, "queue", "show", "work", "--json").json["messages"]["delayed"] == 1
    for name, source_line in (("work", first), ("dead", lines(dead)[0])):
        (back, _) = exported(target, tmp_path / f"{name}.back", name, "--definition-only")
        wanted = json.dumps(source_line).replace("us-east-1:000000000000", "eu-west-1:111122223333")
        assert without_date(back) == without_date(json.loads(wanted.replace("iam::000000000000", "iam::111122223333")))
    here = target.client()
    got = drained(here, "work")
    there.change_message_visibility(QueueUrl=url, ReceiptHandle=claimed["ReceiptHandle"], VisibilityTimeout=0)
    assert sorted(map(essence, got)) == sorted(map(essence, drained(there, "work")))
    assert len(got) == 27


def test_a_fifo_queue_keeps_its_groups_their_order_and_its_ids(source: Server, target: Server, tmp_path: Path) -> None:
    there, name = source.client(), "steps.fifo"
    there.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})
    send_all(there, name, fifo_entries(95, groups=7))
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


def test_an_unreadable_message_has_its_line_and_its_exit_code(source: Server, target: Server, tmp_path: Path) -> None:
    source.client().create_queue(QueueName="rotten")
    send_all(source.client(), "rotten", [{"MessageBody": f"{place}"} for place in range(8)])
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


# --- interruption


def test_an_import_that_is_killed_continues_and_stores_nothing_twice(
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
    for messages_max in (300, 900):
        _killed(target, path, lambda messages_max=messages_max: len(_progress(path)) > messages_max / 5)  # type: ignore[misc]
    assert holdfast(target, "import", "file", path, "--json").json == {"queues": {name: {"messages": count}}}
    again = holdfast(target, "import", "file", path, "--json")
    assert again.json == {"queues": {name: {"messages": count}}}, "there was nothing left to do"
    got = bodies(target.client(), name)
    assert len(got) == count
    for group in range(3):
        assert [body for body in got if int(body) % 3 == group] == [str(place) for place in range(group, count, 3)]


def test_a_standard_queue_gets_a_batch_in_doubt_once(source: Server, target: Server, tmp_path: Path) -> None:
    """The answer is lost, and the process killed: the batch is stored, and the next run does not know it."""
    source.client().create_queue(QueueName="doubt")
    send_all(source.client(), "doubt", [{"MessageBody": f"{place}"} for place in range(35)])
    path = tmp_path / "doubt.jsonl"
    exported(source, path, "doubt")
    assert holdfast(target, "import", "file", path).code == 0
    progress = path.with_name("doubt.jsonl.progress")
    header, *entries = progress.read_text().splitlines(keepends=True)
    assert [json.loads(one)["type"] for one in entries] == ["sending", "sent"] * 4
    for kept in (3, 1, 0, 7):
        progress.write_text("".join([header, *entries[:kept]]) + ('{"type":"sen' if kept else ""))
        assert holdfast(target, "import", "file", path).code == 0
    assert sorted(map(int, bodies(target.client(), "doubt"))) == list(range(35))


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
GOOD = {
    name: json.dumps(line, separators=(",", ":"))
    for name, line in {
        "heading": table(__file__, "heading"),
        "message": MESSAGE,
        "end": {"type": "end", "messages": 1, "unreadable": 0},
    }.items()
}
HOSTILE = beside(__file__, "hostile.yaml")


def _between(line: dict[str, Any]) -> bytes:
    """A file with this message."""
    return _file(["heading", json.dumps({**MESSAGE, **line}), "end"])


def _file(content: list[str | dict[str, list[str]]]) -> bytes:
    """A file of lines as in hostile.yaml."""
    found = []
    for line in content:
        name, (old, new) = next(iter(line.items())) if isinstance(line, dict) else (line, ("", ""))
        found.append(GOOD.get(name, name).replace(old, new, 1) + "\n")
    return "".join(found).encode()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        *((_file(content), error) for content, error in HOSTILE),
        (b"\x00\xff\xfe", "line 1: it is incomplete"),
        (_file(["heading", "message", "end"])[:-1], "line 3: it is incomplete"),
        (_between({"type": "m" * 9_000_000}), "longer than 8 MiB"),
        (_file(["heading", "[" * 100_000, "end"]), "line 2: "),
        (_between({"body": "x" * 1_048_577}), "1048577 bytes, and the queue accepts at most 1048576"),
        (_between({"state": "delayed", "due": time.time() + 90_000}), "DelaySeconds must be"),
    ],
    ids=itertools.count(),
)
def test_a_bad_file_is_refused_by_its_line_and_changes_nothing(
    target: Server, tmp_path: Path, content: bytes, error: str
) -> None:
    path = tmp_path / "hostile.jsonl"
    path.write_bytes(content)
    refused = holdfast(target, "import", "file", path)
    assert refused.code == 1, refused.out
    assert error in refused.err
    assert "Traceback" not in refused.err
    assert [one.name for one in tmp_path.iterdir()] == ["hostile.jsonl"]
    assert "QueueUrls" not in target.client().list_queues(QueueNamePrefix="hostile")
