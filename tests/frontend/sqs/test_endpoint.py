"""Requests through the endpoint: protocols, signatures, bounds, errors and their ids."""

import re

import msgspec
import pytest

from auth.errors import AuthError, IssuerUnreachable
from auth.tokens.api_keys import new_api_key
from backend import api
from backend.rpc.connection import NotSent
from billing.metering.meter import UsageNotCounted
from frontend.app import FrontendApp
from frontend.request.request import RequestIds
from frontend.sqs.protocol.error_mapping import as_sqs_error
from metadata_service.models import NewQueue
from metadata_service.store import StoreUnavailable
from telemetry.build import is_compiled
from tests.behaviour import wire
from tests.behaviour.wire import WireRequest
from tests.behaviour.world import asgi_scope, exchange
from tests.frontend.service import HOST, KEY, FrontendService

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


# --- callers -----------------------------------------------------------------------------------------------


async def test_the_last_use_of_a_key_is_recorded(service: FrontendService) -> None:
    credentials = service.app.services.credentials
    await service.json("ListQueues")
    refused = msgspec.structs.replace(KEY, access_key_id="AKIAREFUSEDREFUSED00")
    await credentials.put(refused)
    wrong = msgspec.structs.replace(refused, secret="another-secret-than-ours")
    for body, headers in ((b"{}", JSON), (b"Action=ListQueues", {"Content-Type": "application/x-www-form-urlencoded"})):
        assert (await service.signed("POST", "/", body, headers, wrong)).status == 403
    api_key, text = new_api_key(KEY.account)
    await credentials.put_api_key(api_key)
    assert (await service.unsigned("POST", "/", b"{}", {**JSON, "Authorization": f"Bearer {text}"})).status == 200
    await credentials.close()
    uses = await credentials.store.key_uses([KEY.access_key_id, refused.access_key_id, api_key.key_id])
    assert uses == dict.fromkeys((KEY.access_key_id, api_key.key_id), int(service.clock()))


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
        scope = asgi_scope(WireRequest("POST", "/")) | {"headers": self._headers}
        await self._app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, object]:
        self.taken += 1
        return self._messages.pop(0)

    async def _send(self, message: object) -> None:
        self.sent.append(dict(message))  # type: ignore[call-overload]

    @property
    def status(self) -> object:
        return self.sent[0]["status"]


async def test_a_body_with_a_declared_length_over_the_limit_is_not_read(service: FrontendService) -> None:
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


async def test_a_partition_is_opened_by_its_first_call_and_notified_of_changes(service: FrontendService) -> None:
    url = await service.make_queue("q")
    assert not service.backend.commands
    await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "b"})
    assert [type(command) for command in service.backend.commands] == [api.Send, api.Configure, api.Send]
    await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "b"})
    await service.json("TagQueue", {"QueueUrl": url, "Tags": {"a": "b"}})
    await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "b"})
    assert [command.settings.version for command in service.backend.calls_of(api.Configure)] == [1, 2]


async def test_a_queue_that_another_process_deleted(service: FrontendService) -> None:
    url = await service.make_queue("q")
    await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "b"})
    metadata = service.app.services.metadata
    queue = metadata.cached(KEY.account, "q")
    assert queue is not None
    await metadata._store.delete_queue(queue.queue_id, now_ms=0)
    await service.backend.call(api.Drop(api.Target(queue.partitions[0].id, queue.queue_id)))
    answer = await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "b"})
    assert answer.code == "AWS.SimpleQueueService.NonExistentQueue"


async def test_a_queue_that_another_process_recreated(service: FrontendService) -> None:
    url = await service.make_queue("q")
    metadata = service.app.services.metadata
    queue = metadata.cached(KEY.account, "q")
    assert queue is not None
    await metadata._store.delete_queue(queue.queue_id, now_ms=0)
    await service.backend.call(api.Drop(api.Target(queue.partitions[0].id, queue.queue_id)))
    await metadata._store.create_queue(NewQueue(KEY.account, "q", {}, {}, now_ms=1, hold_seconds=0))
    assert (await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "b"})).status == 200


# --- the rest of the application ---------------------------------------------------------------------------


async def test_health(service: FrontendService) -> None:
    live = await service.unsigned("GET", "/health/live", b"", {})
    assert (live.status, msgspec.json.decode(live.content)) == (200, {"status": "live", "compiled": is_compiled()})
    ready = await service.unsigned("GET", "/health/ready", b"", {})
    assert (ready.status, ready.content) == (200, b'{"status":"ready"}')
    service.app.context.services.damaged = lambda: 2
    ready = await service.unsigned("GET", "/health/ready", b"", {})
    assert (ready.status, ready.content) == (200, b'{"status":"ready","damaged":2}')
    service.app.start_drain()
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


async def test_files_of_the_documentation_are_in_memory_once(service: FrontendService) -> None:
    """However many clients have requested one and do not read it."""
    request = wire.WireRequest("GET", "/docs/swagger-ui-bundle.js", {"Host": HOST}, "", b"")
    one, other = [(await exchange(service.app, request)).body for _ in range(2)]
    assert len(one) > 1_000_000
    assert one is other


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
        (api.NotOwner(3, "b1"), "on its way to another node", True),
        (api.PartitionOpening("10.0.0.1"), "on its way to another node", True),
        (NotSent("shard 3 cannot be asked: 10.0.0.1:9400"), "nothing was done", True),
        (api.Unavailable("10.0.0.1 has no quorum"), "it is not known whether the call has taken effect", True),
        (IssuerUnreachable("https://10.0.0.1"), "issuer of the token", True),
        (UsageNotCounted("/var/10.0.0.1"), "an operator has to make room", False),
        (api.OverLimit("10.0.0.1"), "repeating it will not help", False),
        (api.StorageFull("10.0.0.1"), "no room to store messages", False),
    ],
)
def test_unavailability_names_its_cause_and_whether_a_repeat_helps(error: Exception, part: str, helps: bool) -> None:
    answer = as_sqs_error(error)
    assert (answer.kind.query_code, answer.kind.status) == ("ServiceUnavailable", 503)
    assert part in answer.message
    assert ("Try again" in answer.message) is helps
    assert "10.0.0.1" not in answer.message
    assert "b1" not in answer.message, "tenants learn of no machines"
