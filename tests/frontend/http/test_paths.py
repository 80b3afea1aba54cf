"""Paths not in canonical form are refused in every protocol, without effect."""

import pytest

from frontend.http.asgi import check_path
from frontend.sqs.protocol.errors import SqsError
from tests.behaviour.wire import WireRequest
from tests.behaviour.world import exchange
from tests.frontend.service import HOST, KEY, FrontendService, sign

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


@pytest.mark.parametrize(("signed_path", "path"), SIGNED_AS_ANOTHER)
@pytest.mark.parametrize("also_signed", [False, True], ids=["signed-for-another-path", "signed-as-sent"])
async def test_no_protocol_takes_such_a_path(
    service: FrontendService, signed_path: str, path: str, also_signed: bool
) -> None:
    url = await service.make_queue("q1")
    await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "kept"})
    for body, headers in (
        (b"Action=PurgeQueue", {"Content-Type": "application/x-www-form-urlencoded"}),
        (b"{}", {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.PurgeQueue"}),
        (b"Action=PurgeQueue&Version=2012-11-05", {"Content-Type": "text/plain"}),
    ):
        signed = sign("POST", path if also_signed else signed_path, body, headers, service.clock())
        answer = await exchange(service.app, WireRequest("POST", path, {"Host": HOST, **signed}, "", body))
        assert answer.status == 400
        assert b"The path of a request begins with a slash and has no empty, '.' or '..' segments." in answer.body
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
