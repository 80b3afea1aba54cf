"""Import from another SQS server: a real one, over HTTP, with messages; killed and started again."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from holdfast.commandline.client import CommandFailed
from holdfast.migrate.target import TargetService
from tests.holdfast.command import CommandResult, holdfast, started
from tests.holdfast.other_sqs import ACCOUNT, KEYS, REGION, OtherSqs
from tests.holdfast.queues import STATES, bodies, count, drained, essence, fifo_entries, send_all, sending_policy
from tests.holdfast.transcripts import ServiceShell, SqsShell, Transcript, TwoShells, cases_of, replay
from tests.servers.server import Server, free_port
from tests.servers.waiting import wait_until

TRACE = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988-bd862e3fe1be46a994272793"}}


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtherSqs]:
    with OtherSqs(tmp_path_factory.mktemp("other")) as running:
        yield running


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("target"), settings={"SEGMENT_BYTES": str(1 << 22)}) as running:
        yield running


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A source that keeps the order of a group also for redelivered messages."""
    with Server(tmp_path_factory.mktemp("strict"), settings={"SEGMENT_BYTES": str(1 << 22)}) as running:
        yield running


def where(source: OtherSqs | Server, prefix: str) -> list[str]:
    region = source.region if isinstance(source, Server) else REGION
    return ["--endpoint-url", source.endpoint, "--region", region, "--queue-prefix", prefix]


def keys(source: OtherSqs | Server) -> dict[str, str]:
    if isinstance(source, OtherSqs):
        return KEYS
    return {"AWS_ACCESS_KEY_ID": source.access_key_id, "AWS_SECRET_ACCESS_KEY": source.secret_access_key}


def brought(target: Server, source: OtherSqs | Server, prefix: str, *arguments: str | Path) -> CommandResult:
    return holdfast(target, "import", "sqs", *where(source, prefix), *arguments, environment=keys(source))


def left(source: OtherSqs, name: str) -> int:
    return count(source.client(), name, *STATES)


def drain(progress: Path) -> tuple[str | Path, ...]:
    return ("--drain", "--yes", "--settle", "0", "--visibility", "5", "--workers", "2", "--progress", progress)


@cases_of(__file__)
def test_transcript(other: OtherSqs, target: Server, tmp_path: Path, transcript: Transcript) -> None:
    policy = sending_policy(other.arn("def-work"), f"arn:aws:iam::{ACCOUNT}:root", "arn:aws:iam::555566667777:root")
    replay(
        transcript,
        TwoShells(there=SqsShell(other.client), here=ServiceShell(target, {**KEYS, "AWS_MAX_ATTEMPTS": "1"})),
        bring=" ".join(["holdfast import sqs", *where(other, "")]),
        arn=other.arn(""),
        large="x" * 2_000,
        drain=" ".join(map(str, drain(tmp_path))),
        policy=json.dumps(policy),
        nowhere=f"http://127.0.0.1:{free_port()}",
    )


# --- definitions -----------------------------------------------------------------------------------------------


def test_many_queues_are_listed_page_by_page(other: OtherSqs, target: Server) -> None:
    there = other.client()
    for place in range(7):
        there.create_queue(QueueName=f"page-{place}")
    with mock.patch("holdfast.migrate.source._PAGE", 3):
        queues = brought(target, other, "page-", "--dry-run", "--json").json["queues"]
    assert sorted(queues) == [f"page-{place}" for place in range(7)]


# --- messages --------------------------------------------------------------------------------------------------


def entries(count: int) -> list[dict[str, Any]]:
    value = {
        "binary": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        "text": {"DataType": "String.json", "StringValue": '{"ü": 1}'},
    }
    return [{"MessageBody": f"{place} ü", "MessageAttributes": value} for place in range(count)]


def test_messages_move_whole_and_are_gone_at_the_source(other: OtherSqs, target: Server, tmp_path: Path) -> None:
    there = other.client()
    there.create_queue(QueueName="move", Attributes={"DelaySeconds": "0"})
    send_all(there, "move", entries(45))
    expected = sorted(f"{place} ü" for place in range(45))
    done = brought(target, other, "move", *drain(tmp_path), "--json")
    assert done.code == 0, done.err
    assert done.json["queues"]["move"]["moved"] == 45
    assert left(other, "move") == 0
    got = drained(target.client(), "move")
    assert sorted(one["Body"] for one in got) == expected
    assert essence(got[0])[1] == [
        ("binary", ("Binary", None, b"\x00\xff")),
        ("text", ("String.json", '{"ü": 1}', None)),
    ]


def test_groups_trace_headers_and_delayed_messages_are_imported_too(
    strict: Server, target: Server, tmp_path: Path
) -> None:
    there = strict.client()
    url = there.create_queue(QueueName="fair", Attributes={"DelaySeconds": "2"})["QueueUrl"]
    send_all(
        there, "fair", [{"MessageBody": "delayed", "MessageGroupId": "tenant-7", "MessageSystemAttributes": TRACE}]
    )
    send_all(there, "fair", [{"MessageBody": "claimed", "DelaySeconds": 0}])
    (claimed,) = there.receive_message(QueueUrl=url, VisibilityTimeout=3)["Messages"]
    assert claimed["Body"] == "claimed"
    done = brought(target, strict, "fair", *drain(tmp_path))
    assert done.code == 0, done.err
    got = sorted(map(essence, drained(target.client(), "fair")))
    assert got == [("claimed", [], None, None), ("delayed", [], "tenant-7", TRACE["AWSTraceHeader"]["StringValue"])], (
        "neither waits once more for the queue's delay"
    )


def test_an_import_interrupted_before_redrive_policies_prints_how_to_continue(other: OtherSqs, target: Server) -> None:
    there, here = other.client(), target.client()
    there.create_queue(QueueName="half-dead")
    redrive = json.dumps({"deadLetterTargetArn": other.arn("half-dead"), "maxReceiveCount": "4"})
    there.create_queue(QueueName="half-work", Attributes={"RedrivePolicy": redrive, "DelaySeconds": "3"})
    with mock.patch.object(TargetService, "_set", side_effect=CommandFailed("cut off")):
        assert brought(target, other, "half-", "--yes").err.endswith("cut off\n")
    again = brought(target, other, "half-", "--yes")
    assert again.code == 1
    (line,) = (line for line in again.err.splitlines() if "exists and differs" in line)
    assert "queue half-work exists" in line
    assert line.endswith("as after an interrupted import: if it was one, complete it with --existing update")
    url = here.get_queue_url(QueueName="half-work")["QueueUrl"]
    here.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "4"})
    assert "cut off" not in brought(target, other, "half-", "--yes").err, "it is another queue"
    assert brought(target, other, "half-", "--yes", "--existing", "update").code == 0
    attributes = here.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert json.loads(attributes["RedrivePolicy"])["maxReceiveCount"] == 4
    assert attributes["DelaySeconds"] == "3"


# --- killed ----------------------------------------------------------------------------------------------------


def killed(target: Server, source: OtherSqs | Server, name: str, progress: Path, when: int) -> None:
    """Drain, and kill -9 the process when ``when`` messages are here and others are being sent.

    The service is suspended for a moment: messages sent then get no answer, and are stored nevertheless.
    """
    process = started(target, "import", "sqs", *where(source, name), *drain(progress), environment=keys(source))

    notes = progress / f"{name}.jsonl"

    def is_enough() -> bool:
        """Stop the process, so that it sends nothing more meanwhile, and count; it stays stopped at the end."""
        process.send_signal(signal.SIGSTOP)
        if _here(target, name) >= when or process.poll() is not None:
            return True
        noted = notes.stat().st_size
        process.send_signal(signal.SIGCONT)
        # However slow the counting is beside it, the process makes a step between two stops.
        wait_until(lambda: notes.stat().st_size > noted or process.poll() is not None, "the import has made a step")
        return False

    try:
        wait_until(lambda: _here(target, name) > 0 or process.poll() is not None, "a message is here")
        wait_until(is_enough, "some messages are here")
        os.kill(target.pid, signal.SIGSTOP)
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: _is_sending(notes), "messages are being sent")
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    finally:
        os.kill(target.pid, signal.SIGCONT)
        process.kill()
        process.wait()


def _is_sending(path: Path) -> bool:
    text = path.read_text()
    return text.count('"type":"sending"') > text.count('"type":"sent"')


def _here(target: Server, name: str) -> int:
    client = target.client()
    return count(client, name) if "QueueUrls" in client.list_queues(QueueNamePrefix=name) else 0


def test_a_drain_that_is_killed_loses_none_and_doubles_none(other: OtherSqs, target: Server, tmp_path: Path) -> None:
    there = other.client()
    there.create_queue(QueueName="killed")
    send_all(there, "killed", entries(200))
    for when in (30, 100):
        killed(target, other, "killed", tmp_path, when)
    assert 0 < left(other, "killed") < 200
    done = brought(target, other, "killed", *drain(tmp_path))
    assert done.code == 0, done.err
    assert left(other, "killed") == 0
    assert sorted(bodies(target.client(), "killed")) == sorted(f"{n} ü" for n in range(200))


@pytest.mark.parametrize(
    ("name", "groups", "total"),
    [
        # At the end of a visibility timeout this server delivers the latest of a group's messages in flight.  At most
        # one message may be out of order; if a timeout ends while the import is slow, the next one may have been
        # delivered before.
        ("other", 15, 150),
        ("strict", 4, 1_500),
    ],
)
def test_a_fifo_drain_that_is_killed_keeps_the_order(
    name: str, groups: int, total: int, target: Server, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source: OtherSqs | Server = request.getfixturevalue(name)
    there, queue = source.client(), f"killed-{name}.fifo"
    there.create_queue(QueueName=queue, Attributes={"FifoQueue": "true"})
    send_all(there, queue, fifo_entries(total, groups))
    for when in (20, 70):
        killed(target, source, queue, tmp_path, when)
    done = brought(target, source, queue, *drain(tmp_path))
    assert done.code == 0, done.err
    assert count(there, queue, "", "NotVisible") == 0
    got = drained(target.client(), queue)
    assert len(got) == total
    for group in range(groups):
        of_group = [one for one in got if one["Attributes"]["MessageGroupId"] == f"g{group}"]
        order = [int(one["Body"]) for one in of_group]
        assert (order if name == "strict" else sorted(order)) == list(range(group, total, groups))
        assert all(one["Attributes"]["MessageDeduplicationId"] == f"d{one['Body']}" for one in of_group)


def test_following_continues_until_it_is_stopped(strict: Server, target: Server, tmp_path: Path) -> None:
    there = strict.client()
    there.create_queue(QueueName="follow")
    arguments = [*where(strict, "follow"), *drain(tmp_path), "--follow"]
    process = started(target, "import", "sqs", *arguments, environment=keys(strict))
    try:
        for place in (1, 2):
            send_all(there, "follow", [{"MessageBody": f"{place}"}])
            wait_until(lambda place=place: _here(target, "follow") == place, "it is here")  # type: ignore[misc]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert sorted(bodies(target.client(), "follow")) == ["1", "2"]
    assert count(there, "follow", "", "NotVisible") == 0


@pytest.mark.parametrize("again", [True, False], ids=["with its progress", "without"])
def test_a_recreated_source_has_messages_of_its_own(target: Server, tmp_path: Path, again: bool) -> None:
    """Another service of the same name uses the same message ids, but none is taken for a repetition."""
    name = f"renewed-{again}"
    source = Server(tmp_path, settings={"SEGMENT_BYTES": str(1 << 22)})
    for life in range(2):
        source.data = tmp_path / f"data of life {life}"
        with source:
            there = source.client()
            there.create_queue(QueueName=name)
            send_all(there, name, [{"MessageBody": "the same"} for _ in range(3)])
            done = brought(target, source, name, *drain(tmp_path / f"progress {0 if again else life}"), "--json")
            assert done.code == 0, done.err
            assert count(there, name) == 0
        assert _here(target, name) == 3 * (life + 1)


# --- invalid requests


def test_the_service_itself_is_no_source(target: Server) -> None:
    done = brought(target, target, "", "--dry-run")
    assert (done.code, "is the service itself" in done.err) == (2, True)


def test_errors_of_the_source_are_reported(other: OtherSqs, target: Server) -> None:
    nobody = holdfast(
        target, "import", "sqs", *where(other, ""), environment={"AWS_CONTAINER_CREDENTIALS_FULL_URI": ""}
    )
    assert (nobody.code, "the source cannot be used" in nobody.err) == (2, True)
    with mock.patch.dict("sys.modules", {"boto3": None}):
        without = brought(target, other, "")
    assert (without.code, "pip install 'holdfast[import]'" in without.err) == (2, True)
