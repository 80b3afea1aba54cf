"""Attacks by unauthenticated or foreign callers, which must have no effect."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.behaviour import wire
from tests.behaviour.world import World
from tests.frontend.access.parties import (
    HANDLES,
    MAIN,
    SOURCE,
    SPARE,
    Party,
    Scene,
    arn,
    call,
    done,
    new_key,
    send,
    set_scene,
    url,
)

Body = Callable[[World], Coroutine[Any, Any, None]]
NO_ACCESS = "The specified queue does not exist or you do not have access to it."
NOBODY = Party("", None)


def in_world(body: Body) -> Callable[[World], None]:
    """Make a test that runs in the world's loop."""

    def test(world: World) -> None:
        world.run(body(world))

    test.__doc__ = body.__doc__
    return test


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


# --- queue URLs ---------------------------------------------------------------------------------------------

TRICKS = [
    "http://{host}/{own}/q-main",
    "https://{own}.example.com/{own}/q-main",
    "http://{host}/{other}/../{own}/q-main",
    "http://{host}/{other}/q-main/../../{own}/q-main",
    "http://{host}/{other}/%2e%2e/{own}/q-main",
    "http://{host}/{other}/..%2f{own}%2fq-main",
    "http://{host}/{own}%2fq-main",
    "http://{host}/{own}/q%2dmain",
    "http://{host}/{own}//q-main",
    "http://{host}//{own}/q-main",
    "http://{host}/{own}/q-main/",
    "http://{host}/{own}/./q-main",
    "http://{host}/{own}/q-main/.",
    "http://{host}/{own}/q-main;x=/{other}/q-main",
    "http://{host}/{own}/q-main?QueueUrl=http://{host}/{other}/q-main",
    "http://{host}/{other}/q-main?QueueUrl=http://{host}/{own}/q-main",
    "http://{host}/{own}/q-main#/{other}/q-main",
    "http://{host}/{other}/q-main#/../{own}/q-main",
    "http://{other}@{host}/{own}/q-main",
    "/{own}/q-main",
    "{own}/q-main",
    "\\{own}\\q-main",
    "../{own}/q-main",
    "q-main",
    "arn:aws:sqs:us-east-1:{own}:q-main",
    "http://{host}/{own}/q-main\x00",
    "http://{host}/{own}/q-main\n",
    "http://{host}/{own} /q-main",
    "",
    "/",
    "//",
]


@pytest.mark.parametrize("protocol", wire.PROTOCOLS)
@pytest.mark.parametrize("trick", TRICKS)
def test_no_address_leads_to_the_queue_of_another_account(world: World, trick: str, protocol: wire.Protocol) -> None:
    async def attack(world: World) -> None:
        scene, attacker = await set_scene(world)
        await done(world, attacker, "CreateQueue", {"QueueName": MAIN})  # a possible target of the trick
        before = await counters(world, scene.root)
        address = trick.format(host=world.host, own=scene.own, other=attacker.account)
        for action, params in (
            ("SendMessage", {"MessageBody": "x"}),
            ("ReceiveMessage", {}),
            ("PurgeQueue", {}),
            ("DeleteQueue", {}),
        ):
            await call(world, attacker, protocol, action, {"QueueUrl": address} | params, path="/")
        assert await counters(world, scene.root) == before

    world.run(attack(world))


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("trick", [trick for trick in TRICKS if trick.startswith("http://{host}/")])
def test_no_path_leads_to_the_queue_of_another_account(world: World, trick: str, method: str) -> None:
    async def attack(world: World) -> None:
        scene, attacker = await set_scene(world)
        await done(world, attacker, "CreateQueue", {"QueueName": MAIN})
        before = await counters(world, scene.root)
        path = trick.removeprefix("http://{host}").format(host=world.host, own=scene.own, other=attacker.account)
        path = re.sub(r"[#?].*|[\x00-\x20]", "", path)
        for action, params in (("SendMessage", {"MessageBody": "x"}), ("PurgeQueue", {})):
            await send(world, attacker, wire.encode("query", action, params, method=method, path=path))
        assert await counters(world, scene.root) == before

    world.run(attack(world))


# --- handles ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", wire.PROTOCOLS)
def test_a_receipt_handle_is_of_no_use_to_another_tenant(world: World, protocol: wire.Protocol) -> None:
    async def attack(world: World) -> None:
        scene, attacker = await set_scene(world)
        await done(world, attacker, "CreateQueue", {"QueueName": MAIN})
        before = await counters(world, scene.root)
        stolen = list(scene.handles.values())
        for queue in (url(world, attacker.account, MAIN), url(world, scene.own, MAIN)):
            for handle in stolen:
                params = {"QueueUrl": queue, "ReceiptHandle": handle}
                answers = [
                    await call(world, attacker, protocol, "DeleteMessage", params),
                    await call(world, attacker, protocol, "ChangeMessageVisibility", params | {"VisibilityTimeout": 0}),
                ]
                for answer in answers:
                    assert isinstance(answer, wire.WireRefusal), answer
                    assert answer.code in ("ReceiptHandleIsInvalid", "AWS.SimpleQueueService.NonExistentQueue"), answer
                    assert scene.own not in answer.message.replace(handle, ""), answer
        entries = [{"Id": str(number), "ReceiptHandle": handle} for number, handle in enumerate(stolen)]
        batch = {"QueueUrl": url(world, attacker.account, MAIN), "Entries": entries}
        answer = await call(world, attacker, protocol, "DeleteMessageBatch", batch)
        assert isinstance(answer, dict), answer
        assert [entry["Code"] for entry in answer["Failed"]] == ["ReceiptHandleIsInvalid"] * len(HANDLES)
        assert await counters(world, scene.root) == before

    world.run(attack(world))


@in_world
async def test_a_shared_queue_opens_no_other_queue(world: World) -> None:
    """Permission to delete from one queue does not extend to handles of another queue of the same owner."""
    scene, guest = await set_scene(world)
    await set_policy(world, scene, allow(Principal={"AWS": guest.account}))
    spare = url(world, scene.own, SPARE)
    await done(world, scene.root, "SendMessage", {"QueueUrl": spare, "MessageBody": "m"})
    message = (await done(world, scene.root, "ReceiveMessage", {"QueueUrl": spare}))["Messages"][0]
    params = {"QueueUrl": url(world, scene.own, MAIN), "ReceiptHandle": message["ReceiptHandle"]}
    answer = await call(world, guest, "json", "DeleteMessage", params)
    assert isinstance(answer, wire.WireRefusal)
    assert answer.code == "ReceiptHandleIsInvalid"
    answer = await call(world, guest, "json", "DeleteMessage", params | {"QueueUrl": spare})
    assert isinstance(answer, wire.WireRefusal)
    assert answer.message == NO_ACCESS
    assert await counters(world, scene.root, SPARE) == ("0", "1")


# --- headers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("protocol", wire.PROTOCOLS)
def test_forwarded_headers_are_not_believed(world: World, protocol: wire.Protocol, signed: bool) -> None:
    """The origin of a request is the connection's; trusted proxies are the listener's concern."""

    async def attack(world: World) -> None:
        scene, other = await set_scene(world)
        condition = {"IpAddress": {"aws:SourceIp": "203.0.113.0/24"}, "Bool": {"aws:SecureTransport": "true"}}
        await set_policy(world, scene, allow(Action="sqs:SendMessage", Condition=condition))
        caller = other if signed else NOBODY
        request = wire.encode(protocol, "SendMessage", {"QueueUrl": url(world, scene.own, MAIN), "MessageBody": "m"})
        request.headers |= {
            "X-Forwarded-For": "203.0.113.9",
            "X-Forwarded-Proto": "https",
            "X-Forwarded-Host": "203.0.113.9",
            "Forwarded": "for=203.0.113.9;proto=https",
            "X-Real-IP": "203.0.113.9",
            "X-Forwarded-Ssl": "on",
        }
        answer = wire.decode(protocol, "SendMessage", await send(world, caller, request))
        assert isinstance(answer, wire.WireRefusal), answer
        there = Party(caller.account, caller.signer, "https", "203.0.113.9")
        request = wire.encode(protocol, "SendMessage", {"QueueUrl": url(world, scene.own, MAIN), "MessageBody": "m"})
        assert isinstance(wire.decode(protocol, "SendMessage", await send(world, there, request)), dict)

    world.run(attack(world))


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": ""},
        {"Authorization": "Basic Og=="},
        {"Authorization": "AWS4-HMAC-SHA256"},
        {"Authorization": "AWS4-HMAC-SHA256 Credential=/20270115/us-east-1/sqs/aws4_request, Signature="},
    ],
)
def test_a_broken_signature_is_not_the_same_as_none(world: World, headers: dict[str, str]) -> None:
    """A caller with a wrong signature gets its error, and is not treated as anonymous."""

    async def attack(world: World) -> None:
        scene, _ = await set_scene(world)
        await set_policy(world, scene, allow())
        request = wire.encode("json", "SendMessage", {"QueueUrl": url(world, scene.own, MAIN), "MessageBody": "m"})
        request.headers |= headers
        before = await counters(world, scene.root)
        assert (await send(world, NOBODY, request)).status in (400, 403)
        assert await counters(world, scene.root) == before

    world.run(attack(world))


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
            (NOBODY, "SendMessage", {"QueueUrl": EVIL, "MessageBody": "m"}),
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


@pytest.mark.parametrize("protocol", wire.PROTOCOLS)
def test_permissions_take_effect_at_once(world: World, protocol: wire.Protocol) -> None:
    async def story(world: World) -> None:
        scene, guest = await set_scene(world)
        queue = {"QueueUrl": url(world, scene.own, MAIN)}
        attempt = ("SendMessage", queue | {"MessageBody": "from a guest"})

        async def let_in() -> bool:
            answer = await call(world, guest, protocol, *attempt)
            assert isinstance(answer, dict) or answer.message == NO_ACCESS, answer
            return isinstance(answer, dict)

        assert not await let_in()
        permission = {"Label": "guest", "AWSAccountIds": [guest.account], "Actions": ["SendMessage"]}
        await done(world, scene.root, "AddPermission", queue | permission)
        assert await let_in()
        await done(world, scene.root, "RemovePermission", queue | {"Label": "guest"})
        assert not await let_in()
        await set_policy(world, scene, allow(Principal={"AWS": guest.account}))
        assert await let_in()
        await set_policy(world, scene)
        assert not await let_in()
        await set_policy(world, scene, allow())
        assert await let_in()
        await done(world, scene.root, "DeleteQueue", queue)
        assert not await let_in()
        await world.advance(61)
        await done(world, scene.root, "CreateQueue", {"QueueName": MAIN})
        assert not await let_in()

    world.run(story(world))


@in_world
async def test_who_was_let_in_by_one_queue_is_not_let_into_its_successor(world: World) -> None:
    """The queue is deleted and recreated, without the policy, between the guest's authorization and its send."""
    scene, guest = await set_scene(world)
    await set_policy(world, scene, allow(Principal={"AWS": guest.account}))
    queue = {"QueueUrl": url(world, scene.own, MAIN)}
    backend = world.app.sqs.context.backend
    first = True

    class Slow:
        """A backend that the first send reaches late."""

        def __getattr__(self, name: str) -> Any:
            return getattr(backend, name)

        async def send(self, *args: Any) -> Any:
            nonlocal first
            if first:
                first = False
                await done(world, scene.root, "DeleteQueue", queue)
                await world.advance(61)
                await done(world, scene.root, "CreateQueue", {"QueueName": MAIN})
            return await backend.send(*args)

    retries = world.app.sqs.context.retries
    world.app.sqs.context.backend = retries._backend = Slow()
    try:
        answer = await call(world, guest, "json", "SendMessage", queue | {"MessageBody": "m"})
    finally:
        world.app.sqs.context.backend = retries._backend = backend
    assert not first
    assert isinstance(answer, wire.WireRefusal), answer
    assert answer.status == 503
    assert await counters(world, scene.root) == ("0", "0")
    answer = await call(world, guest, "json", "SendMessage", queue | {"MessageBody": "m"})
    assert isinstance(answer, wire.WireRefusal), answer
    assert answer.message == NO_ACCESS


@in_world
async def test_a_sender_is_told_as_who_it_is(world: World) -> None:
    """A sender of another account is named, an anonymous one by its address; the messages belong to the owner."""
    scene, guest = await set_scene(world)
    await set_policy(world, scene, allow())
    queue = {"QueueUrl": url(world, scene.own, MAIN)}
    await done(world, scene.root, "PurgeQueue", queue)
    await done(world, guest, "SendMessage", queue | {"MessageBody": "guest"})
    await done(world, Party("", None, client="203.0.113.9"), "SendMessage", queue | {"MessageBody": "public"})
    asked = queue | {"MaxNumberOfMessages": 10, "AttributeNames": ["SenderId"]}
    senders: dict[str, str] = {}
    while len(senders) < 2:
        messages = (await done(world, scene.root, "ReceiveMessage", asked)).get("Messages", [])
        senders |= {message["Body"]: message["Attributes"]["SenderId"] for message in messages}
    keys = await world.credentials.store.list_access_keys(guest.account)
    assert senders == {"guest": keys[0].principal_id, "public": "203.0.113.9"}
    assert await done(world, guest, "ListQueues", {}) == {}


@in_world
async def test_messages_do_not_leave_the_account(world: World) -> None:
    """Dead letters and moved messages stay in it, whatever policies say."""
    scene, other = await set_scene(world)
    await set_policy(world, scene, allow())
    foreign = arn(scene.own, MAIN)
    redrive = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": foreign, "maxReceiveCount": 1})}
    answer = await call(world, other, "json", "CreateQueue", {"QueueName": "mine", "Attributes": redrive})
    assert isinstance(answer, wire.WireRefusal)
    assert answer.code == "InvalidParameterValue"
    await done(world, other, "CreateQueue", {"QueueName": "mine"})
    own_redrive = json.dumps({"deadLetterTargetArn": arn(other.account, "mine"), "maxReceiveCount": 1})
    await done(world, other, "CreateQueue", {"QueueName": "source", "Attributes": {"RedrivePolicy": own_redrive}})
    move = {"SourceArn": arn(other.account, "mine"), "DestinationArn": foreign}
    answer = await call(world, other, "json", "StartMessageMoveTask", move)
    assert isinstance(answer, wire.WireRefusal)
    assert answer.code == "ResourceNotFoundException"


# --- prefixes -----------------------------------------------------------------------------------------------


@in_world
async def test_a_prefix_is_the_whole_world(world: World) -> None:
    scene, _ = await set_scene(world)
    for name in ("a-1", "a-2", "ab", "b-1", "c"):
        await done(world, scene.root, "CreateQueue", {"QueueName": name})
    caller = await new_key(world, scene.own, name="ann", prefixes=("b", "a-", "a-1", "zz"))

    async def listed(**params: Any) -> list[str]:
        urls = (await done(world, caller, "ListQueues", params)).get("QueueUrls", [])
        return [each.rpartition("/")[2] for each in urls]

    assert await listed() == ["a-1", "a-2", "b-1"]
    assert await listed(QueueNamePrefix="a") == ["a-1", "a-2"]
    assert await listed(QueueNamePrefix="a-2") == ["a-2"]
    assert await listed(QueueNamePrefix="ab") == []
    assert await listed(QueueNamePrefix="q-") == []
    seen: list[str] = []
    token: dict[str, str] = {}
    for _ in range(3):
        page = await done(world, caller, "ListQueues", {"MaxResults": 1} | token)
        seen += [each.rpartition("/")[2] for each in page["QueueUrls"]]
        token = {"NextToken": page["NextToken"]} if "NextToken" in page else {}
    assert (seen, token) == (["a-1", "a-2", "b-1"], {})


@in_world
async def test_no_message_gets_past_a_prefix(world: World) -> None:
    """Neither as a dead letter nor by a move."""
    scene, _ = await set_scene(world)
    caller = await new_key(world, scene.own, name="ann", prefixes=("x-", "q-main", "q-source"))

    async def refused(action: str, params: dict[str, Any]) -> None:
        answer = await call(world, caller, "json", action, params)
        assert isinstance(answer, wire.WireRefusal), (action, answer)
        assert answer.code == "AccessDenied", (action, answer)

    redrive = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn(scene.own, SPARE), "maxReceiveCount": 1})}
    await refused("CreateQueue", {"QueueName": "x-1", "Attributes": redrive})
    await refused("SetQueueAttributes", {"QueueUrl": url(world, scene.own, MAIN), "Attributes": redrive})
    await refused("StartMessageMoveTask", {"SourceArn": arn(scene.own, MAIN), "DestinationArn": arn(scene.own, SPARE)})
    await refused("StartMessageMoveTask", {"SourceArn": arn(scene.own, MAIN)})
    await done(
        world,
        caller,
        "StartMessageMoveTask",
        {"SourceArn": arn(scene.own, MAIN), "DestinationArn": arn(scene.own, SOURCE)},
    )
    narrower = await new_key(world, scene.own, name="bea", prefixes=("q-main",))
    sources = await done(world, narrower, "ListDeadLetterSourceQueues", {"QueueUrl": url(world, scene.own, MAIN)})
    assert sources == {"queueUrls": []}


def test_a_key_that_only_sends_makes_no_queue() -> None:
    async def story(world: World) -> None:
        scene, _ = await set_scene(world)
        sender = await new_key(world, scene.own, name="ann", scopes=("send",))
        params = {"QueueUrl": url(world, scene.own, "new"), "MessageBody": "m"}
        answer = await call(world, sender, "json", "SendMessage", params)
        assert isinstance(answer, wire.WireRefusal)
        assert answer.code == "AccessDenied"
        assert isinstance(await call(world, NOBODY, "json", "SendMessage", params), wire.WireRefusal)
        bare = {"QueueUrl": "bare", "MessageBody": "m"}
        assert isinstance(await call(world, NOBODY, "json", "SendMessage", bare), wire.WireRefusal)
        await done(world, scene.root, "SendMessage", params)

    with World(auto_create_queues=True) as own:
        own.run(story(own))


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
        answers = [await send(world, NOBODY, request) for request in requests]
        ids = [answer.headers.pop("x-amzn-requestid") for answer in answers]
        for answer, request_id in zip(answers, ids, strict=True):
            answer.body = answer.body.replace(request_id.encode(), b"id")
            assert answer == answers[0], protocol
        assert answers[0].status == 403
    assert isinstance(await call(world, NOBODY, "json", "SendMessage", {"QueueUrl": main, "MessageBody": "m"}), dict)


@in_world
async def test_a_public_queue_takes_a_plain_request(world: World) -> None:
    """As from a browser or curl: the queue's URL, an action and a body, by GET or as a form."""
    scene, _ = await set_scene(world)
    await set_policy(world, scene, allow(Action="sqs:SendMessage"))
    path, form = f"/{scene.own}/{MAIN}", "Action=SendMessage&MessageBody=plain"
    before = await counters(world, scene.root)
    posted = {"Content-Type": "application/x-www-form-urlencoded"}
    for request in (wire.WireRequest("GET", path, {}, form), wire.WireRequest("POST", path, posted, "", form.encode())):
        answer = await send(world, NOBODY, request)
        assert (answer.status, b"<MessageId>" in answer.body) == (200, True), answer
    assert int((await counters(world, scene.root))[0]) == int(before[0]) + 2
    gone = await send(world, NOBODY, wire.WireRequest("GET", f"/{scene.own}/gone", {}, form))
    assert (gone.status, b"MissingAuthenticationToken" in gone.body) == (403, True)


@in_world
async def test_unsigned_requests_do_not_crowd_out_others(world: World) -> None:
    """However many arrive at once, few of them read the store at the same time."""
    scene, _ = await set_scene(world)
    store = world.app.services.metadata._store
    under_way = most = 0
    get_queue = store.get_queue

    async def counted(account: str, name: str) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await get_queue(account, name)
        finally:
            under_way -= 1

    store.get_queue = counted  # type: ignore[method-assign]
    try:
        calls = [
            call(world, NOBODY, "json", "SendMessage", {"QueueUrl": url(world, scene.own, f"n{n}"), "MessageBody": "m"})
            for n in range(100)
        ]
        answers = await asyncio.gather(*calls)
    finally:
        store.get_queue = get_queue  # type: ignore[method-assign]
    assert all(isinstance(answer, wire.WireRefusal) for answer in answers)
    assert 1 <= most <= 8


# --- invalid policies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", wire.PROTOCOLS)
def test_a_policy_that_cannot_be_evaluated_is_refused_and_changes_nothing(
    world: World, protocol: wire.Protocol
) -> None:
    async def story(world: World) -> None:
        scene, _ = await set_scene(world)
        await set_policy(world, scene, allow(Sid="kept"))
        queue = {"QueueUrl": url(world, scene.own, MAIN)}
        asked = queue | {"AttributeNames": ["Policy"]}
        kept = await done(world, scene.root, "GetQueueAttributes", asked)
        for statement, reason in (
            (allow(Condition={"StringSounds": {"aws:SourceIp": "x"}}), "StringSounds"),
            (allow(Principal={"AWS": "somebody"}), "somebody"),
            (allow(Resource=7), "Resource is a text"),
            (allow(Action="sns:Publish"), "out of service scope"),
            (allow(Principal={"AWS": [f"{number:012d}" for number in range(51)]}), "at most 50 principals"),
        ):
            policy = {"Policy": json.dumps({"Version": "2012-10-17", "Statement": [statement]})}
            for action, params in (
                ("SetQueueAttributes", queue | {"Attributes": policy}),
                ("CreateQueue", {"QueueName": "fresh", "Attributes": policy}),
            ):
                answer = await call(world, scene.root, protocol, action, params)
                assert isinstance(answer, wire.WireRefusal), answer
                assert answer.code == "InvalidAttributeValue"
                assert answer.message.startswith("Invalid value for the parameter Policy. Reason: ")
                assert reason in answer.message
        assert await done(world, scene.root, "GetQueueAttributes", asked) == kept
        answer = await call(world, scene.root, protocol, "GetQueueUrl", {"QueueName": "fresh"})
        assert isinstance(answer, wire.WireRefusal)

    world.run(story(world))
