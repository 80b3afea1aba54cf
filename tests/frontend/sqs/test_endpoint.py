"""Requests through the endpoint: protocols, signatures, bounds, errors and their ids."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from auth.credentials import AccessKey
from auth.errors import AuthError, IssuerUnreachable
from backend.api import (
    BackendError,
    NotOwner,
    OverLimit,
    PartitionDamaged,
    PartitionOpening,
    PartitionUnknown,
    StorageFull,
    Unavailable,
)
from backend.rpc.connection import NotSent
from billing.metering.meter import UsageNotCounted
from frontend.app import FrontendApp
from frontend.request.settings import FrontendSettings
from frontend.sqs.endpoint import LINES_OF_CLIENTS, RequestIds, as_sqs_error
from metadata_service.store import StoreUnavailable
from tests.frontend.fakes import HOST, KEY, FrontendAnswer, FrontendService, running, sign

JSON = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.ListQueues"}


# --- request ids -------------------------------------------------------------------------------------------


async def test_every_answer_has_a_request_id_of_its_own(service: FrontendService) -> None:
    answers = [
        await service.json("ListQueues"),
        await service.json("Nonsense"),
        await service.query("ListQueues"),
        await service.query("Nonsense"),
        await service.unsigned("GET", f"/{KEY.account}/q", b"", {}),
        await service.unsigned("PUT", "/", b"", {}),
    ]
    assert len({answer.headers["x-amzn-requestid"] for answer in answers}) == len(answers)
    assert answers[2].text("ResponseMetadata/RequestId") == answers[2].headers["x-amzn-requestid"]
    assert answers[3].text("RequestId") == answers[3].headers["x-amzn-requestid"]


def test_request_ids_look_like_uuids_and_differ_between_processes() -> None:
    ids = RequestIds()
    assert len({ids() for _ in range(100)}) == 100
    assert [len(part) for part in ids().split("-")] == [8, 4, 4, 4, 12]
    assert ids()[:20] != RequestIds()()[:20]


async def test_the_log_of_errors_carries_the_request_id(
    service: FrontendService, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "holdfast.sqs"):
        answer = await service.json("SendMessage", {"QueueUrl": "none", "MessageBody": "b"})
    assert answer.headers["x-amzn-requestid"] in caplog.text
    assert "NonExistentQueue" in caplog.text
    assert KEY.access_key_id in caplog.text


async def test_a_bug_is_answered_and_logged_with_its_traceback(
    service: FrontendService, caplog: pytest.LogCaptureFixture
) -> None:
    url = await service.make_queue("q")
    service.backend.fail_with = RuntimeError("a bug of ours")
    answer = await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "b"})
    assert (answer.status, answer.code) == (500, "InternalFailure")
    assert answer.headers["x-amzn-query-error"] == "InternalFailure;Receiver"
    assert b"a bug of ours" not in answer.content
    assert "a bug of ours" in caplog.text
    assert answer.headers["x-amzn-requestid"] in caplog.text


async def test_a_long_outage_does_not_fill_the_log(service: FrontendService, caplog: pytest.LogCaptureFixture) -> None:
    url = await service.make_queue("q")
    answers = []
    with caplog.at_level(logging.INFO, "holdfast.sqs"):
        for error in (Unavailable("the disk is away"), StorageFull("full"), PartitionDamaged("file:7")):
            service.backend.fail_with = error
            answers += [await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "b"}) for _ in range(50)]
        assert len(caplog.records) == 3
        for first in (0, 50, 100):
            assert answers[first].headers["x-amzn-requestid"] in caplog.text
        service.backend.fail_with = RuntimeError("a bug of ours")
        for _ in range(2):
            answer = await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "b"})
            assert answer.headers["x-amzn-requestid"] in caplog.text, "of other errors each has its line"


async def test_refused_calls_do_not_fill_the_log(service: FrontendService, caplog: pytest.LogCaptureFixture) -> None:
    wrong = msgspec.structs.replace(KEY, secret="another secret")
    with caplog.at_level(logging.INFO, "holdfast.sqs"):
        refused = [await service.signed("POST", "/", b"{}", dict(JSON), wrong) for _ in range(30)]
        assert len(caplog.records) == LINES_OF_CLIENTS
        assert refused[LINES_OF_CLIENTS - 1].headers["x-amzn-requestid"] in caplog.text
        assert refused[LINES_OF_CLIENTS].headers["x-amzn-requestid"] not in caplog.text
        caplog.clear()
        for key_id in range(30):
            claimed = msgspec.structs.replace(wrong, access_key_id=f"AKIAGUESS{key_id:011}")
            await service.signed("POST", "/", b"{}", dict(JSON), claimed)
        assert len(caplog.records) == LINES_OF_CLIENTS, "whatever key ids are claimed"
        caplog.clear()
        for _ in range(30):
            answer = await service.json("SendMessage", {"QueueUrl": "none", "MessageBody": "b"})
            assert answer.code == "AWS.SimpleQueueService.NonExistentQueue"
        assert len(caplog.records) == LINES_OF_CLIENTS
        assert (await service.json("CreateQueue", {"QueueName": "a b"})).code == "InvalidParameterValue"
        assert len(caplog.records) == LINES_OF_CLIENTS + 1, "another reason has lines of its own"


# --- the audit log -----------------------------------------------------------------------------------------


async def test_a_refused_sign_in_is_audited(service: FrontendService) -> None:
    content, headers = b"{}", dict(JSON)
    wrong = msgspec.structs.replace(KEY, secret="another secret")
    refused = await service.signed("POST", "/", content, headers, wrong)
    assert refused.status == 403
    (line,) = service.audited()
    assert (line["credential"], line["reason"]) == (KEY.access_key_id, "SignatureDoesNotMatch")
    assert line["request_id"] == refused.headers["x-amzn-requestid"]
    assert line["address"] == "127.0.0.1"
    assert "another secret" not in str(line)


async def test_what_is_let_in_is_not_audited_as_refused(service: FrontendService) -> None:
    await service.json("ListQueues")
    await service.json("SendMessage", {"QueueUrl": "none", "MessageBody": "b"})
    assert service.audited() == []


# --- protocols ---------------------------------------------------------------------------------------------


async def test_content_types(service: FrontendService) -> None:
    assert (await service.json("ListQueues")).headers["content-type"] == "application/x-amz-json-1.0"
    assert (await service.json("Nonsense")).headers["content-type"] == "application/x-amz-json-1.0"
    assert (await service.query("ListQueues")).headers["content-type"] == "text/xml"
    assert (await service.get("/?Action=ListQueues")).headers["content-type"] == "text/xml"


async def test_a_queue_url_without_an_action(service: FrontendService) -> None:
    for headers in ({}, {"Accept": "application/json"}):
        answer = await service.unsigned("GET", f"/{KEY.account}/q", b"", headers)
        assert answer.status == 404
        assert answer.content.strip() == b"<UnknownOperationException/>"


async def test_no_action_elsewhere(service: FrontendService) -> None:
    answers = [await service.get("/"), await service.query(None), await service.query(None, path=f"/{KEY.account}/q")]
    for answer in answers:
        assert (answer.status, answer.code) == (400, "MissingAction")
    answer = await service.signed("POST", "/", b"{}", {"Content-Type": "application/x-amz-json-1.0"})
    assert (answer.status, answer.code) == (400, "MissingAction")


async def test_an_unknown_action(service: FrontendService) -> None:
    for answer in (await service.query("FooBar"), await service.json("FooBar"), await service.get("/?Action=FooBar")):
        assert (answer.status, answer.code) == (400, "InvalidAction")
        assert answer.message == "The action FooBar is not valid for this endpoint."
    answer = await service.signed("POST", "/", b"{}", JSON | {"X-Amz-Target": "DynamoDB.ListTables"})
    assert (answer.status, answer.code) == (400, "InvalidAction")


@pytest.mark.parametrize("action", ["CreateQueue", "ListQueues"])
async def test_actions_that_are_not_for_a_queue_url(service: FrontendService, action: str) -> None:
    path = f"/{KEY.account}/q"
    for answer in (await service.query(action, path=path), await service.json(action, {}, path=path)):
        assert (answer.status, answer.code) == (400, "InvalidAction")
    assert (await service.query("ListQueues", path=f"/{KEY.account}/")).status == 200


async def test_the_target_needs_its_content_type(service: FrontendService) -> None:
    for headers in (JSON | {"Content-Type": "application/json"}, {"X-Amz-Target": "AmazonSQS.ListQueues"}):
        answer = await service.signed("POST", "/", b"{}", headers)
        assert (answer.status, answer.code) == (400, "SerializationException")


async def test_a_form_of_another_content_type_has_no_action(service: FrontendService) -> None:
    answer = await service.signed("POST", "/", b"Action=ListQueues", {"Content-Type": "text/plain"})
    assert (answer.status, answer.code) == (400, "MissingAction")
    assert (await service.signed("POST", "/", b"Action=ListQueues", {})).status == 200


async def test_another_version(service: FrontendService) -> None:
    answer = await service.query("ListQueues", {"Version": "2008-01-01"})
    assert (answer.status, answer.code) == (400, "NoSuchVersion")


async def test_query_parameters_of_url_and_form_together(service: FrontendService) -> None:
    url = await service.make_queue("q")
    path = f"/{KEY.account}/q?Action=SendMessage&MessageBody=from%20the%20url"
    assert (await service.get(path)).text("SendMessageResult/MessageId")
    answer = await service.query("ReceiveMessage", {"QueueUrl": url})
    assert answer.text("ReceiveMessageResult/Message/Body") == "from the url"


async def test_answers_to_a_query_in_json(service: FrontendService) -> None:
    answer = await service.get("/?Action=ListQueues", {"Accept": "application/json"})
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json) == {"ListQueuesResponse"}
    answer = await service.get("/?Action=Nonsense", {"Accept": "application/json"})
    assert answer.json["Error"]["Code"] == "InvalidAction"


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
async def test_other_methods(service: FrontendService, method: str) -> None:
    answer = await service.unsigned(method, "/", b"", {})
    assert answer.status == 405
    assert answer.headers["connection"] == "close"  # because its body, if there is one, was not read


# --- queue URLs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        f"http://{HOST}/{KEY.account}/q",
        f"https://sqs.us-east-1.amazonaws.com/{KEY.account}/q",
        f"https://eu-west-1.queue.amazonaws.com/{KEY.account}/q/",
        f"http://localhost:4566/{KEY.account}/q?x=y",
        f"/{KEY.account}/q",
        "http://localhost:9324/queue/q",
        "http://localhost/q",
        "q",
        "/q",
    ],
)
async def test_a_queue_is_known_by_account_and_name(service: FrontendService, url: str) -> None:
    await service.make_queue("q")
    assert (await service.json("ListQueueTags", {"QueueUrl": url})).status == 200
    assert (await service.query("ListQueueTags", {"QueueUrl": url})).status == 200


@pytest.mark.parametrize(
    ("url", "status", "code"),
    [
        ("http://localhost:9324", 400, "AWS.SimpleQueueService.NonExistentQueue"),
        ("http://localhost:9324/", 400, "AWS.SimpleQueueService.NonExistentQueue"),
        ("/", 400, "AWS.SimpleQueueService.NonExistentQueue"),
        ("", 400, "AWS.SimpleQueueService.NonExistentQueue"),
        ("other", 400, "AWS.SimpleQueueService.NonExistentQueue"),
        ("not a name!", 400, "AWS.SimpleQueueService.NonExistentQueue"),
        ("x" * 100_000, 400, "AWS.SimpleQueueService.NonExistentQueue"),
        ("http://localhost/210987654321/q", 400, "AWS.SimpleQueueService.NonExistentQueue"),
    ],
)
async def test_urls_of_no_queue(service: FrontendService, url: str, status: int, code: str) -> None:
    await service.make_queue("q")
    answer = await service.json("SendMessage", {"QueueUrl": url})
    assert (answer.status, answer.code) == (status, code)


async def test_the_texts_of_a_missing_queue(service: FrontendService) -> None:
    answer = await service.json("SendMessage", {"QueueUrl": "none"})
    assert answer.json == {
        "__type": "com.amazonaws.sqs#QueueDoesNotExist",
        "message": "The specified queue does not exist.",
    }
    answer = await service.query("SendMessage", {"QueueUrl": "none"})
    assert answer.message == "The specified queue does not exist for this wsdl version."


async def test_the_path_names_the_queue_unless_a_parameter_does(service: FrontendService) -> None:
    await service.make_queue("one")
    two = await service.make_queue("two")
    path = f"/{KEY.account}/one"
    await service.json("TagQueue", {"Tags": {"k": "one"}}, path=path)
    await service.query("TagQueue", {"Tag.1.Key": "k", "Tag.1.Value": "two", "QueueUrl": two}, path=path)
    assert (await service.json("ListQueueTags", {}, path=path)).json == {"Tags": {"k": "one"}}
    assert (await service.query("ListQueueTags", path=path)).text("ListQueueTagsResult/Tag/Value") == "one"
    assert (await service.json("ListQueueTags", {"QueueUrl": two})).json == {"Tags": {"k": "two"}}


async def test_no_queue_at_all(service: FrontendService) -> None:
    for answer in (await service.json("PurgeQueue"), await service.query("PurgeQueue")):
        assert (answer.status, answer.code) == (400, "MissingParameter")
        assert answer.message == "The request must contain the parameter QueueUrl."


async def test_urls_of_queues_begin_as_the_settings_say(tmp_path: Path) -> None:
    settings = FrontendSettings(external_url="https://sqs.example.org")
    async with running(tmp_path, settings) as service:
        assert await service.make_queue("q") == f"https://sqs.example.org/{KEY.account}/q"


# --- callers -----------------------------------------------------------------------------------------------


async def both(service: FrontendService, key: AccessKey = KEY) -> AsyncIterator[FrontendAnswer]:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    yield await service.signed("POST", "/", b"{}", JSON, key)
    yield await service.signed("POST", "/", b"Action=ListQueues", form, key)


async def test_unsigned_requests(service: FrontendService) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for answer in (
        await service.unsigned("POST", "/", b"{}", JSON),
        await service.unsigned("POST", "/", b"Action=ListQueues", form),
        await service.unsigned("GET", "/?Action=ListQueues", b"", {}),
    ):
        assert (answer.status, answer.code) == (403, "MissingAuthenticationToken")


async def test_unknown_keys(service: FrontendService) -> None:
    async for answer in both(service, replace_key(access_key_id="AKIAUNKNOWNUNKNOWN00")):
        assert (answer.status, answer.code) == (403, "InvalidClientTokenId")


async def test_inactive_keys(service: FrontendService) -> None:
    inactive = replace_key(access_key_id="AKIAINACTIVEINACTIVE", active=False)
    await service.app.services.credentials.put(inactive)
    async for answer in both(service, inactive):
        assert (answer.status, answer.code) == (403, "InvalidClientTokenId")


async def test_expired_keys(service: FrontendService) -> None:
    now = int(service.clock())
    expiring = replace_key(access_key_id="AKIAEXPIRINGEXPIRING", expires_s=now + 2)
    await service.app.services.credentials.put(expiring)
    async for answer in both(service, expiring):
        assert answer.status == 200
    service.clock.now += 2
    async for answer in both(service, expiring):
        assert (answer.status, answer.code) == (403, "ExpiredToken")
    async for answer in both(service, msgspec.structs.replace(expiring, secret="another-secret-than-ours")):
        assert answer.code == "SignatureDoesNotMatch"


async def test_suspended_tenants(service: FrontendService) -> None:
    credentials = service.app.services.credentials
    tenant = await credentials.store.get_tenant(KEY.account)
    assert tenant is not None
    suspended = await credentials.update_tenant(msgspec.structs.replace(tenant, state="suspended"))
    async for answer in both(service, KEY):
        assert (answer.status, answer.code) == (403, "OptInRequired")
        assert answer.message == f"The account {KEY.account} is suspended. Ask the operator of this service."
    async for answer in both(service, replace_key(secret="another-secret-than-ours")):
        assert answer.code == "SignatureDoesNotMatch"  # unauthenticated callers do not learn the reason
    await credentials.update_tenant(msgspec.structs.replace(suspended, state="active"))
    async for answer in both(service, KEY):
        assert answer.status == 200


async def test_the_last_use_of_a_key_is_recorded(service: FrontendService) -> None:
    credentials = service.app.services.credentials
    await service.json("ListQueues")
    refused = replace_key(access_key_id="AKIAREFUSEDREFUSED00")
    await credentials.put(refused)
    async for _ in both(service, msgspec.structs.replace(refused, secret="another-secret-than-ours")):
        pass
    await credentials.close()
    uses = await credentials.store.key_uses([KEY.access_key_id, refused.access_key_id])
    assert uses == {KEY.access_key_id: int(service.clock())}


async def test_wrong_secrets(service: FrontendService) -> None:
    async for answer in both(service, replace_key(secret="another-secret-than-ours")):
        assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch")


async def test_stale_signatures(service: FrontendService) -> None:
    headers = sign("POST", "/", b"{}", JSON, service.clock() - 1000)
    answer = await service.unsigned("POST", "/", b"{}", headers)
    assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch")
    assert "Signature expired" in answer.message


async def test_incomplete_signatures(service: FrontendService) -> None:
    answer = await service.unsigned("POST", "/", b"{}", JSON | {"Authorization": "AWS4-HMAC-SHA256 nonsense"})
    assert (answer.status, answer.code) == (400, "IncompleteSignature")


async def test_a_tampered_body(service: FrontendService) -> None:
    headers = sign("POST", "/", b"{}", JSON, service.clock())
    answer = await service.unsigned("POST", "/", b'{"MaxResults": 1}', headers)
    assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch")


def replace_key(**changes: object) -> AccessKey:
    return msgspec.structs.replace(KEY, **changes)


# --- bounds ------------------------------------------------------------------------------------------------


class _Connection:
    """An ASGI client that sends given events and records the answers."""

    def __init__(self, app: FrontendApp, *messages: dict[str, object], headers: list[tuple[bytes, bytes]]) -> None:
        self._app = app
        self._messages = list(messages)
        self._headers = headers
        self.taken = 0
        self.sent: list[dict[str, object]] = []

    async def run(self) -> None:
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/",
            "raw_path": b"/",
            "query_string": b"",
            "headers": self._headers,
            "scheme": "http",
        }
        await self._app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, object]:
        self.taken += 1
        return self._messages.pop(0)

    async def _send(self, message: object) -> None:
        self.sent.append(dict(message))  # type: ignore[call-overload]

    @property
    def status(self) -> object:
        return self.sent[0]["status"]


async def test_a_body_that_says_it_is_too_long_is_not_read(service: FrontendService) -> None:
    for length in (b"8388609", b"9" * 30):
        client = _Connection(service.app, headers=[(b"host", b"h"), (b"content-length", length)])
        await client.run()
        assert client.status == 413
        assert client.taken == 0
        assert (b"connection", b"close") in client.sent[0]["headers"]  # type: ignore[operator]


async def test_a_body_that_gets_too_long_is_not_read_to_its_end(service: FrontendService) -> None:
    part = {"type": "http.request", "body": b"x" * 1_000_000, "more_body": True}
    client = _Connection(service.app, *[part] * 100, headers=[(b"host", b"h"), (b"transfer-encoding", b"chunked")])
    await client.run()
    assert client.status == 413
    assert client.taken == 9


async def test_a_client_that_leaves_within_its_body_is_not_answered(service: FrontendService) -> None:
    part = {"type": "http.request", "body": b"x", "more_body": True}
    client = _Connection(service.app, part, {"type": "http.disconnect"}, headers=[(b"host", b"h")])
    await client.run()
    assert client.sent == []


async def test_a_flood_of_headers(service: FrontendService) -> None:
    headers = [(b"x-%d" % number, b"v") for number in range(1000)]
    client = _Connection(service.app, headers=headers)
    await client.run()
    assert client.status == 400


# --- errors of the backend and the metadata ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (StorageFull(), 503, "ServiceUnavailable"),
        (Unavailable(), 503, "ServiceUnavailable"),
        (PartitionDamaged("segment 3 at 4096"), 500, "InternalFailure"),
        (BackendError(), 503, "ServiceUnavailable"),
        (StoreUnavailable(), 503, "ServiceUnavailable"),
        (PartitionUnknown(), 503, "ServiceUnavailable"),
    ],
)
async def test_errors_of_the_layers_below(
    service: FrontendService, caplog: pytest.LogCaptureFixture, error: Exception, status: int, code: str
) -> None:
    caplog.set_level(logging.DEBUG, "holdfast.sqs")
    url = await service.make_queue("q")
    service.backend.fail_with = error
    for answer in (
        await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "b"}),
        await service.query("SendMessage", {"QueueUrl": url, "MessageBody": "b"}),
    ):
        assert (answer.status, answer.code) == (status, code)
        assert answer.headers["x-amzn-requestid"] in caplog.text


async def test_a_partition_is_opened_by_its_first_call_and_told_of_changes(service: FrontendService) -> None:
    url = await service.make_queue("q")
    assert not service.backend.calls
    await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "b"})
    assert [call for call, _ in service.backend.calls] == ["configure"]
    await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "b"})
    await service.json("TagQueue", {"QueueUrl": url, "Tags": {"a": "b"}})
    await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "b"})
    settings = [settings for call, settings in service.backend.calls if call == "configure"]
    assert [setting.version for setting in settings] == [1, 2]


async def test_a_queue_that_was_deleted_elsewhere(service: FrontendService) -> None:
    url = await service.make_queue("q")
    await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "b"})
    metadata = service.app.services.metadata
    queue = metadata.cached(KEY.account, "q")
    assert queue is not None
    await metadata._store.delete_queue(queue.queue_id, now_ms=0)
    service.backend.dropped.add(queue.queue_id)
    answer = await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "b"})
    assert answer.code == "AWS.SimpleQueueService.NonExistentQueue"


async def test_a_queue_that_was_made_anew_elsewhere(service: FrontendService) -> None:
    url = await service.make_queue("q")
    metadata = service.app.services.metadata
    queue = metadata.cached(KEY.account, "q")
    assert queue is not None
    await metadata._store.delete_queue(queue.queue_id, now_ms=0)
    service.backend.dropped.add(queue.queue_id)
    await metadata._store.create_queue(KEY.account, "q", {}, {}, now_ms=1, hold_seconds=0)
    assert (await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "b"})).status == 200


# --- the rest of the application ---------------------------------------------------------------------------


async def test_health(service: FrontendService) -> None:
    assert (await service.unsigned("GET", "/health/live", b"", {})).status == 200
    ready = await service.unsigned("GET", "/health/ready", b"", {})
    assert (ready.status, ready.content) == (200, b'{"status":"ready"}')
    service.app.sqs.context.services.damaged = lambda: 2
    ready = await service.unsigned("GET", "/health/ready", b"", {})
    assert (ready.status, ready.content) == (200, b'{"status":"ready","damaged":2}')
    service.app.begin_drain()
    assert (await service.unsigned("GET", "/health/live", b"", {})).status == 200
    assert (await service.unsigned("GET", "/health/ready", b"", {})).status == 503


async def test_the_documentation_needs_no_network(service: FrontendService) -> None:
    answer = await service.unsigned("GET", "/docs", b"", {})
    assert answer.status == 200
    assert b"/openapi.json" in answer.content
    assert b"://" not in answer.content
    linked = re.findall(rb'(?:src|href)="([^"]+)"', answer.content)
    assert len(linked) == 3
    for path in linked:
        assert (await service.unsigned("GET", path.decode(), b"", {})).status == 200
    schema = (await service.unsigned("GET", "/openapi.json", b"", {})).json
    assert set(schema["paths"]) >= {"/health/live", "/health/ready"}


def test_every_refusal_of_a_sign_in_has_its_answer() -> None:
    refusals: list[type[AuthError]] = [AuthError, *AuthError.__subclasses__()]
    assert len(refusals) > 5
    for refusal in refusals:
        error = refusal("x")
        answer = as_sqs_error(error)
        assert (answer.kind.query_code, answer.kind.status) == (error.code, error.status)


@pytest.mark.parametrize(
    ("error", "part", "helps"),
    [
        (StoreUnavailable("10.0.0.1:9042 is away"), "The metadata", True),
        (NotOwner(3, "b1"), "on its way to another node", True),
        (PartitionOpening("10.0.0.1"), "on its way to another node", True),
        (NotSent("shard 3 cannot be asked: 10.0.0.1:9400"), "nothing was done", True),
        (Unavailable("10.0.0.1 has no quorum"), "it is not known whether the call has taken effect", True),
        (IssuerUnreachable("https://10.0.0.1"), "issuer of the token", True),
        (UsageNotCounted("/var/10.0.0.1"), "an operator has to make room", False),
        (OverLimit("10.0.0.1"), "repeating it will not help", False),
        (StorageFull("10.0.0.1"), "no room to store messages", False),
    ],
)
def test_what_cannot_answer_is_said_and_whether_a_repeat_helps(error: Exception, part: str, helps: bool) -> None:
    answer = as_sqs_error(error)
    assert (answer.kind.query_code, answer.kind.status) == ("ServiceUnavailable", 503)
    assert part in answer.message
    assert ("Try again" in answer.message) is helps
    assert "10.0.0.1" not in answer.message
    assert "b1" not in answer.message, "tenants learn of no machines"
