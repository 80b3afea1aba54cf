"""Paths not in canonical form are refused in every protocol, without effect."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import pytest

from auth.credentials import AccessKey
from frontend.request.call import check_path
from frontend.sqs.protocol.errors import SqsError
from tests.frontend.fakes import HOST, KEY, FrontendService, sign

OWN = f"/{KEY.account}"
SIGNED_AS_ANOTHER = [
    (f"{OWN}/q1", f"{OWN}/x/../q1"),
    (f"{OWN}/q1", f"{OWN}/./q1"),
    (f"{OWN}/q1", f"/{OWN}/q1"),
    (f"{OWN}/q1", f"{OWN}/x/%2e%2E/q1"),
    ("/v1/queues/q1/messages", "//v1/queues/q1/messages"),
    ("/v1/queues/q1/messages", "/v1//queues/q1/messages"),
    ("/v1/queues/q1/messages", "/v1/x/../queues/q1/messages"),
    ("/", "//"),
    ("/", "/x/.."),
]


async def send(
    service: FrontendService, path: str, signed_path: str, body: bytes, headers: dict[str, str], key: AccessKey = KEY
) -> tuple[int, dict[bytes, bytes], bytes]:
    """Send a request with exactly this path, which httpx would change.

    Returns status, headers and body of the answer.
    """
    signed = sign("POST", signed_path, body, headers, service.clock(), key)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def keep(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": b"",
        "scheme": "http",
        "headers": [(name.lower().encode(), value.encode()) for name, value in {"Host": HOST, **signed}.items()],
        "client": ("127.0.0.1", 5000),
        "server": (HOST, 80),
        "http_version": "1.1",
        "root_path": "",
    }
    await service.app(scope, receive, keep)
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(one.get("body", b"") for one in sent[1:])


@pytest.mark.parametrize(("signed_path", "path"), SIGNED_AS_ANOTHER)
@pytest.mark.parametrize("also_signed", [False, True], ids=["signed-for-another-path", "signed-as-sent"])
async def test_no_protocol_takes_such_a_path(
    service: FrontendService, signed_path: str, path: str, also_signed: bool
) -> None:
    url = await service.make_queue("q1")
    await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "kept"})
    for body, headers in (
        (b"Action=PurgeQueue", {"Content-Type": "application/x-www-form-urlencoded"}),
        (
            b"{}",
            {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.PurgeQueue"},
        ),
        (b"Action=PurgeQueue&Version=2012-11-05", {"Content-Type": "text/plain"}),
    ):
        status, _, content = await send(service, path, path if also_signed else signed_path, body, headers)
        assert status == 400
        assert b"The path of a request begins with a slash and has no empty, '.' or '..' segments." in content
    assert (await service.json("ReceiveMessage", {"QueueUrl": url})).json["Messages"][0]["Body"] == "kept"


@pytest.mark.parametrize(
    "path", ["/", "/q", "/q/", f"{OWN}/q.fifo", "/v1/queues/a%2Fb", "/a/..b", "/a/.b/c.", "/%41", "/a%20b", "/..."]
)
def test_paths_that_are_their_own_canonical_form(path: str) -> None:
    check_path(path.encode())


@pytest.mark.parametrize("path", ["", "q", "//", "/a//", "/a//b", "/.", "/..", "/a/.", "/a/../b", "/a/%2e", "/%2E./b"])
def test_paths_that_are_not(path: str) -> None:
    with pytest.raises(SqsError):
        check_path(path.encode())
