"""Requests that once cost the loop seconds, or many times their length in memory: each stays within the budget."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from auth.limits import Rate, TenantLimits
from tests.behaviour import wire
from tests.behaviour.runner import CaseCaller
from tests.behaviour.world import World, exchange
from tests.fuzz.budget import measured
from tests.fuzz.targets import sign
from tests.tables import beside

LENGTH = 8 * 1024 * 1024 - 1_000
JSON = {"Content-Type": "application/x-amz-json-1.0", "Host": World.host}
FORM = {"Content-Type": "application/x-www-form-urlencoded", "Host": World.host}


def send(body: bytes) -> wire.WireRequest:
    return wire.WireRequest("POST", "/", JSON | {"X-Amz-Target": "AmazonSQS.SendMessage"}, "", body)


def form(body: bytes, path: str = "/") -> wire.WireRequest:
    return wire.WireRequest("POST", path, dict(FORM), "", body)


def _made(row: dict[str, Any]) -> wire.WireRequest:
    """Make the request of a row of ``costs.yaml``."""
    start = next((row[name] for name in ("form", "send", "query", "start") if name in row), "").encode()
    unit = row["fill"].encode()
    content = start + unit * row.get("times", LENGTH // len(unit)) + row.get("end", "").encode()
    if "form" in row:
        return form(content)
    if "send" in row:
        return send(content)
    if "query" in row:
        return wire.WireRequest("GET", "/", {"Host": World.host}, content.decode(), b"")
    headers = {"Host": World.host} | ({"Content-Type": row["type"]} if "type" in row else {})
    return wire.WireRequest(row.get("method", "POST"), row["rest"], headers, "", content)


ROWS = beside(__file__, "costs.yaml")
REQUESTS: dict[str, Callable[[], wire.WireRequest]] = {
    **{name: partial(_made, row) for name, row in ROWS.items()},
    "attributes": lambda: send(
        b'{"MessageBody":"b","MessageAttributes":{%b}}' % b",".join(b'"%d":{}' % n for n in range(700_000))
    ),
    "presigned-parameters": lambda: wire.WireRequest(
        "GET", "/", {"Host": World.host}, "&".join(f"X-Amz-{n}=" for n in range(6_000)), b""
    ),
    "signed-headers": lambda: wire.WireRequest(
        "POST",
        "/",
        FORM
        | {
            "X-Amz-Date": "20270115T080000Z",
            "Authorization": "AWS4-HMAC-SHA256 Credential=a/20270115/us-east-1/sqs/aws4_request, "
            f"SignedHeaders={';'.join(['host', *map(str, range(10_000))])}, Signature={'0' * 64}",
        },
        "",
        b"Action=ListQueues",
    ),
}


@pytest.fixture(scope="module")
def caller(world: World) -> CaseCaller:
    """The owner of a queue q."""
    return world.run(owner(world))


async def owner(world: World) -> CaseCaller:
    made = await world.new_caller()
    request = wire.WireRequest("POST", "/", dict(FORM), "", b"Action=CreateQueue&QueueName=q&Version=2012-11-05")
    assert (await exchange(world.app, signed(world, made, request))).status == 200
    return made


def check_cost(world: World, make: Callable[[], wire.WireRequest]) -> None:
    """Check the cost of a request, which must be refused."""

    def handle() -> None:
        answer = world.run(exchange(world.app, request))
        assert 400 <= answer.status < 500, answer
        assert b"SignatureDoesNotMatch" not in answer.body

    request = make()
    # initializes lazily created objects
    world.run(exchange(world.app, wire.WireRequest("GET", "/v1/queues", {"Host": World.host}, "", b"")))
    measured(handle, len(request.body) + len(request.query) + sum(map(len, request.headers.values())))


@pytest.mark.parametrize("name", REQUESTS)
def test_an_unsigned_request(world: World, name: str) -> None:
    check_cost(world, REQUESTS[name])


@pytest.mark.parametrize("name", [name for name in REQUESTS if "signed" not in name])
def test_a_signed_request(world: World, caller: CaseCaller, name: str) -> None:
    def make() -> wire.WireRequest:
        request = REQUESTS[name]()
        return signed(world, caller, request)

    check_cost(world, make)


def signed(world: World, caller: CaseCaller, request: wire.WireRequest) -> wire.WireRequest:
    """The request with the caller's signature in its header."""
    stamp = datetime.fromtimestamp(world.now_ms() / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    headers = {header.lower(): value for header, value in request.headers.items()}
    headers |= {"host": world.host, "x-amz-date": stamp}
    key = caller.signer
    request.headers = headers | {
        "authorization": sign(
            request.method, request.path, request.query, headers, request.body, stamp, key.secret, key.access_key_id
        )
    }
    return request


@pytest.mark.parametrize(
    "request_of",
    [
        lambda: send(b"{"),
        lambda: form(b"Action=SendMessage&MessageBody=%zz"),
        lambda: wire.WireRequest("POST", "/v1/queues/q/messages", {"Content-Type": "application/json"}, "", b"{"),
    ],
    ids=["json", "query", "rest"],
)
def test_the_limits_of_an_account_are_checked_before_a_body_is_parsed(
    request_of: Callable[[], wire.WireRequest],
) -> None:
    with World(default_limits=TenantLimits(calls=Rate(0.001, 2))) as limited:
        account = limited.run(owner(limited))
        broken = limited.run(exchange(limited.app, signed(limited, account, request_of())))
        assert broken.status == 400
        refused = limited.run(exchange(limited.app, signed(limited, account, request_of())))
        assert b"RequestThrottled" in refused.body


def test_an_unsigned_call_is_parsed_once_a_policy_lets_it_in(world: World, caller: CaseCaller) -> None:
    """Until then errors in it are not reported."""
    policy = '{"Statement":{"Effect":"Allow","Principal":"*","Action":"sqs:SendMessage"}}'
    params = {"QueueUrl": "q", "Attributes": {"Policy": policy}}
    assert (
        world.run(exchange(world.app, signed(world, caller, wire.encode("json", "SetQueueAttributes", params)))).status
        == 200
    )
    bodies = [
        b'{"QueueUrl":"/%b/%b","DelaySeconds":"x"}' % (caller.account.encode(), name) for name in (b"q", b"other")
    ]
    let_in, refused = (world.run(exchange(world.app, send(body))) for body in bodies)
    assert b"SerializationException" in let_in.body
    assert b"MissingAuthenticationToken" in refused.body
