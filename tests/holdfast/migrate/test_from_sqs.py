"""Import from another SQS server: a real one, over HTTP, with messages; killed and started again."""

from __future__ import annotations

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
from tests.holdfast.migrate.sides import CommandResult, drained, essence, holdfast, plainly, send, started
from tests.holdfast.other_sqs import ACCOUNT, KEYS, REGION, OtherSqs
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
    return holdfast(target, "import", "sqs", *where(source, prefix), *arguments, more=keys(source))


def drain(progress: Path) -> tuple[str | Path, ...]:
    return ("--drain", "--yes", "--settle", "0", "--visibility", "5", "--workers", "2", "--progress", progress)


# --- definitions -----------------------------------------------------------------------------------------------


def test_definitions_come_with_their_tags_policies_and_dead_letter_ties(other: OtherSqs, target: Server) -> None:
    there = other.client()
    there.create_queue(QueueName="def-dead")
    policy = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "one",
                "Effect": "Allow",
                "Principal": {"AWS": [f"arn:aws:iam::{ACCOUNT}:root", "arn:aws:iam::555566667777:root"]},
                "Action": "sqs:SendMessage",
                "Resource": other.arn("def-work"),
            }
        ],
    }
    redrive = {"deadLetterTargetArn": other.arn("def-dead"), "maxReceiveCount": "4"}
    attributes = {"VisibilityTimeout": "61", "Policy": json.dumps(policy), "RedrivePolicy": json.dumps(redrive)}
    there.create_queue(QueueName="def-work", Attributes=attributes, tags={"team": "shop"})
    there.create_queue(QueueName="def-f.fifo", Attributes={"FifoQueue": "true", "ContentBasedDeduplication": "true"})
    there.create_queue(QueueName="def-kms", Attributes={"KmsMasterKeyId": "arn:aws:kms:eu-central-1:1:key/2"})
    send(there, "def-work", [{"MessageBody": "stays"}])

    dry = brought(target, other, "def-", "--dry-run", "--json").json
    assert {name: queue["action"] for name, queue in dry["queues"].items()} == dict.fromkeys(
        ("def-dead", "def-f.fifo", "def-kms", "def-work"), "create"
    )
    assert "its policy names arn:aws:iam::555566667777:root, which stays as it is" in dry["queues"]["def-work"]["notes"]
    assert dry["queues"]["def-kms"]["notes"] == [
        "the KMS key arn:aws:kms:eu-central-1:1:key/2: only its name comes along, for a data key of this service"
    ]
    assert dry["queues"]["def-work"]["messages"] == 1
    nobody = brought(target, other, "def-")
    assert (nobody.code, "add --yes" in nobody.err) == (2, True)
    assert not holdfast(target, "queue", "list", "--prefix", "def-", "--json").json["queues"]

    done = brought(target, other, "def-", "--yes")
    assert done.code == 0, done.err
    assert "def-work" in done.out
    work = holdfast(target, "queue", "show", "def-work", "--json").json
    keyed = holdfast(target, "queue", "show", "def-kms", "--json").json["attributes"]
    assert keyed["KmsMasterKeyId"] == "arn:aws:kms:eu-central-1:1:key/2"
    ours = f"arn:aws:sqs:us-east-1:{target.account}:"
    assert json.loads(work["attributes"]["RedrivePolicy"]) == {
        "deadLetterTargetArn": f"{ours}def-dead",
        "maxReceiveCount": 4,
    }
    (statement,) = json.loads(work["attributes"]["Policy"])["Statement"]
    assert statement["Resource"] == f"{ours}def-work"
    assert sorted(statement["Principal"]["AWS"]) == [
        f"arn:aws:iam::{target.account}:root",
        "arn:aws:iam::555566667777:root",
    ]
    assert (work["attributes"]["VisibilityTimeout"], work["tags"]) == ("61", {"team": "shop"})
    fifo = holdfast(target, "queue", "show", "def-f.fifo", "--json").json["attributes"]
    assert (fifo["FifoQueue"], fifo["ContentBasedDeduplication"]) == ("true", "true")
    assert other.left("def-work") == 1

    again = brought(target, other, "def-", "--yes", "--json").json
    assert {queue["action"] for queue in again["queues"].values()} == {"use"}
    assert not any(queue["differences"] for queue in again["queues"].values())
    target.client().set_queue_attributes(
        QueueUrl=target.client().get_queue_url(QueueName="def-work")["QueueUrl"], Attributes={"VisibilityTimeout": "5"}
    )
    refused = brought(target, other, "def-work", "--yes")
    assert (refused.code, "VisibilityTimeout is 5, not 61" in refused.err) == (1, True)


def test_a_dead_letter_queue_that_is_not_among_them_is_told(other: OtherSqs, target: Server) -> None:
    there = other.client()
    there.create_queue(QueueName="elsewhere-dead")
    redrive = {"deadLetterTargetArn": other.arn("elsewhere-dead"), "maxReceiveCount": "4"}
    there.create_queue(QueueName="lonely", Attributes={"RedrivePolicy": json.dumps(redrive)})
    done = brought(target, other, "lonely", "--yes", "--json").json
    assert any("elsewhere-dead is neither there nor among these" in note for note in done["queues"]["lonely"]["notes"])
    assert "RedrivePolicy" not in holdfast(target, "queue", "show", "lonely", "--json").json["attributes"]


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
    send(there, "move", entries(45))
    expected = sorted(f"{place} ü" for place in range(45))
    done = brought(target, other, "move", *drain(tmp_path), "--json")
    assert done.code == 0, done.err
    assert done.json["queues"]["move"]["moved"] == 45
    assert other.left("move") == 0
    got = drained(target.client(), "move")
    assert sorted(one["Body"] for one in got) == expected
    assert essence(got[0])[1] == [
        ("binary", ("Binary", None, b"\x00\xff")),
        ("text", ("String.json", '{"ü": 1}', None)),
    ]


def test_groups_of_a_standard_queue_trace_headers_and_what_is_delayed_come_too(
    strict: Server, target: Server, tmp_path: Path
) -> None:
    there = strict.client()
    url = there.create_queue(QueueName="fair", Attributes={"DelaySeconds": "2"})["QueueUrl"]
    send(there, "fair", [{"MessageBody": "delayed", "MessageGroupId": "tenant-7", "MessageSystemAttributes": TRACE}])
    send(there, "fair", [{"MessageBody": "claimed", "DelaySeconds": 0}])
    (claimed,) = there.receive_message(QueueUrl=url, VisibilityTimeout=3)["Messages"]
    assert claimed["Body"] == "claimed"
    done = brought(target, strict, "fair", *drain(tmp_path))
    assert done.code == 0, done.err
    got = sorted(map(essence, drained(target.client(), "fair")))
    assert got == [
        ("claimed", [], None, None),
        ("delayed", [], "tenant-7", TRACE["AWSTraceHeader"]["StringValue"]),
    ], "neither waits once more for the queue's delay"


def test_what_cannot_be_stored_here_stays_and_is_told(other: OtherSqs, target: Server, tmp_path: Path) -> None:
    there, here = other.client(), target.client()
    there.create_queue(QueueName="large")
    here.create_queue(QueueName="large", Attributes={"MaximumMessageSize": "1024"})
    send(there, "large", [{"MessageBody": "x" * 2_000}, {"MessageBody": "small"}])
    done = brought(target, other, "large", *drain(tmp_path), "--existing", "keep")
    assert done.code == 1
    assert "it has 2000 bytes, and the queue takes 1024 at most" in done.err
    assert [one["Body"] for one in drained(here, "large")] == ["small"]
    assert other.left("large") == 1


def test_a_fifo_message_that_cannot_be_stored_is_not_overtaken(other: OtherSqs, target: Server, tmp_path: Path) -> None:
    there, here, name = other.client(), target.client(), "large.fifo"
    there.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})
    here.create_queue(QueueName=name, Attributes={"FifoQueue": "true", "MaximumMessageSize": "1024"})
    bodies = ["first", "x" * 2_000, "third"]
    send(
        there,
        name,
        [
            {"MessageBody": body, "MessageGroupId": "g", "MessageDeduplicationId": str(place)}
            for place, body in enumerate(bodies)
        ],
    )
    done = brought(target, other, name, *drain(tmp_path), "--existing", "keep")
    assert done.code == 1
    assert "cannot be forwarded: it has 2000 bytes" in done.err
    assert [one["Body"] for one in drained(here, name)] == ["first"]
    assert other.left(name) == 2


def test_an_import_that_was_cut_off_before_queues_were_tied_says_how_to_go_on(other: OtherSqs, target: Server) -> None:
    there, here = other.client(), target.client()
    there.create_queue(QueueName="half-dead")
    redrive = json.dumps({"deadLetterTargetArn": other.arn("half-dead"), "maxReceiveCount": "4"})
    there.create_queue(QueueName="half-work", Attributes={"RedrivePolicy": redrive, "DelaySeconds": "3"})
    with mock.patch.object(TargetService, "_set", side_effect=CommandFailed("cut off")):
        assert brought(target, other, "half-", "--yes").err.endswith("cut off\n")
    again = brought(target, other, "half-", "--yes")
    assert again.code == 1
    (told,) = (line for line in again.err.splitlines() if "is there, and is another" in line)
    assert "queue half-work is there" in told
    assert told.endswith("as where an import was cut off: if it was one, --existing update ends it")
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
    process = started(target, "import", "sqs", *where(source, name), *drain(progress), more=keys(source))
    try:
        wait_until(lambda: _here(target, name) >= when or process.poll() is not None, "some messages are here")
        os.kill(target.pid, signal.SIGSTOP)
        wait_until(lambda: _is_sending(progress / f"{name}.jsonl"), "messages are being sent")
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
    if not any(url.endswith(f"/{name}") for url in client.list_queues(QueueNamePrefix=name).get("QueueUrls", ())):
        return 0
    url = client.get_queue_url(QueueName=name)["QueueUrl"]
    names = ["ApproximateNumberOfMessages"]
    return int(client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"][names[0]])


def test_a_drain_that_is_killed_loses_none_and_doubles_none(other: OtherSqs, target: Server, tmp_path: Path) -> None:
    there = other.client()
    there.create_queue(QueueName="killed")
    send(there, "killed", entries(200))
    for when in (30, 100):
        killed(target, other, "killed", tmp_path, when)
    assert 0 < other.left("killed") < 200
    done = brought(target, other, "killed", *drain(tmp_path))
    assert done.code == 0, done.err
    assert other.left("killed") == 0
    assert sorted(one["Body"] for one in drained(target.client(), "killed")) == sorted(f"{n} ü" for n in range(200))


@pytest.mark.parametrize(
    ("name", "groups", "count"),
    [
        # At the end of a visibility timeout this server delivers the latest of a group's messages in flight.  At most
        # one message may be out of order; if a timeout ends while the import is slow, the next one may have been
        # delivered before.
        ("other", 15, 150),
        ("strict", 4, 1_500),
    ],
)
def test_a_fifo_drain_that_is_killed_keeps_the_order(
    name: str, groups: int, count: int, target: Server, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source: OtherSqs | Server = request.getfixturevalue(name)
    there, queue = source.client(), f"killed-{name}.fifo"
    there.create_queue(QueueName=queue, Attributes={"FifoQueue": "true"})
    sent = [
        {"MessageBody": f"{place}", "MessageGroupId": f"g{place % groups}", "MessageDeduplicationId": f"d{place}"}
        for place in range(count)
    ]
    send(there, queue, sent)
    for when in (20, 70):
        killed(target, source, queue, tmp_path, when)
    done = brought(target, source, queue, *drain(tmp_path))
    assert done.code == 0, done.err
    assert [_count(there, queue, state) for state in ("", "NotVisible")] == [0, 0]
    got = drained(target.client(), queue)
    assert len(got) == count
    for group in range(groups):
        of_group = [one for one in got if one["Attributes"]["MessageGroupId"] == f"g{group}"]
        order = [int(one["Body"]) for one in of_group]
        assert (order if name == "strict" else sorted(order)) == list(range(group, count, groups))
        assert all(one["Attributes"]["MessageDeduplicationId"] == f"d{one['Body']}" for one in of_group)


def test_following_goes_on_until_it_is_told_to_end(strict: Server, target: Server, tmp_path: Path) -> None:
    there = strict.client()
    there.create_queue(QueueName="follow")
    arguments = [*where(strict, "follow"), *drain(tmp_path), "--follow"]
    process = started(target, "import", "sqs", *arguments, more=keys(strict))
    try:
        for count in (1, 2):
            send(there, "follow", [{"MessageBody": f"{count}"}])
            wait_until(lambda count=count: _here(target, "follow") == count, "it is here")  # type: ignore[misc]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert sorted(one["Body"] for one in drained(target.client(), "follow")) == ["1", "2"]
    assert [_count(there, "follow", state) for state in ("", "NotVisible")] == [0, 0]


@pytest.mark.parametrize("again", [True, False], ids=["with its progress", "without"])
def test_a_source_that_was_begun_anew_has_messages_of_its_own(target: Server, tmp_path: Path, again: bool) -> None:
    """Another service of the same name uses the same message ids, but none is taken for a repetition."""
    name = f"renewed-{again}"
    source = Server(tmp_path, settings={"SEGMENT_BYTES": str(1 << 22)})
    for life in range(2):
        source.data = tmp_path / f"data of life {life}"
        with source:
            there = source.client()
            there.create_queue(QueueName=name)
            send(there, name, [{"MessageBody": "the same"} for _ in range(3)])
            done = brought(target, source, name, *drain(tmp_path / f"progress {0 if again else life}"), "--json")
            assert done.code == 0, done.err
            assert _count(there, name, "") == 0
        assert _here(target, name) == 3 * (life + 1)


# --- invalid requests
# ------------------------------------------------------------------------------------------


def test_the_service_itself_is_no_source(target: Server) -> None:
    done = brought(target, target, "", "--dry-run")
    assert (done.code, "is the service itself" in done.err) == (2, True)


def test_the_keys_of_the_source_do_not_sign_in_here(other: OtherSqs, target: Server) -> None:
    arguments = ["import", "sqs", *where(other, ""), "--endpoint", target.endpoint]
    with mock.patch.dict("os.environ", KEYS):
        done = plainly(*arguments)
    assert (done.code, "nobody to sign in as" in done.err) == (2, True)


def test_what_is_wrong_with_the_source_is_told(other: OtherSqs, target: Server) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    with mock.patch.dict("os.environ", {"AWS_MAX_ATTEMPTS": "1"}):
        gone = holdfast(target, "import", "sqs", "--endpoint-url", nowhere, "--region", REGION, more=KEYS)
    assert (gone.code, "the source cannot be reached" in gone.err) == (5, True)
    assert brought(target, other, "no-such-queue").code == 3
    nobody = holdfast(target, "import", "sqs", *where(other, ""), more={"AWS_CONTAINER_CREDENTIALS_FULL_URI": ""})
    assert (nobody.code, "the source cannot be used" in nobody.err) == (2, True)
    with mock.patch.dict("sys.modules", {"boto3": None}):
        without = brought(target, other, "")
    assert (without.code, "pip install 'holdfast[import]'" in without.err) == (2, True)


def _count(client: Any, name: str, state: str) -> int:
    url = client.get_queue_url(QueueName=name)["QueueUrl"]
    asked = f"ApproximateNumberOfMessages{state}"
    return int(client.get_queue_attributes(QueueUrl=url, AttributeNames=[asked])["Attributes"][asked])
