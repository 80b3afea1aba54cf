"""The whole endpoint, in process: signed bad calls in both protocols, and bytes that are no calls at all.

Many calls are made concurrently, as by clients, against the real journal and metadata.  For any input, the
answer is 200 or a client error in the caller's protocol, with a request id and a registered code; never a
server error, a hang, or a malformed answer.
"""

import asyncio
import json
import logging
import tracemalloc
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import Any
from urllib.parse import quote, unquote_to_bytes
from xml.etree import ElementTree as ET

from frontend.sqs.protocol.errors import REGISTRY
from frontend.sqs.protocol.limits import HOLDFAST_LENGTH_MAX
from metadata_service.queue_settings import MAXIMUM_BYTES, MAXIMUM_MESSAGES
from tests.behaviour import wire
from tests.behaviour.clockwork import real_seconds
from tests.behaviour.runner import CaseCaller
from tests.behaviour.world import World, exchange
from tests.fuzz import budget, large
from tests.fuzz.grammar import ACTIONS, DICTIONARY, Draws
from tests.fuzz.targets import Broken, sign

CONCURRENT = 24
BODY_BYTES_MAX = 8 * 1024 * 1024 - 4096
STORED_ALLOWANCE_BYTES = 8 * 1024 * 1024
"""Allowance for a stored message of 1 MiB: its text can have four bytes per character, and is copied on its way."""
FORM = "application/x-www-form-urlencoded; charset=utf-8"
WORLD_CALLS = 25_000
"""Number of calls after which a world is replaced, so that its stored data stay small."""
HANG_SECONDS = 60
CODES = frozenset(kind.query_code for kind in REGISTRY.values())
FURNISH_VOLLEYS = 40
KNOWN_MAX = 20
LEARNT = ("QueueUrl", "ReceiptHandle", "NextToken", "TaskHandle")
UNKNOWN_OPERATION = b"<UnknownOperationException/>\n"


@dataclass
class Tally:
    """Results of a run."""

    inputs: int = 0
    taken: int = 0
    """Number of inputs answered with 200."""
    cost: budget.Cost = field(default_factory=budget.Cost)
    """Maximum costs: CPU time of single requests, memory of a volley's requests together."""


class Door:
    """A world under attack.  ``protocol`` None: requests of any form, most of them unsigned."""

    def __init__(self, protocol: wire.Protocol | None, seed: int) -> None:
        self.protocol = protocol
        self.random = Random(seed)
        self.tally = Tally()
        self.known: dict[str, list[str]] = {}
        self._caller: CaseCaller
        self._world: World

    def run(self, inputs: int) -> None:
        """Feed inputs.  Raises :class:`Broken`, with the request in its text."""
        tracemalloc.start()
        try:
            self._run(inputs)
        finally:
            tracemalloc.stop()

    def _run(self, inputs: int) -> None:
        while inputs > 0:
            part = min(inputs, WORLD_CALLS)
            inputs -= part
            with World(queue_name_hold_seconds=0, purge_interval_seconds=0) as world:
                world.run(self.fire(world, part))

    async def fire(self, world: World, inputs: int) -> None:
        """Feed inputs to this world."""
        self._world = world
        self._caller = await world.new_caller()
        # the framework initializes itself at its first request
        await exchange(world.app, wire.WireRequest("GET", "/docs", {"Host": world.host}, "", b""))
        self.known = {}
        draws = Draws(self.random, self.known)
        volleys = 0
        while inputs > 0:
            if volleys % FURNISH_VOLLEYS == 0:
                await self._furnish()  # queues are deleted on the way, or get restrictive attributes
            volleys += 1
            count = min(inputs, CONCURRENT)
            inputs -= count
            await self.volley([self.request(draws) for _ in range(count)])

    async def volley(self, requests: list[wire.WireRequest]) -> None:
        """Make requests concurrently; returns when each has a valid answer."""
        if tracemalloc.is_tracing():
            tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        tasks = [asyncio.ensure_future(self.shoot(request)) for request in requests]
        give_up = real_seconds() + HANG_SECONDS
        waiting = set(tasks)
        while waiting:
            # The loop's time is the world's, so it does not measure real seconds once the clock is advanced.
            _, waiting = await asyncio.wait(waiting, timeout=0.05)
            if waiting:
                await self._world.advance(21)  # long polls
            if real_seconds() > give_up:
                raise Broken(f"no answer within {HANG_SECONDS} s to one of {requests}")
        for task in tasks:
            task.result()
        peak = tracemalloc.get_traced_memory()[1] - before
        allowances = (len(requests) - 1) * budget.MEMORY_ALLOWANCE_BYTES
        factor = budget.memory_factor(peak - allowances, sum(map(size_of, requests)), STORED_ALLOWANCE_BYTES)
        self.tally.cost = self.tally.cost.maximum(budget.Cost(0.0, factor))

    def run_large(self, inputs: int) -> budget.Cost:
        """Feed large requests, one at a time; returns the maxima.

        Raises :class:`Broken`, with the beginning of one.
        """
        maximum = budget.Cost()
        with World(queue_name_hold_seconds=0, purge_interval_seconds=0) as world:
            world.run(self.fire(world, CONCURRENT))
            draws = Draws(self.random, self.known)
            for _ in range(inputs):
                request = self.large_request(draws)
                if _receives(request):
                    continue  # its cost is caused by data that earlier requests have stored
                handle = partial(self._run_alone, world, request)
                try:
                    maximum = maximum.maximum(budget.measured(handle, size_of(request), STORED_ALLOWANCE_BYTES))
                except budget.OverBudget as error:
                    raise Broken(f"{error}: {request!r}"[:20_000]) from error
        return maximum

    def _run_alone(self, world: World, request: wire.WireRequest) -> None:
        world.run(self.volley([request]))

    def large_request(self, draws: Draws) -> wire.WireRequest:
        """A request with a large body, or a head of maximum size."""
        length = min(draws.one(large.SIZES), BODY_BYTES_MAX)
        protocol = self.protocol or draws.one(wire.PROTOCOLS)
        if protocol == "json":
            action, body = large.json_body(draws, length)
            headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
            request = wire.WireRequest("POST", "/", headers, "", body)
        else:
            _, body = large.form(draws, length)
            request = wire.WireRequest("POST", "/", {"Content-Type": FORM}, "", body)
            if draws.chance(20):
                request = wire.WireRequest("GET", "/", {}, _canonical(body[: draws.one((5_000, 30_000))]), b"")
        if self.protocol is not None:
            return self._signed(request)
        request.headers["Host"] = self._world.host
        kind = draws.below(5)
        if kind == 0:
            request.headers["Authorization"] = _header(large.authorization(draws, length)[b"authorization"].decode())
        elif kind == 1:
            request.query = large.presigned(draws, length).decode("latin-1")
        elif kind == 2:
            request.path = draws.one(("/v1/queues/q", "/v1/queues/q/messages", "/v1/tenants", "/v1/keys"))
            return self._signed(request)
        return request

    async def _furnish(self) -> None:
        """Create queues, messages and handles for the calls, and record their names."""
        known: dict[str, list[str]] = {name: [] for name in LEARNT}
        known["SourceArn"] = known["DestinationArn"] = []
        queues: tuple[tuple[str, dict[str, str]], ...] = (
            ("q", {}),
            ("d", {}),
            ("s", {}),
            ("q.fifo", {"FifoQueue": "true"}),
        )
        for name, attributes in queues:
            url = f"http://{self._world.host}/{self._caller.account}/{name}"
            if not await self._is_there(url):
                url = (await self.call("CreateQueue", {"QueueName": name, "Attributes": attributes}))["QueueUrl"]
            arn = f"arn:aws:sqs:{self._world.region}:{self._caller.account}:{name}"
            known["QueueUrl"].append(url)
            known["SourceArn"].append(arn)
            unlimited = {name: str(HOLDFAST_LENGTH_MAX) for name in (MAXIMUM_MESSAGES, MAXIMUM_BYTES)}
            await self.call("SetQueueAttributes", {"QueueUrl": url, "Attributes": unlimited})
            for number in range(3):
                params: dict[str, Any] = {"QueueUrl": url, "MessageBody": f"m{number}"}
                if attributes:
                    params |= {"MessageGroupId": f"g{number}", "MessageDeduplicationId": f"d{number}"}
                await self.call("SendMessage", params)
            received = await self.call(
                "ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": 2, "WaitTimeSeconds": 0}
            )
            known["ReceiptHandle"] += [message["ReceiptHandle"] for message in received.get("Messages", ())]
        policy = json.dumps({"deadLetterTargetArn": known["SourceArn"][1], "maxReceiveCount": 3})
        await self.call(
            "SetQueueAttributes", {"QueueUrl": known["QueueUrl"][2], "Attributes": {"RedrivePolicy": policy}}
        )
        for name, values in known.items():
            kept = self.known.setdefault(name, [])
            kept += [value for value in values if value not in kept]
        for name in LEARNT:
            self.known[name] = self.known[name][-KNOWN_MAX:] or ["x"]

    async def _is_there(self, url: str) -> bool:
        request = self._signed(wire.encode("json", "ListQueueTags", {"QueueUrl": url}))
        return (await exchange(self._world.app, request)).status == 200

    async def call(self, action: str, params: dict[str, Any]) -> dict[str, Any]:
        """Make a valid call."""
        request = self._signed(wire.encode("json", action, params))
        answer = wire.decode("json", action, await exchange(self._world.app, request))
        assert isinstance(answer, dict), answer
        return answer

    # --- one shot ---

    def request(self, draws: Draws) -> wire.WireRequest:
        """The next request."""
        if self.protocol is None:
            return self._wild(draws)
        action = draws.action()
        path = "/"
        if draws.chance(12):
            path = draws.one((f"/{self._caller.account}/q", f"/{self._caller.account}/q.fifo", "/q", "/x/y/z"))
        if self.protocol == "json":
            target = f"AmazonSQS.{action}" if draws.chance(99) else draws.text()
            headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": _header(target)}
            return self._signed(wire.WireRequest("POST", path, headers, "", draws.json_body(action)))
        form = draws.form(action)
        if draws.chance(20):
            return self._signed(wire.WireRequest("GET", path, {}, _canonical(form), b""))
        headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
        return self._signed(wire.WireRequest("POST", path, headers, "", form))

    def _wild(self, draws: Draws) -> wire.WireRequest:
        """Any request that an HTTP server would accept."""
        method = draws.one(("GET", "POST") * 6 + ("PUT", "DELETE", "HEAD", "OPTIONS", "FOO"))
        queue, quoted = f"/{self._caller.account}/q", "/" + quote(draws.text(), safe="/%")
        path = draws.one((queue, quoted, *DICTIONARY["paths"]))
        headers = {"Host": self._world.host}
        for _ in range(draws.below(4)):
            name = draws.one(DICTIONARY["header_names"])
            value = draws.one((*DICTIONARY["header_values"], draws.text()))
            headers[name] = _header(value)
        if draws.chance(50):
            headers["Authorization"] = _header(draws.authorization())
        query = draws.one((b"", draws.form(draws.one(ACTIONS)), draws.presigned(), draws.broken(b"Action=ListQueues")))
        body = draws.one((b"", draws.json_body(draws.one(ACTIONS)), draws.form(draws.one(ACTIONS))))
        request = wire.WireRequest(method, path, headers, query.decode("latin-1"), body)
        return self._signed(request) if draws.chance(20) else request

    def _signed(self, request: wire.WireRequest) -> wire.WireRequest:
        signer = self._caller.signer
        stamp = _stamp(self._world.now_ms())
        headers = {
            name.lower(): " ".join(value.split())
            for name, value in request.headers.items()
            if name.lower() != "authorization"
        }
        headers |= {"host": self._world.host, "x-amz-date": stamp}
        request.headers = headers
        authorization = sign(
            request.method,
            request.path,
            request.query,
            headers,
            request.body,
            stamp,
            signer.secret,
            signer.access_key_id,
        )
        request.headers = {**headers, "authorization": authorization}
        return request

    async def shoot(self, request: wire.WireRequest) -> None:
        """Make one request; raises :class:`Broken` if its answer is malformed."""
        stepped = budget.Stepped(exchange(self._world.app, request))
        try:
            answer = await stepped
            self._judge(request, answer)
            if stepped.cpu_seconds > budget.TRIES * budget.CPU_SECONDS_MAX:
                raise budget.OverBudget(f"{stepped.cpu_seconds:.3f} s of CPU time")
        except Exception as error:
            raise Broken(f"{type(error).__name__}: {error}\nrequest: {request!r}"[:20_000]) from error
        self.tally.inputs += 1
        self.tally.cost = self.tally.cost.maximum(budget.Cost(stepped.cpu_seconds, 0.0, 1))
        if answer.status == 200:
            self.tally.taken += 1
            if not request.path.startswith("/v1/"):
                self._learn(answer)

    def _judge(self, request: wire.WireRequest, answer: wire.WireAnswer) -> None:
        if request.path.startswith("/v1/"):
            assert 200 <= answer.status < 500, f"status {answer.status}: {answer.body[:500]!r}"
            assert answer.headers.get("x-request-id"), "no request id"
            assert answer.status < 300 or json.loads(answer.body)["code"]
            return
        if request.path in ("/health/ready", "/docs") and request.method in ("GET", "HEAD"):
            return
        status = answer.status
        assert status == 200 or 400 <= status < 500, f"status {status}: {answer.body[:500]!r}"
        assert answer.headers.get("x-amzn-requestid"), "no request id"
        kind = answer.headers["content-type"]
        if kind.startswith("text/xml"):
            root = ET.fromstring(answer.body)
            code = root.findtext(f".//{{{wire.XMLNS}}}Code")
            assert status == 200 or answer.body == UNKNOWN_OPERATION or code in CODES, f"code {code}"
        else:
            body = json.loads(answer.body)
            if status != 200 and kind.startswith("application/x-amz-json"):
                assert answer.headers["x-amzn-query-error"].split(";")[0] in CODES, answer
                assert "#" in body["__type"], answer

    def _learn(self, answer: wire.WireAnswer) -> None:
        """Record handles and tokens of answers for later calls."""
        if not answer.headers["content-type"].startswith("application/x-amz-json"):
            return
        for name, text in _texts(json.loads(answer.body)):
            kept = self.known[name]
            if len(kept) < KNOWN_MAX:
                kept.append(text)
            elif name != "QueueUrl":
                kept[self.random.randrange(KNOWN_MAX)] = text


def _receives(request: wire.WireRequest) -> bool:
    targets = [value for name, value in request.headers.items() if name.lower() == "x-amz-target"]
    return targets == ["AmazonSQS.ReceiveMessage"] or (
        b"Action=ReceiveMessage" in request.body or "Action=ReceiveMessage" in request.query
    )


def size_of(request: wire.WireRequest) -> int:
    """The length of a request in bytes."""
    head = sum(len(name) + len(value) for name, value in request.headers.items())
    return len(request.path) + len(request.query) + head + len(request.body)


def _texts(value: Any) -> list[tuple[str, str]]:
    """Values in an answer that later calls can use."""
    if isinstance(value, dict):
        own = [(name, inner) for name, inner in value.items() if name in LEARNT and isinstance(inner, str)]
        return own + [text for inner in value.values() for text in _texts(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in _texts(inner)]
    return []


def _canonical(form: bytes) -> str:
    """The fields as a query string in canonical form."""
    pairs = []
    for pair in form.split(b"&"):
        name, _, value = pair.partition(b"=")
        if name or value:
            pairs.append(
                tuple(quote(unquote_to_bytes(part.replace(b"+", b" ")), safe="-_.~") for part in (name, value))
            )
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def _header(text: str) -> str:
    """The text as a valid header value: no controls, and the bytes of its UTF-8."""
    return "".join(letter for letter in text.encode().decode("latin-1") if letter.isprintable())


def _stamp(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")


def quiet() -> None:
    """Disable logging: the refusals of a million inputs would fill a disk."""
    logging.disable(logging.ERROR)
