"""Attacks by unauthenticated or foreign callers, which must have no effect."""

import asyncio
import json
import logging
from typing import Any

import pytest

from backend.api import ClientCommand, Send
from tests.behaviour import wire
from tests.behaviour.world import World
from tests.frontend.access.parties import MAIN, Party, Scene, arn, call, done, in_world, new_key, send, set_scene, url

NO_ACCESS = "The specified queue does not exist or you do not have access to it."
UNSIGNED = Party("", None)


async def set_policy(world: World, scene: Scene, *statements: dict[str, Any]) -> None:
    policy = json.dumps({"Version": "2012-10-17", "Statement": list(statements)}) if statements else ""
    params = {"QueueUrl": url(world, scene.own, MAIN), "Attributes": {"Policy": policy}}
    await done(world, scene.root, "SetQueueAttributes", params)


def allow(**changes: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Principal": "*", "Action": "sqs:*", "Resource": "*"} | changes


async def counters(world: World, caller: Party, name: str = MAIN) -> tuple[str, str]:
    params = {"QueueUrl": url(world, caller.account, name), "AttributeNames": ["All"]}
    attributes = (await done(world, caller, "GetQueueAttributes", params))["Attributes"]
    return attributes["ApproximateNumberOfMessages"], attributes["ApproximateNumberOfMessagesNotVisible"]


# --- logs ---------------------------------------------------------------------------------------------------

EVIL = "x\r\n2027-01-01 ERROR forged\x1b[2J\u2028\u0085y"


@pytest.mark.parametrize("protocol", wire.PROTOCOLS)
def test_nothing_that_is_sent_begins_a_line_in_the_log(
    world: World, caplog: pytest.LogCaptureFixture, protocol: wire.Protocol
) -> None:
    async def attack(world: World) -> None:
        scene, other = await set_scene(world)
        queue = {"QueueUrl": url(world, scene.own, MAIN)}
        policy = json.dumps({"Statement": {"Effect": EVIL, "Principal": EVIL, "Action": EVIL, EVIL: EVIL}})
        calls: list[tuple[Party, str, dict[str, Any]]] = [
            (scene.root, "SendMessage", {"QueueUrl": EVIL, "MessageBody": "m"}),
            (scene.root, "CreateQueue", {"QueueName": EVIL}),
            (scene.root, "CreateQueue", {"QueueName": "n", "Attributes": {EVIL: EVIL}}),
            (scene.root, "SetQueueAttributes", queue | {"Attributes": {"Policy": policy}}),
            (scene.root, "AddPermission", queue | {"Label": EVIL, "AWSAccountIds": [EVIL], "Actions": [EVIL]}),
            (scene.root, "DeleteMessage", queue | {"ReceiptHandle": EVIL}),
            (scene.root, "StartMessageMoveTask", {"SourceArn": EVIL}),
            (other, "SendMessage", {"QueueUrl": url(world, scene.own, EVIL), "MessageBody": "m"}),
            (other, "GetQueueUrl", {"QueueName": EVIL, "QueueOwnerAWSAccountId": EVIL}),
            (await new_key(world, scene.own, prefixes=("z",)), "CreateQueue", {"QueueName": EVIL}),
            (UNSIGNED, "SendMessage", {"QueueUrl": EVIL, "MessageBody": "m"}),
        ]
        for caller, action, params in calls:
            assert isinstance(await call(world, caller, protocol, action, params, path="/"), wire.WireRefusal), action

    with caplog.at_level(logging.DEBUG):
        world.run(attack(world))
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("holdfast")]
    assert len(lines) >= 10
    for line in lines:
        assert line.isprintable(), line


# --- permissions --------------------------------------------------------------------------------------------


@in_world
async def test_access_to_a_queue_does_not_reach_its_successor(world: World) -> None:
    """The queue is deleted and recreated, without the policy, between the guest's authorization and its send."""
    scene, guest = await set_scene(world)
    await set_policy(world, scene, allow(Principal={"AWS": guest.account}))
    queue = {"QueueUrl": url(world, scene.own, MAIN)}
    services = world.app.services
    backend = services.backend
    first = True

    class Slow:
        """A backend that the first send reaches late."""

        async def call(self, command: ClientCommand[Any]) -> Any:
            nonlocal first
            if first and isinstance(command, Send):
                first = False
                await done(world, scene.root, "DeleteQueue", queue)
                await world.advance(61)
                await done(world, scene.root, "CreateQueue", {"QueueName": MAIN})
            return await backend.call(command)

    services.backend = Slow()
    try:
        answer = await call(world, guest, "json", "SendMessage", queue | {"MessageBody": "m"})
    finally:
        services.backend = backend
    assert not first
    assert isinstance(answer, wire.WireRefusal), answer
    assert answer.status == 503
    assert await counters(world, scene.root) == ("0", "0")
    answer = await call(world, guest, "json", "SendMessage", queue | {"MessageBody": "m"})
    assert isinstance(answer, wire.WireRefusal), answer
    assert answer.message == NO_ACCESS


# --- unsigned requests --------------------------------------------------------------------------------------


@in_world
async def test_unsigned_requests_learn_nothing(world: World) -> None:
    """All refusals of unsigned requests are equal byte for byte, except for the id."""
    scene, _ = await set_scene(world)
    await set_policy(world, scene, allow(Action="sqs:SendMessage"))
    main, gone = url(world, scene.own, MAIN), url(world, scene.own, "gone")

    def unsigned(protocol: wire.Protocol) -> list[wire.WireRequest]:
        there: dict[str, Any] = {"QueueUrl": main, "ReceiptHandle": "x"}
        requests = [
            wire.encode(protocol, "ReceiveMessage", {"QueueUrl": main}),
            wire.encode(protocol, "ReceiveMessage", {"QueueUrl": gone}),
            wire.encode(protocol, "SendMessage", {"QueueUrl": gone, "MessageBody": "m"}),
            wire.encode(protocol, "SendMessage", {"QueueUrl": "", "MessageBody": "m"}),
            wire.encode(protocol, "SendMessage", {"MessageBody": "m"}),
            wire.encode(protocol, "DeleteMessage", there),
            wire.encode(protocol, "GetQueueUrl", {"QueueName": MAIN, "QueueOwnerAWSAccountId": scene.own}),
            wire.encode(protocol, "ListQueues", {}),
            wire.encode(protocol, "DeleteQueue", {"QueueUrl": main}),
            wire.encode(protocol, "StartMessageMoveTask", {"SourceArn": arn(scene.own, MAIN)}),
            wire.encode(protocol, "Nonsense", {"QueueUrl": main}),
        ]
        for request in requests:
            request.path = "/"
        return requests

    malformed = wire.encode("json", "SendMessage", {})
    malformed.body = b'{"QueueUrl": ' + json.dumps(main).encode() + b', "MessageBody": 5'
    without_target = wire.encode("json", "SendMessage", {"QueueUrl": main, "MessageBody": "m"})
    del without_target.headers["X-Amz-Target"]
    typed = wire.encode("json", "SendMessage", {"QueueUrl": [main], "MessageBody": {"a": 1}})
    version = wire.encode("query", "SendMessage", {"QueueUrl": main, "MessageBody": "m"})
    version.body = version.body.replace(b"2012-11-05", b"2008-01-01")
    bodies = {"json": [*unsigned("json"), malformed, without_target, typed], "query": [*unsigned("query"), version]}
    for protocol, requests in bodies.items():
        answers = [await send(world, UNSIGNED, request) for request in requests]
        ids = [answer.headers.pop("x-amzn-requestid") for answer in answers]
        for answer, request_id in zip(answers, ids, strict=True):
            answer.body = answer.body.replace(request_id.encode(), b"id")
            assert answer == answers[0], protocol
        assert answers[0].status == 403
    assert isinstance(await call(world, UNSIGNED, "json", "SendMessage", {"QueueUrl": main, "MessageBody": "m"}), dict)


@in_world
async def test_unsigned_requests_do_not_crowd_out_others(world: World) -> None:
    """However many arrive at once, few of them read the store at the same time."""
    scene, _ = await set_scene(world)
    store = world.app.services.metadata._store
    under_way = under_way_max = 0
    get_queue = store.get_queue

    async def counted(account: str, name: str) -> Any:
        nonlocal under_way, under_way_max
        under_way += 1
        under_way_max = max(under_way_max, under_way)
        try:
            return await get_queue(account, name)
        finally:
            under_way -= 1

    store.get_queue = counted  # type: ignore[method-assign]
    try:
        calls = [
            call(
                world, UNSIGNED, "json", "SendMessage", {"QueueUrl": url(world, scene.own, f"n{n}"), "MessageBody": "m"}
            )
            for n in range(100)
        ]
        answers = await asyncio.gather(*calls)
    finally:
        store.get_queue = get_queue  # type: ignore[method-assign]
    assert all(isinstance(answer, wire.WireRefusal) for answer in answers)
    assert 1 <= under_way_max <= 8
