"""Refused unsigned calls count against their address and the account that they name."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from auth.policies.policies import Decision, Policy
from frontend.request.unsigned_calls import ACCOUNT_BURST, ADDRESS_BURST, UnauthenticatedCallers
from frontend.sqs.protocol.errors import SqsError
from ratelimit.keyed import KEYS_MAX
from tests.auth.clock import Clock
from tests.behaviour import wire
from tests.behaviour.world import World, exchange
from tests.frontend.access.parties import done, in_world, new_tenant, url

ACCOUNT = "000000000001"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def strangers(clock: Clock) -> UnauthenticatedCallers:
    return UnauthenticatedCallers(clock)


def refused(strangers: UnauthenticatedCallers, address: str, account: str = ACCOUNT) -> None:
    with strangers.admit(address) as attempt:
        attempt.at_account(account)


def code_of(strangers: UnauthenticatedCallers, address: str, account: str = ACCOUNT) -> str:
    with pytest.raises(SqsError) as caught:
        refused(strangers, address, account)
    assert caught.value.retry_after_s is not None
    return caught.value.kind.query_code


def test_an_address_has_so_many_refused_calls(strangers: UnauthenticatedCallers, clock: Clock) -> None:
    for _ in range(int(ADDRESS_BURST)):
        refused(strangers, "192.0.2.1")
    assert code_of(strangers, "192.0.2.1") == "RequestThrottled"
    refused(strangers, "192.0.2.2")
    clock.now += 1
    refused(strangers, "192.0.2.1")


def test_an_ipv6_network_is_one_address(strangers: UnauthenticatedCallers) -> None:
    for number in range(int(ADDRESS_BURST)):
        refused(strangers, f"2001:db8::{number:x}")
    assert code_of(strangers, "2001:db8::ffff") == "RequestThrottled"


def test_an_account_has_so_many_from_all_addresses(strangers: UnauthenticatedCallers, clock: Clock) -> None:
    for number in range(int(ACCOUNT_BURST)):
        refused(strangers, f"192.0.{number % 250}.{number // 250}")
    assert code_of(strangers, "198.51.100.1") == "RequestThrottled"
    refused(strangers, "198.51.100.1", "000000000002")
    clock.now += 1
    refused(strangers, "198.51.100.1")


def test_calls_that_are_let_in_do_not_count(strangers: UnauthenticatedCallers) -> None:
    for _ in range(2 * int(ACCOUNT_BURST)):
        with strangers.admit("192.0.2.1") as attempt:
            attempt.at_account(ACCOUNT)
            attempt.let_in()
    for _ in range(int(ADDRESS_BURST)):
        refused(strangers, "192.0.2.1")


def test_the_cache_is_bounded(strangers: UnauthenticatedCallers) -> None:
    for number in range(KEYS_MAX + 10):
        refused(strangers, f"a{number}", f"b{number}")
    assert len(strangers._addresses) == len(strangers._accounts) == KEYS_MAX


# --- at the endpoint ----------------------------------------------------------------------------------------


@pytest.fixture
def world() -> Iterator[World]:
    with World() as made:
        made.app.pipeline.unauthenticated_callers = UnauthenticatedCallers(Clock())
        yield made


@in_world
async def test_refused_calls_of_strangers_are_bounded_and_nobody_else_is_hindered(world: World) -> None:
    async def answer(protocol: wire.Protocol, params: dict[str, str], client: str = "127.0.0.1") -> wire.WireAnswer:
        request = wire.encode(protocol, "SendMessage", params)
        request.headers = dict(request.headers) | {"Host": world.host}
        return await exchange(world.app, request, client=client)

    account, owner = await new_tenant(world)
    await done(world, owner, "CreateQueue", {"QueueName": "open"})
    await done(world, owner, "CreateQueue", {"QueueName": "shut"})
    statement = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": statement})
    queue = url(world, account, "open")
    await done(world, owner, "SetQueueAttributes", {"QueueUrl": queue, "Attributes": {"Policy": policy}})
    public = {"QueueUrl": queue, "MessageBody": "m"}
    private = {"QueueUrl": url(world, account, "shut"), "MessageBody": "m"}
    protocols: tuple[wire.Protocol, ...] = ("json", "query")
    for protocol in protocols:
        assert (await answer(protocol, public)).status == 200
    for number in range(int(ADDRESS_BURST)):
        refused = await answer(protocols[number % 2], private)
        assert refused.status == 403
        assert b"MissingAuthenticationToken" in refused.body
    for protocol in protocols:
        for params in (private, public):
            throttled = await answer(protocol, params)
            assert b"RequestThrottled" in throttled.body
            assert int(throttled.headers["retry-after"]) >= 1
    assert (await answer("json", public, client="192.0.2.7")).status == 200
    assert await done(world, owner, "SendMessage", private)


def test_a_policy_is_evaluated_once_for_a_call(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[Policy] = []
    decide = Policy.decide

    def counted(policy: Policy, *arguments: Any) -> Decision:
        evaluated.append(policy)
        return decide(policy, *arguments)

    async def run() -> None:
        account, owner = await new_tenant(world)
        await done(world, owner, "CreateQueue", {"QueueName": "open"})
        queue = url(world, account, "open")
        statement = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": statement})
        await done(world, owner, "SetQueueAttributes", {"QueueUrl": queue, "Attributes": {"Policy": policy}})
        for action, status in (("SendMessage", 200), ("PurgeQueue", 403)):
            params = {"QueueUrl": queue} | ({"MessageBody": "m"} if action == "SendMessage" else {})
            request = wire.encode("json", action, params)
            request.headers = dict(request.headers) | {"Host": world.host}
            evaluated.clear()
            assert (await exchange(world.app, request)).status == status
            assert len(evaluated) == 1

    monkeypatch.setattr(Policy, "decide", counted)
    world.run(run())
