"""A queue and its would-be users: accounts, credentials, and calls in either protocol."""

import itertools
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from string import Template
from typing import Any

import msgspec

from auth.credentials import AccessKey, Tenant, TenantRole, new_access_key
from auth.grants import Grant
from auth.principal import SCOPES
from auth.tokens.api_keys import new_api_key
from tests.behaviour import wire
from tests.behaviour.signing import SignatureScope
from tests.behaviour.world import World, exchange
from tests.tables import beside

_ACCOUNTS = itertools.count(300_000_000_000)
MAIN, SOURCE, SPARE, GONE = "q-main", "q-source", "q-spare", "q-gone"
HANDLES = ("DeleteMessage", "DeleteMessageBatch", "ChangeMessageVisibility", "ChangeMessageVisibilityBatch")
REGION = World.region
CALLS = beside(__file__, "calls.yaml")


def in_world(body: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[World], None]:
    """Make a test that runs in the world's loop."""

    def test(world: World) -> None:
        world.run(body(world))

    test.__doc__ = body.__doc__
    return test


@dataclass
class Party:
    """A caller and its address; without ``signer`` and ``bearer`` it is anonymous."""

    account: str
    signer: SignatureScope | None
    scheme: str = "http"
    client: str = "127.0.0.1"
    bearer: str | None = None


async def new_tenant(world: World) -> tuple[str, Party]:
    """A new account, and its root."""
    account = str(next(_ACCOUNTS))
    await world.credentials.store.put_tenant(Tenant(account, f"tenant {account}"))
    return account, await new_key(world, account)


async def new_key(world: World, account: str, **changes: Any) -> Party:
    """A caller with a new access key, with these fields changed."""
    key: AccessKey = msgspec.structs.replace(new_access_key(account), **changes)
    await world.credentials.put(key)
    return Party(account, SignatureScope(key.access_key_id, key.secret, REGION))


async def new_bearer(
    world: World, account: str, *, token: bool, active: bool = True, expires_s: int | None = None, **rights: Any
) -> Party:
    """A caller with a new API key of these rights, or with a token of these rights bought with an unrestricted key."""
    record, text = new_api_key(account, expires_s=expires_s, **({"name": rights["name"]} if token else rights))
    await world.credentials.put_api_key(msgspec.structs.replace(record, active=active))
    if token:
        narrower = {name: rights[name] for name in ("scopes", "prefixes") if name in rights}
        text = await world.app.services.tokens.issue(record, world.now_ms() / 1000, **narrower)
    return Party(account, None, bearer=text)


async def new_session(
    world: World, account: str, *, name: str, scopes: tuple[Any, ...] = SCOPES, prefixes: tuple[str, ...] = ()
) -> Party:
    """A caller with the temporary key of a session ``s1`` of a new role."""
    role = TenantRole(account, name, "AROAEXAMPLE", scopes=scopes, prefixes=prefixes)
    await world.credentials.put_role(role)
    grant = Grant(
        account=account,
        principal_id=f"{role.role_id}:s1",
        arn=f"arn:aws:sts::{account}:assumed-role/{name}/s1",
        credential="",
        role="user",
        scopes=scopes,
        prefixes=prefixes,
        expires_s=world.now_ms() // 1000 + 900,
        assumed=f"{account}/{name}",
        role_id=role.role_id,
    )
    session, token = await world.app.services.sessions.start(grant)
    return Party(account, SignatureScope(session.access_key_id, session.secret, REGION, token=token))


async def set_state(world: World, account: str, state: str) -> None:
    tenant = await world.credentials.store.get_tenant(account)
    assert tenant is not None
    await world.credentials.update_tenant(msgspec.structs.replace(tenant, state=state))


async def send(world: World, caller: Party, request: wire.WireRequest) -> wire.WireAnswer:
    if caller.signer is None:
        request.headers["Host"] = world.host
        if caller.bearer is not None:
            request.headers["Authorization"] = f"Bearer {caller.bearer}"
    else:
        request = caller.signer.sign(request, world.host, world.now_ms())
    return await exchange(world.app, request, scheme=caller.scheme, client=caller.client)


async def call(
    world: World, caller: Party, protocol: wire.Protocol, action: str, params: dict[str, Any], **options: Any
) -> dict[str, Any] | wire.WireRefusal:
    """Make a call; returns the answer with its envelope checked."""
    request = wire.encode(protocol, action, params, **options)
    return wire.decode(protocol, action, await send(world, caller, request))


async def done(world: World, caller: Party, action: str, params: dict[str, Any]) -> dict[str, Any]:
    """Make a call that must succeed."""
    answer = await call(world, caller, "json", action, params)
    assert isinstance(answer, dict), (action, answer)
    return answer


def url(world: World, account: str, name: str) -> str:
    return f"http://{world.host}/{account}/{name}"


def arn(account: str, name: str) -> str:
    return f"arn:aws:sqs:{REGION}:{account}:{name}"


def filled_in(value: Any, names: dict[str, str]) -> Any:
    """``value`` with ``$names`` in its texts replaced."""
    return json.loads(Template(json.dumps(value)).substitute(names))


@dataclass
class Scene:
    """A dead-letter queue of ``own`` that holds messages, some of them in flight."""

    own: str
    root: Party
    other: str
    third: str
    handles: dict[str, str]

    @property
    def names(self) -> dict[str, str]:
        return {"own": self.own, "other": self.other, "third": self.third, "arn": arn(self.own, MAIN)}


async def set_scene(world: World) -> tuple[Scene, Party]:
    """Create the scene; returns it with the root of the other account."""
    own, root = await new_tenant(world)
    other, other_root = await new_tenant(world)
    third, _ = await new_tenant(world)
    redrive = json.dumps({"deadLetterTargetArn": arn(own, MAIN), "maxReceiveCount": 5})
    await done(world, root, "CreateQueue", {"QueueName": MAIN})
    await done(world, root, "CreateQueue", {"QueueName": SPARE})
    await done(world, root, "CreateQueue", {"QueueName": SOURCE, "Attributes": {"RedrivePolicy": redrive}})
    main = url(world, own, MAIN)
    entries = [{"Id": str(number), "MessageBody": "m"} for number in range(9)]
    await done(world, root, "SendMessageBatch", {"QueueUrl": main, "Entries": entries})
    messages: list[Any] = []
    while len(messages) < len(HANDLES):
        missing = len(HANDLES) - len(messages)
        messages += (await done(world, root, "ReceiveMessage", {"QueueUrl": main, "MaxNumberOfMessages": missing}))[
            "Messages"
        ]
    handles = {action: message["ReceiptHandle"] for action, message in zip(HANDLES, messages, strict=True)}
    return Scene(own, root, other, third, handles), other_root


def calls_on(world: World, scene: Scene, name: str) -> dict[str, dict[str, Any]]:
    """Parameters of a valid call of each action for the queue of this name, in an order in which all 23 can be
    made; those that delete the queue come last."""
    names = {"queue": url(world, scene.own, name), "name": name, "own": scene.own}
    names |= {"arn": arn(scene.own, name), "spare": arn(scene.own, SPARE), "task": "", **scene.handles}
    calls: dict[str, dict[str, Any]] = filled_in(CALLS, names)
    return calls
