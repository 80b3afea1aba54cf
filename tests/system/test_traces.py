"""Path of a message as one trace: from its sender through frontend, backend and journal to its consumer.

The service runs in real processes, the collector in the test, and so do sender and consumer, whose own spans are made
by hand as OpenTelemetry's instrumentation of boto3 would.
"""

import hashlib
import json
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.holdfast.queues import redrive
from tests.servers.scraping import samples, scrape, total
from tests.servers.server import SECRET_ACCESS_KEY, Server, free_port
from tests.servers.several import Several
from tests.servers.waiting import wait_until
from tests.telemetry.collector import Collector, ReceivedSpan

BODY = "a body that nobody else needs to see"
SETTINGS = {"TRACE_RATIO": "0", "BACKENDS": "1", "LOG_FORMAT": "json"}


class Traced(Several):
    def __init__(self, folder: Path, collector: Collector, **settings: str) -> None:
        super().__init__(folder, {**SETTINGS, "TRACE_ENDPOINT": collector.endpoint, **settings}, frontends=1)
        self.settings["OTEL_BSP_SCHEDULE_DELAY"] = "50"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Traced]:
    with Traced(tmp_path_factory.mktemp("traced"), collector) as server:
        yield server


@pytest.fixture
def seen(server: Traced, collector: Collector) -> Collector:
    """Discard earlier spans, also those under way: those of a process arrive in the order of their ends."""
    trace, calls = new()
    sqs = server.client()
    url = sqs.create_queue(QueueName="between-tests")["QueueUrl"]
    sqs.receive_message(QueueUrl=url)  # makes the backend open the queue
    _Client(server, traceparent=parent(trace, calls)).sqs.receive_message(QueueUrl=url)
    both = {"SQS.ReceiveMessage", "backend.Receive"}
    wait_until(lambda: both <= {span.name for span in collector.spans if span.trace_id == trace}, "earlier spans")
    collector.spans.clear()
    return collector


@pytest.fixture
def url(server: Traced) -> str:
    sqs = server.client()
    made: str = sqs.create_queue(QueueName=f"q-{secrets.token_hex(4)}")["QueueUrl"]
    sqs.receive_message(QueueUrl=made)  # makes the backend open the queue
    return made


class _Client:
    """boto3 client whose calls have these headers."""

    def __init__(self, server: Server, **headers: str) -> None:
        self.sqs = server.client()
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.request_id = ""
        self.sqs.meta.events.register("before-send.sqs.*", lambda request, **_: request.headers.update(self.headers))

    def receive(self, url: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"], MessageAttributeNames=["All"]
        ).get("Messages", [])
        return found


def parent(trace: str, span: str, flags: str = "01") -> str:
    return f"00-{trace}-{span}-{flags}"


def new() -> tuple[str, str]:
    return secrets.token_hex(16), secrets.token_hex(8)


def unsigned(
    server: Server, method: str, path: str, headers: dict[str, str] | list[tuple[str, str]], body: str | None = None
) -> httpx.Response:
    """Make a request that is not signed."""
    with httpx.Client(trust_env=False, timeout=20) as client:
        return client.request(method, server.endpoint + path, headers=headers, content=body)


def one(seen: Collector, name: str, role: str) -> ReceivedSpan:
    """Return the only span of this name."""
    wait_until(lambda: seen.named(name), f"a span {name}")
    (found,) = seen.named(name)
    assert found.role == role
    return found


def test_one_trace_from_sender_to_consumer(server: Traced, seen: Collector, url: str) -> None:
    trace, sends = new()
    sender = _Client(server, traceparent=parent(trace, sends), tracestate="vendor=1")
    stored = sender.sqs.send_message(QueueUrl=url, MessageBody=BODY)
    send = one(seen, "SQS.SendMessage", "frontend")
    at_backend = one(seen, "backend.Send", "backend")
    commit = one(seen, "journal.commit", "backend")
    assert {span.trace_id for span in seen.spans} == {trace}
    assert [send.parent_id, at_backend.parent_id, commit.parent_id] == [sends, send.span_id, at_backend.span_id]
    assert {span.state for span in (send, at_backend, commit)} == {"vendor=1"}
    assert send.started_ns <= at_backend.started_ns <= commit.started_ns <= commit.ended_ns <= at_backend.ended_ns
    assert send.attributes == {
        "rpc.system": "aws-api",
        "rpc.service": "SQS",
        "rpc.method": "SendMessage",
        "aws.request_id": stored["ResponseMetadata"]["HTTPHeaders"]["x-amzn-requestid"],
        "http.response.status_code": 200,
        "holdfast.account": server.account,
        "messaging.system": "aws_sqs",
        "messaging.destination.name": url.rpartition("/")[2],
    }

    # The consumer starts its own trace, and continues the sender's for each message.
    own, receives = new()
    consumer = _Client(server, traceparent=parent(own, receives))
    (message,) = consumer.receive(url)
    header = message["Attributes"]["AWSTraceHeader"]
    assert header == f"Root=1-{trace[:8]}-{trace[8:]};Parent={send.span_id};Sampled=1"
    receive = one(seen, "SQS.ReceiveMessage", "frontend")
    assert (receive.trace_id, receive.parent_id) == (own, receives)
    assert receive.links == [(trace, send.span_id)]
    assert one(seen, "backend.Receive", "backend").parent_id == receive.span_id
    consumer.headers["traceparent"] = parent(trace, secrets.token_hex(8))
    consumer.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    delete = one(seen, "SQS.DeleteMessage", "frontend")
    assert delete.trace_id == trace
    assert one(seen, "backend.Delete", "backend").parent_id == delete.span_id
    for needle in (SECRET_ACCESS_KEY, BODY, message["ReceiptHandle"]):
        assert needle.encode() not in seen.raw


def test_unsampled_calls_leave_no_span(server: Traced, seen: Collector, url: str) -> None:
    trace, sends = new()
    for headers in ({}, {"traceparent": parent(trace, sends, "00")}):
        client = _Client(server, **headers)
        client.sqs.send_message(QueueUrl=url, MessageBody="quiet")
        assert len(client.receive(url)) == 1
    sampled = _Client(server, traceparent=parent(*new()))
    sampled.sqs.get_queue_attributes(QueueUrl=url)
    one(seen, "SQS.GetQueueAttributes", "frontend")
    assert {span.name for span in seen.spans} == {"SQS.GetQueueAttributes"}


def test_the_senders_own_attributes_stay_as_they_are(server: Traced, seen: Collector, url: str) -> None:
    trace, sends = new()
    trace_header = f"Root=1-{secrets.token_hex(4)}-{secrets.token_hex(12)};Parent={secrets.token_hex(8)};Sampled=0"
    client = _Client(server, traceparent=parent(trace, sends), X_Amzn_Trace_Id=trace_header)
    attributes = {"traceparent": {"DataType": "String", "StringValue": "the sender's own"}}
    system = {"AWSTraceHeader": {"DataType": "String", "StringValue": "anything"}}
    answer = client.sqs.send_message(
        QueueUrl=url, MessageBody="b", MessageAttributes=attributes, MessageSystemAttributes=system
    )
    (message,) = client.receive(url)
    assert message["Attributes"]["AWSTraceHeader"] == "anything"
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == answer["MD5OfMessageAttributes"]
    assert answer["MD5OfMessageSystemAttributes"] != hashlib.md5(trace_header.encode()).hexdigest()
    filled = client.sqs.send_message(QueueUrl=url, MessageBody="b")
    assert "MD5OfMessageSystemAttributes" not in filled, "the client has sent none"
    (message,) = client.receive(url)
    assert message["Attributes"]["AWSTraceHeader"] == trace_header, "as in SQS, this header goes on as it is"


def test_each_message_of_a_batch_and_a_dead_letter_carries_it(server: Traced, seen: Collector, url: str) -> None:
    trace, sends = new()
    sqs = server.client()
    dead = sqs.create_queue(QueueName=f"{url.rpartition('/')[2]}-dead")["QueueUrl"]
    dying_at_once = {"RedrivePolicy": redrive(sqs, dead), "VisibilityTimeout": "0"}
    sqs.set_queue_attributes(QueueUrl=url, Attributes=dying_at_once)
    own = "Root=1-11111111-222222222222222222222222"
    entries: list[dict[str, Any]] = [{"Id": str(number), "MessageBody": str(number)} for number in range(3)]
    entries[1]["MessageSystemAttributes"] = {"AWSTraceHeader": {"DataType": "String", "StringValue": own}}
    _Client(server, traceparent=parent(trace, sends)).sqs.send_message_batch(QueueUrl=url, Entries=entries)
    span = one(seen, "SQS.SendMessageBatch", "frontend")
    assert span.attributes["messaging.batch.message_count"] == 3
    ours = f"Root=1-{trace[:8]}-{trace[8:]};Parent={span.span_id};Sampled=1"

    def carried(found: list[dict[str, Any]]) -> dict[str, str]:
        return {message["Body"]: message["Attributes"]["AWSTraceHeader"] for message in found}

    reader = _Client(server)
    assert carried(reader.receive(url)) == {"0": ours, "1": own, "2": ours}
    dying: dict[str, str] = {}

    def all_dead() -> bool:
        reader.receive(url)
        dying.update(carried(reader.receive(dead)))
        return len(dying) == 3

    wait_until(all_dead, "all messages are dead letters")
    assert dying == {"0": ours, "1": own, "2": ours}


def test_an_unsampled_receive_is_linked_to_sampled_sends(server: Traced, seen: Collector, url: str) -> None:
    first, second = _Client(server, traceparent=parent(*new())), _Client(server)
    first.sqs.send_message(QueueUrl=url, MessageBody="a")
    second.sqs.send_message(QueueUrl=url, MessageBody="b")
    assert len(second.receive(url)) == 2
    send = one(seen, "SQS.SendMessage", "frontend")
    receive = one(seen, "SQS.ReceiveMessage", "frontend")
    assert receive.links == [(send.trace_id, send.span_id)]
    assert receive.trace_id != send.trace_id


def test_a_call_that_fails_is_shown_as_failed_and_its_log_line_has_the_trace(
    server: Traced, seen: Collector, url: str
) -> None:
    trace, calls = new()
    client = _Client(server, traceparent=parent(trace, calls))
    with pytest.raises(client.sqs.exceptions.QueueDoesNotExist):
        client.sqs.get_queue_url(QueueName="nowhere")
    span = one(seen, "SQS.GetQueueUrl", "frontend")
    assert span.failed
    assert (span.attributes["http.response.status_code"], span.attributes["error.type"]) == (
        400,
        "AWS.SimpleQueueService.NonExistentQueue",
    )
    found = [json.loads(line) for line in server.log_text().splitlines() if trace in line]
    (line,) = found
    assert (line["trace_id"], line["span_id"], line["role"]) == (trace, span.span_id, "frontend")
    assert line["request_id"] == span.attributes["aws.request_id"]


HOSTILE = [
    "0" * 7000,
    "00-" + "0" * 32 + "-" + "1" * 16 + "-01",
    "00-" + "1" * 32 + "-" + "0" * 16 + "-01",
    "00-" + "Z" * 32 + "-" + "1" * 16 + "-01",
    "ff-" + "1" * 32 + "-" + "1" * 16 + "-01",
    "00-" + "1" * 32 + "-" + "1" * 16 + "-01-more",
    "'\"<>%s%n{};=,",
]


@pytest.mark.parametrize("header", HOSTILE)
def test_hostile_headers_are_as_none(server: Traced, seen: Collector, url: str, header: str) -> None:
    assert unsigned(server, "GET", "/", {"traceparent": header, "tracestate": "a=1," * 900}).status_code == 403
    client = _Client(server, traceparent=header, X_Amzn_Trace_Id="Root=1-x;Parent=;;=;" * 50)
    client.sqs.send_message(QueueUrl=url, MessageBody="b")
    (message,) = client.receive(url)
    assert "AWSTraceHeader" not in message["Attributes"]
    sampled = _Client(server, traceparent=parent(*new()), tracestate=",".join(f"k{n}=1" for n in range(40)))
    sampled.sqs.get_queue_attributes(QueueUrl=url)
    span = one(seen, "SQS.GetQueueAttributes", "frontend")
    assert span.state == ""
    assert {each.name for each in seen.spans} == {"SQS.GetQueueAttributes"}


def test_a_refused_call_and_one_of_sts_leave_a_span(server: Traced, seen: Collector) -> None:
    trace, calls = new()
    for path in ("/", "/?Action=GetCallerIdentity&Version=2011-06-15"):
        unsigned(server, "GET", path, {"traceparent": parent(trace, calls)})
    refused, sts = one(seen, "SQS", "frontend"), one(seen, "STS", "frontend")
    assert {refused.trace_id, sts.trace_id} == {trace}
    assert refused.failed
    assert sts.failed


def test_rest_leaves_the_same_spans(server: Traced, seen: Collector, url: str) -> None:
    name = url.rpartition("/")[2]
    key = server.rest("POST", "/v1/keys", {"name": "rest", "kind": "api"})["secret"]
    trace, calls = new()
    headers = {"traceparent": parent(trace, calls), "Authorization": f"Bearer {key}", "Content-Type": "text/plain"}
    sent = unsigned(server, "POST", f"/v1/queues/{name}/messages", headers, BODY)
    assert unsigned(server, "GET", f"/v1/queues/{name}/messages", headers).status_code == 200
    for path in ("/v1/queues/none-of-this-name", "/v1/nothing"):
        assert unsigned(server, "GET", path, headers).status_code == 404
    send, receive = one(seen, "REST.message.send", "frontend"), one(seen, "REST.message.receive", "frontend")
    assert one(seen, "backend.Send", "backend").parent_id == send.span_id
    assert one(seen, "backend.Receive", "backend").parent_id == receive.span_id
    assert receive.links == [(trace, send.span_id)]
    assert (send.parent_id, send.attributes) == (
        calls,
        {
            "http.request.method": "POST",
            "aws.request_id": sent.headers["x-request-id"],
            "http.response.status_code": 201,
            "holdfast.account": server.account,
            "messaging.system": "aws_sqs",
            "messaging.destination.name": name,
        },
    )
    for span, code in ((one(seen, "REST.queue.show", "frontend"), 404), (one(seen, "REST", "frontend"), 404)):
        assert (span.failed, span.attributes["http.response.status_code"]) == (True, code)
    assert {span.trace_id for span in seen.spans} == {trace}
    for needle in (key, BODY):
        assert needle.encode() not in seen.raw


def test_two_parents_are_ignored(server: Traced, seen: Collector) -> None:
    unsigned(server, "GET", "/", [("traceparent", parent(*new())) for _ in range(2)])
    unsigned(server, "GET", "/", {"traceparent": parent(*new())})
    one(seen, "SQS", "frontend")


# --- one process; a collector that is not there ------------------------------------------------------------


def test_in_one_process_the_commit_is_part_of_the_send(tmp_path: Path) -> None:
    with Collector() as collector:
        settings = {"TRACE_ENDPOINT": f"{collector.endpoint}/v1/traces", "TRACE_RATIO": "1"}
        with Server(tmp_path, settings) as server:
            sqs = server.client()
            url = sqs.create_queue(QueueName="q")["QueueUrl"]
            sqs.send_message(QueueUrl=url, MessageBody="b")
            (message,) = sqs.receive_message(QueueUrl=url, AttributeNames=["All"])["Messages"]
            assert "AWSTraceHeader" not in message["Attributes"], "the sender has said nothing of a trace"
            assert server.stop() == 0, "what waits is delivered at the end"
        send = one(collector, "SQS.SendMessage", "all")
        receive = one(collector, "SQS.ReceiveMessage", "all")
        commits = {span.parent_id: span for span in collector.named("journal.commit")}
        assert commits[send.span_id].trace_id == send.trace_id != receive.trace_id
        assert receive.links == [(send.trace_id, send.span_id)]


@pytest.mark.parametrize("setting", ["true", "false"])
def test_messages_carry_the_senders_trace_also_without_a_collector_unless_they_are_not_to(
    tmp_path: Path, setting: str
) -> None:
    trace, sends = new()
    with Server(tmp_path, {"TRACE_MESSAGES": setting}) as server:
        client = _Client(server, traceparent=parent(trace, sends, "00"))
        url = client.sqs.create_queue(QueueName="q")["QueueUrl"]
        client.sqs.send_message(QueueUrl=url, MessageBody="b")
        (message,) = client.receive(url)
    expected = f"Root=1-{trace[:8]}-{trace[8:]};Parent={sends};Sampled=0" if setting == "true" else None
    assert message["Attributes"].get("AWSTraceHeader") == expected


def test_without_its_collector_the_service_is_as_ever(tmp_path: Path) -> None:
    with Collector() as away:
        pass
    port = free_port()
    settings = {"TRACE_ENDPOINT": away.endpoint, "TRACE_RATIO": "1", "HEALTH_LISTEN": f"127.0.0.1:{port}"}
    server = Server(tmp_path, settings)
    server.settings |= {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "1"}
    lost = re.compile(rf"traces do not reach {away.endpoint}/v1/traces: \d+ spans were lost")
    with server:
        sqs = server.client()
        url = sqs.create_queue(QueueName="q")["QueueUrl"]
        for number in range(50):
            sqs.send_message(QueueUrl=url, MessageBody=str(number))
        wait_until(lambda: lost.search(server.log_text()), "the log tells of it")
        assert total(samples(scrape(port)), "holdfast_trace_spans_lost_total", reason="undelivered") > 0
        assert server.stop() == 0
    assert len(lost.findall(server.log_text())) == 1
