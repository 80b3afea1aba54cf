"""The REST interface: its entry, its problems, its audit records, and queues."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from auth.credentials import AccessKey, Tenant
from backend.api import PartitionDamaged, QueueFull, StorageFull
from frontend.request.settings import FrontendSettings
from tests.frontend.fakes import KEY, FrontendAnswer, FrontendService, running

ARN = f"arn:aws:sqs:us-east-1:{KEY.account}:"
OTHER = "210987654321"
NOTHING = {"visible": 0, "in_flight": 0, "delayed": 0, "stored_bytes": 0}


def key(name: str, **changes: Any) -> AccessKey:
    """An additional key of the tenant."""
    id_ = f"AKIA{name.upper():0<16}"
    return msgspec.structs.replace(
        KEY, access_key_id=id_, secret=f"secret of {name}".replace(" ", "-"), name=name, **changes
    )


OPERATOR = key("op", role="operator")
SENDER = key("sender", scopes=("send",))
RECEIVER = key("receiver", scopes=("receive",))
ORDERS = key("orders", prefixes=("orders-", "bills"))
STRANGER = key("stranger", account=OTHER)


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[FrontendService]:
    async with running(tmp_path, FrontendSettings(external_url="https://queue.example.com")) as made:
        await made.store.put_tenant(Tenant(OTHER, "others"))
        for one in (OPERATOR, SENDER, RECEIVER, ORDERS, STRANGER):
            await made.store.put_access_key(one)
        yield made


async def call(
    service: FrontendService,
    method: str,
    path: str,
    body: bytes = b"",
    *,
    by: AccessKey = KEY,
    type_: str = "application/json",
) -> FrontendAnswer:
    headers = {"Content-Type": type_} if body else {}
    return await service.signed(method, path, body, headers, by)


def problem(answer: FrontendAnswer) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json
    assert document["status"] == answer.status
    assert document["request_id"] == answer.headers["x-request-id"]
    assert document["detail"]
    return answer.status, document["code"]


# --- the entry ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/queues", "/v1/", "/v1/nothing", "/v1/queues/q/messages"])
async def test_nobody_gets_in_without_signing_in(service: FrontendService, path: str) -> None:
    answer = await service.unsigned("GET", path, b"", {})
    assert problem(answer) == (401, "MissingAuthenticationToken")
    assert "Authorization: Bearer hf_..." in answer.json["detail"]
    assert answer.headers["www-authenticate"].startswith("Bearer")
    (line,) = service.audited()
    assert (line["action"], line["request_id"]) == ("sign-in", answer.headers["x-request-id"])


async def test_a_signature_covers_the_body(service: FrontendService) -> None:
    await service.make_queue("q")
    wrong = msgspec.structs.replace(KEY, secret="another secret")
    assert problem(await call(service, "POST", "/v1/queues/q/purge", by=wrong)) == (401, "SignatureDoesNotMatch")


async def test_queues_called_v1_are_reached_as_ever(service: FrontendService) -> None:
    url = await service.make_queue("v1")
    for path in (f"/{KEY.account}/v1", "/v1", "/"):
        answer = await service.query("SendMessage", {"QueueUrl": url, "MessageBody": "b"}, path=path)
        assert answer.status == 200, answer.content
    for path in (f"/{KEY.account}/v1", "/v1"):
        answer = await service.query("SendMessage", {"MessageBody": "b"}, path=path)
        assert answer.status == 200, answer.content
    assert (await call(service, "GET", "/v1/queues/v1")).json["messages"]["visible"] == 5


async def test_unknown_paths_methods_and_values(service: FrontendService) -> None:
    assert problem(await call(service, "GET", "/v1/nothing")) == (404, "NotFound")
    answer = await call(service, "PUT", "/v1/queues")
    assert problem(answer) == (405, "MethodNotAllowed")
    assert answer.headers["allow"] == "GET"
    assert problem(await call(service, "GET", "/v1/queues?limit=0"))[0] == 400
    await service.make_queue("q")
    assert problem(await call(service, "POST", "/v1/queues/q/move", b'{"to":"x"}'))[0] == 400
    assert problem(await call(service, "POST", "/v1/queues/q/move", b"{"))[0] == 400


async def test_a_misspelt_parameter_changes_nothing(service: FrontendService) -> None:
    await service.make_queue("q")
    answer = await call(service, "POST", "/v1/queues/q/messages?delayy=60", b"b", type_="text/plain")
    assert problem(answer) == (400, "InvalidRequest")
    assert "'delayy' here; there are account, deduplication_id, delay, group." in answer.json["detail"]
    assert (await call(service, "GET", "/v1/queues/q")).json["messages"] == NOTHING


async def test_a_body_that_is_too_large(tmp_path: Path) -> None:
    async with running(tmp_path, FrontendSettings(max_body_bytes=1000)) as service:
        answer = await call(service, "POST", "/v1/queues/q/messages", b"x" * 1001)
    assert problem(answer) == (413, "RequestEntityTooLarge")
    assert answer.headers["connection"] == "close"


async def test_errors_of_the_service(service: FrontendService, caplog: pytest.LogCaptureFixture) -> None:
    await service.make_queue("q")
    for error, expected in (
        (StorageFull("full"), (503, "ServiceUnavailable")),
        (PartitionDamaged("at segment 7"), (500, "InternalFailure")),
        (RuntimeError("a bug of ours"), (500, "InternalFailure")),
    ):
        service.backend.fail_with = error
        answer = await call(service, "GET", "/v1/queues/q")
        assert problem(answer) == expected
        assert str(error).encode() not in answer.content
        assert answer.headers["x-request-id"] in caplog.text
    assert "a bug of ours" in caplog.text


async def test_a_queue_that_is_full(service: FrontendService) -> None:
    await service.make_queue("q")
    service.backend.fail_with = QueueFull("It stores a lot.")
    answer = await call(service, "POST", "/v1/queues/q/messages", b"b", type_="text/plain")
    assert problem(answer) == (429, "RequestThrottled")
    assert answer.json["detail"] == "It stores a lot. Receive and delete messages, and try again."
    assert answer.headers["retry-after"] == "1"


async def test_the_documentation_describes_it(service: FrontendService) -> None:
    document = (await service.unsigned("GET", "/openapi.json", b"", {})).json
    assert {"get", "post", "delete"} <= document["paths"]["/v1/queues/{name}/messages"].keys()
    assert document["paths"]["/v1/queues/{name}/purge"]["post"]["security"]
    assert "health" in {tag for path in document["paths"].values() for way in path.values() for tag in way["tags"]}


# --- permissions ----------------------------------------------------------------------------------------------


async def test_scopes(service: FrontendService) -> None:
    await service.make_queue("q")
    for path, method in (
        ("/v1/queues", "GET"),
        ("/v1/queues/q", "GET"),
        ("/v1/queues/q/peek", "GET"),
        ("/v1/queues/q/export", "GET"),
        ("/v1/queues/q", "DELETE"),
    ):
        for by in (SENDER, RECEIVER):
            assert problem(await call(service, method, path, by=by)) == (403, "AccessDenied")
    assert problem(await call(service, "POST", "/v1/queues/q/messages", b"x", by=RECEIVER)) == (403, "AccessDenied")
    assert problem(await call(service, "GET", "/v1/queues/q/messages", by=SENDER)) == (403, "AccessDenied")
    assert (await call(service, "POST", "/v1/queues/q/messages", b"x", by=SENDER, type_="text/plain")).status == 201
    assert (await call(service, "GET", "/v1/queues/q/messages", by=RECEIVER)).status == 200


async def test_prefixes(service: FrontendService) -> None:
    for name in ("a", "bills", "orders-1", "orders-2", "z"):
        await service.make_queue(name)
    assert problem(await call(service, "DELETE", "/v1/queues/a", by=ORDERS)) == (403, "AccessDenied")
    assert (await call(service, "GET", "/v1/queues/orders-1", by=ORDERS)).status == 200

    async def names(query: str) -> list[str]:
        answer = await call(service, "GET", f"/v1/queues{query}", by=ORDERS)
        return [queue["name"] for queue in answer.json["queues"]]

    assert await names("") == ["bills", "orders-1", "orders-2"]
    assert await names("?prefix=orders-2") == ["orders-2"]
    assert await names("?prefix=o") == ["orders-1", "orders-2"]
    assert await names("?prefix=a") == []
    assert await names("?limit=2") == ["bills", "orders-1"]
    assert await names("?limit=2&after=orders-1") == ["orders-2"]


async def test_only_operators_work_on_other_accounts(service: FrontendService) -> None:
    await service.make_queue("q")
    there = f"account={KEY.account}"
    assert problem(await call(service, "GET", f"/v1/queues?{there}", by=STRANGER)) == (403, "AccessDenied")
    assert problem(await call(service, "DELETE", f"/v1/queues/q?{there}", by=STRANGER)) == (403, "AccessDenied")
    assert problem(await call(service, "GET", "/v1/queues/q", by=STRANGER)) == (404, "NonExistentQueue")
    assert (await call(service, "GET", f"/v1/queues/q?account={OTHER}", by=OPERATOR)).status == 404
    assert problem(await call(service, "GET", "/v1/queues?account=12", by=OPERATOR)) == (400, "InvalidRequest")
    mine = msgspec.structs.replace(OPERATOR, access_key_id="AKIAOPERATOROFOTHERS", account=OTHER)
    await service.store.put_access_key(mine)
    assert (await call(service, "GET", f"/v1/queues/q?{there}", by=mine)).json["account"] == KEY.account
    assert (await call(service, "DELETE", f"/v1/queues/q?{there}", by=mine)).status == 204


# --- queues ---------------------------------------------------------------------------------------------------


async def test_list_show_and_pages(service: FrontendService) -> None:
    for name in ("a", "b", "c"):
        await service.make_queue(name, DelaySeconds="0")
    first = (await call(service, "GET", "/v1/queues?limit=2")).json
    assert [queue["name"] for queue in first["queues"]] == ["a", "b"]
    rest = (await call(service, "GET", f"/v1/queues?limit=2&after={first['next']}&counters=true")).json
    assert rest == {
        "queues": [{"name": "c", "account": KEY.account, "messages": NOTHING}],
        "next": None,
    }
    await service.json("TagQueue", {"QueueUrl": service.url("a"), "Tags": {"team": "shop"}})
    shown = (await call(service, "GET", "/v1/queues/a")).json
    assert shown["arn"] == ARN + "a"
    assert shown["url"] == f"https://queue.example.com/{KEY.account}/a"
    assert shown["tags"] == {"team": "shop"}
    assert shown["attributes"]["VisibilityTimeout"] == "30"
    assert problem(await call(service, "GET", "/v1/queues/none")) == (404, "NonExistentQueue")
    assert problem(await call(service, "GET", "/v1/queues/no%20name")) == (400, "InvalidRequest")


async def test_peek_shows_and_leaves_all_as_it_was(service: FrontendService) -> None:
    url = await service.make_queue("q")
    value = {"DataType": "Binary", "BinaryValue": "AAE="}
    await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "one", "MessageAttributes": {"m": value}})
    await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "two", "DelaySeconds": 60})
    await service.json("ReceiveMessage", {"QueueUrl": url})
    for _ in range(2):
        one, two = (await call(service, "GET", "/v1/queues/q/peek")).json["messages"]
        assert (one["body"], one["state"], one["receives"]) == ("one", "in_flight", 1)
        assert one["attributes"] == {"m": {"type": "Binary", "value": "AAE="}}
        assert one["due"] == service.clock() + 30
        assert (two["body"], two["state"], two["receives"], two["first_received"]) == ("two", "delayed", 0, None)
    assert len((await call(service, "GET", "/v1/queues/q/peek?limit=1")).json["messages"]) == 1
    assert [line["action"] for line in service.audited()] == ["queue.peek"] * 3


async def exported(service: FrontendService, query: str = "limit=2", name: str = "q") -> list[list[dict[str, Any]]]:
    """The pages of an export."""
    found: list[list[dict[str, Any]]] = []
    after: str | None = ""
    while after is not None:
        page = (await call(service, "GET", f"/v1/queues/{name}/export?{query}&after={after}")).json
        found.append(page["messages"])
        after = page["next"]
    return found


async def test_export_shows_everything_page_by_page_and_leaves_it_as_it_was(service: FrontendService) -> None:
    url = await service.make_queue("q.fifo", FifoQueue="true")
    value = {"DataType": "Binary", "BinaryValue": "AAE="}
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988-bd862e3fe1be46a994272793"}}
    for number in range(5):
        members = {"QueueUrl": url, "MessageBody": f"m{number}", "MessageGroupId": "g"}
        more = {"MessageDeduplicationId": f"d{number}", "MessageAttributes": {"m": value}}
        await service.json("SendMessage", {**members, **more, "MessageSystemAttributes": trace})
    for _ in range(2):
        pages = await exported(service, name="q.fifo")
        assert [[one["body"] for one in page] for page in pages] == [["m0", "m1"], ["m2", "m3"], ["m4"], []]
    one = pages[0][1]
    assert (one["group"], one["deduplication_id"], one["attributes"]["m"]["value"]) == ("g", "d1", "AAE=")
    assert one["sequence_number"] == f"{int(pages[0][0]['sequence_number']) + 1:020d}"
    assert (one["sender"], one["trace_header"]) == (KEY.principal_id, trace["AWSTraceHeader"]["StringValue"])
    assert (one["state"], one["receives"], one["sent"]) == ("visible", 0, service.clock())
    assert {line["action"] for line in service.audited()} == {"queue.export"}


async def test_an_export_of_a_queue_that_was_made_anew_ends(service: FrontendService) -> None:
    url = await service.make_queue("q")
    await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "one"})
    after = (await call(service, "GET", "/v1/queues/q/export")).json["next"]
    await call(service, "DELETE", "/v1/queues/q")
    service.clock.now += 100
    await service.make_queue("q")
    assert problem(await call(service, "GET", f"/v1/queues/q/export?after={after}")) == (409, "QueueReplaced")
    for text in ("x", "1", "1.2", "1.2.x", "1..3", "1" * 30 + ".2.3", "1.2." + "3." * 2000 + "4"):
        assert problem(await call(service, "GET", f"/v1/queues/q/export?after={text}")) == (400, "InvalidRequest")


async def test_purge_and_delete(service: FrontendService) -> None:
    url = await service.make_queue("q")
    await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "b"})
    assert (await call(service, "POST", "/v1/queues/q/purge")).status == 204
    assert (await call(service, "GET", "/v1/queues/q")).json["messages"]["visible"] == 0
    assert problem(await call(service, "POST", "/v1/queues/q/purge")) == (409, "PurgeQueueInProgress")
    assert (await call(service, "DELETE", "/v1/queues/q")).status == 204
    assert problem(await call(service, "DELETE", "/v1/queues/q")) == (404, "NonExistentQueue")


async def test_move(service: FrontendService) -> None:
    await service.make_queue("dead")
    await service.make_queue("q", RedrivePolicy=f'{{"deadLetterTargetArn":"{ARN}dead","maxReceiveCount":"3"}}')
    started = await call(service, "POST", "/v1/queues/dead/move", b'{"destination":"q","rate_per_second":5}')
    assert started.status == 202
    (task,) = (await call(service, "GET", "/v1/queues/dead")).json["move_tasks"]
    assert (task["status"], task["destination_arn"], task["rate_per_second"]) == ("RUNNING", ARN + "q", 5)
    assert problem(await call(service, "POST", "/v1/queues/q/move", b"{}"))[0] == 400
    assert problem(await call(service, "POST", "/v1/queues/dead/move", b'{"destination":"none"}'))[0] == 404
    assert problem(await call(service, "POST", "/v1/queues/dead/move", b'{"rate_per_second":0}'))[0] == 400


# --- the audit log --------------------------------------------------------------------------------------------


async def test_acts_are_audited_with_their_outcome(service: FrontendService) -> None:
    await service.make_queue("q")
    await call(service, "POST", "/v1/queues/q/purge")
    await call(service, "POST", "/v1/queues/q/purge")
    await call(service, "DELETE", "/v1/queues/q", by=SENDER)
    service.backend.fail_with = StorageFull("full")
    await call(service, "GET", "/v1/queues/q/peek")
    lines = service.audited()
    assert [(line["action"], line["outcome"], line["reason"]) for line in lines] == [
        ("queue.purge", "done", ""),
        ("queue.purge", "refused", "PurgeQueueInProgress"),
        ("queue.delete", "refused", "AccessDenied"),
        ("queue.peek", "failed", "ServiceUnavailable"),
    ]
    assert {line["target"] for line in lines} == {ARN + "q"}
    assert lines[2]["principal"] == f"arn:aws:iam::{KEY.account}:user/sender"
    assert lines[2]["credential"] == SENDER.access_key_id
    assert lines[2]["address"] == "127.0.0.1"


async def test_looking_and_messages_are_not_audited(service: FrontendService) -> None:
    await service.make_queue("q")
    await call(service, "GET", "/v1/queues")
    await call(service, "GET", "/v1/queues/q")
    await call(service, "POST", "/v1/queues/q/messages", b"b", type_="text/plain")
    await call(service, "GET", "/v1/queues/q/messages")
    assert service.audited() == []
    await call(service, "GET", "/v1/queues", by=SENDER)
    assert [line["outcome"] for line in service.audited()] == ["refused"]


# --- messages -------------------------------------------------------------------------------------------------


async def test_send_receive_delete(service: FrontendService) -> None:
    await service.make_queue("q")
    sent = await call(service, "POST", "/v1/queues/q/messages", "two coffées".encode(), type_="text/plain")
    assert sent.status == 201
    assert sent.json["sequence_number"] is None
    received = await call(service, "GET", "/v1/queues/q/messages?visibility=60&max=10")
    (message,) = received.json["messages"]
    assert (message["id"], message["body"]) == (sent.json["id"], "two coffées")
    assert message["md5_of_body"] == sent.json["md5_of_body"]
    assert (message["receives"], message["sender"]) == (1, KEY.principal_id)
    handle = message["receipt_handle"]
    assert (await call(service, "DELETE", f"/v1/queues/q/messages?receipt_handle={handle}")).status == 204
    assert (await call(service, "GET", "/v1/queues/q")).json["messages"] == NOTHING


async def test_nothing_there_is_204(service: FrontendService) -> None:
    await service.make_queue("q")
    answer = await call(service, "GET", "/v1/queues/q/messages")
    assert (answer.status, answer.content) == (204, b"")


async def test_a_message_as_json(service: FrontendService) -> None:
    await service.make_queue("q.fifo", FifoQueue="true")
    given = (
        b'{"body":"b","group":"g","deduplication_id":"d","attributes":'
        b'{"n":{"type":"Number","value":"1"},"b":{"type":"Binary.x","value":"AAE="}}}'
    )
    sent = await call(service, "POST", "/v1/queues/q.fifo/messages", given)
    assert sent.status == 201, sent.content
    (message,) = (await call(service, "GET", "/v1/queues/q.fifo/messages")).json["messages"]
    assert (message["body"], message["group"], message["deduplication_id"]) == ("b", "g", "d")
    assert message["sequence_number"] == sent.json["sequence_number"]
    assert message["attributes"] == {"n": {"type": "Number", "value": "1"}, "b": {"type": "Binary.x", "value": "AAE="}}


async def test_group_and_delay_in_the_query(service: FrontendService) -> None:
    await service.make_queue("q.fifo", FifoQueue="true")
    path = "/v1/queues/q.fifo/messages?group=g&deduplication_id=d"
    assert (await call(service, "POST", path, b"b", type_="text/plain")).status == 201
    await service.make_queue("q")
    assert (await call(service, "POST", "/v1/queues/q/messages?delay=60", b"b", type_="text/plain")).status == 201
    assert (await call(service, "GET", "/v1/queues/q")).json["messages"]["delayed"] == 1


@pytest.mark.parametrize(
    ("body", "type_", "query"),
    [
        (b"", "text/plain", ""),
        (b"\xff", "text/plain", ""),
        (b"\0", "text/plain", ""),
        (b'{"order":1}', "application/json", ""),
        (b"[]", "application/json; charset=utf-8", ""),
        (b'{"body":1}', "application/json", ""),
        (b'{"body":"b","attributes":{"a":{"type":"Binary","value":"?"}}}', "application/json", ""),
        (b"b", "text/plain", "?delay=901"),
        (b"b", "text/plain", "?delay=soon"),
    ],
)
async def test_messages_that_are_refused(service: FrontendService, body: bytes, type_: str, query: str) -> None:
    await service.make_queue("q")
    assert problem(await call(service, "POST", f"/v1/queues/q/messages{query}", body, type_=type_))[0] == 400
    assert (await call(service, "GET", "/v1/queues/q")).json["messages"]["visible"] == 0


async def test_json_that_is_none_is_refused_in_one_sentence(service: FrontendService) -> None:
    await service.make_queue("q")
    answer = await call(service, "POST", "/v1/queues/q/messages", b'{"body":', type_="application/json")
    assert "with the member 'body': Invalid JSON" in answer.json["detail"]


async def test_refused_receives_and_deletes(service: FrontendService) -> None:
    await service.make_queue("q")
    for query in ("?max=11", "?wait=21", "?visibility=-1", "?max=x"):
        assert problem(await call(service, "GET", f"/v1/queues/q/messages{query}"))[0] == 400
    assert problem(await call(service, "DELETE", "/v1/queues/q/messages"))[0] == 400
    handle = "/v1/queues/q/messages?receipt_handle=nonsense"
    assert problem(await call(service, "DELETE", handle)) == (400, "ReceiptHandleIsInvalid")
    assert problem(await call(service, "GET", "/v1/queues/none/messages")) == (404, "NonExistentQueue")
