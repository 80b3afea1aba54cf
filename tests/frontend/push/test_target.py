"""Push targets: attributes, secrets, pauses and requests."""

import json

import pytest

from backend.api import ReceivedMessage
from frontend.push import request
from frontend.push.target import DoublingBackoff, pause_seconds, secrets_of_queue, target_of_queue
from frontend.queues.payload import FORMAT, Payload
from metadata_service.models import NewQueue, Queue
from tests.frontend.service import FrontendService

KEY = b"a secret of the service"


def queue(queue_id: int = 1, **attributes: str) -> Queue:
    return NewQueue("000000000000", "q", attributes, {}, now_ms=0, hold_seconds=0).made(queue_id, [queue_id])


def test_target_has_the_attributes_or_their_defaults() -> None:
    assert target_of_queue(queue(), KEY) is None
    first = queue(HoldfastPushUrl="https://example.com/")
    target = target_of_queue(first, KEY)
    assert target is not None
    assert (target.url, target.concurrency, target.timeout_seconds) == ("https://example.com/", 10, 15)
    assert target.policy == DoublingBackoff(10, 600)
    (secret,) = secrets_of_queue(first, KEY)
    assert target.secrets == (secret.encode(),)
    target = target_of_queue(
        queue(
            HoldfastPushUrl="https://example.com/",
            HoldfastPushConcurrency="7",
            HoldfastPushTimeoutSeconds="3",
            HoldfastPushMinimumBackoffSeconds="1",
            HoldfastPushMaximumBackoffSeconds="9",
        ),
        KEY,
    )
    assert target is not None
    assert (target.concurrency, target.timeout_seconds, target.policy) == (7, 3, DoublingBackoff(1, 9))


def test_secrets_differ_by_queue_version_and_service() -> None:
    first = queue(HoldfastPushSecretVersion="1")
    second = Queue(**{**{name: getattr(first, name) for name in first.__struct_fields__}, "handle_key": bytes(16)})
    (one,) = secrets_of_queue(first, KEY)
    assert one.startswith("hfwh_")
    assert secrets_of_queue(second, KEY) != [one]
    assert secrets_of_queue(first, b"another") != [one]
    first.attributes["HoldfastPushSecretVersion"] = "2"
    two, previous = secrets_of_queue(first, KEY)
    assert previous == one != two
    first.attributes["HoldfastPushSecretVersion"] = "3"
    assert secrets_of_queue(first, KEY)[1] == two


@pytest.mark.parametrize(
    ("attempts", "seconds"), [(0, 10), (1, 10), (2, 20), (3, 40), (6, 320), (7, 600), (10**9, 600)]
)
def test_backoff_doubles_up_to_its_maximum(attempts: int, seconds: int) -> None:
    assert DoublingBackoff(10, 600).delay(attempts, 500) == seconds


@pytest.mark.parametrize(
    ("retry_after", "throttled", "seconds"),
    [
        (None, 1, 1),
        (None, 4, 8),
        (None, 10**6, 60),
        ("7", 1, 7),
        (" 7 ", 1, 7),
        ("0", 1, 1),
        ("9" * 60, 1, 300),
        ("9" * 5000, 2, 2),
        ("-5", 1, 1),
        ("soon", 3, 4),
        ("Thu, 01 Jan 1970 00:16:55 GMT", 1, 15),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 1, 1),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 1, 300),
        ("Thu, 99 Jan 1970 00:00:00 GMT", 1, 1),
        ("", 1, 1),
    ],
)
def test_pause_obeys_retry_after_within_bounds(retry_after: str | None, throttled: int, seconds: float) -> None:
    assert pause_seconds(retry_after, throttled, 1000.0) == seconds


async def test_request_describes_the_message(service: FrontendService) -> None:
    await service.make_queue("q.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    view = await service.app.context.queues.find("123456789012", "q.fifo")
    message = ReceivedMessage("id", "handle", b"", 7, 3, 1, 2, "group", "arn:aws:sqs:us-east-1:123456789012:source")
    attributes = (("n", "Number", "1"), ("b", "Binary", b"\xff"), ("s", "String", "ü\n"))
    built = request.queue_request(view, message, Payload(FORMAT, "bödy", b"", "me", attributes))
    assert built.body == "bödy".encode()
    assert json.loads(built.headers.pop("Holdfast-Message-Attributes")) == {
        "n": {"type": "Number", "value": "1"},
        "b": {"type": "Binary", "value": "/w=="},
        "s": {"type": "String", "value": "ü\n"},
    }
    assert built.headers == {
        "Content-Type": "text/plain; charset=utf-8",
        "Idempotency-Key": "id",
        "Holdfast-Message-Id": "id",
        "Holdfast-Receive-Count": "3",
        "Holdfast-Sent-Timestamp": "2",
        "Holdfast-Queue": "q.fifo",
        "Holdfast-Queue-Arn": view.arn,
        "Holdfast-Message-Group-Id": "group",
        "Holdfast-Sequence-Number": f"{7:020d}",
        "Holdfast-Dead-Letter-Queue-Source-Arn": "arn:aws:sqs:us-east-1:123456789012:source",
    }
    large = Payload(FORMAT, "b", b"", "me", (("s", "String", "x" * request.ATTRIBUTES_LENGTH_MAX),))
    headers = request.queue_request(view, message, large).headers
    assert headers["Holdfast-Message-Attributes-Omitted"] == "1"
    assert "Holdfast-Message-Attributes" not in headers
