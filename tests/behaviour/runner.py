"""Runner of a behaviour case on a subject, in one protocol."""

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

from tests.behaviour import wire
from tests.behaviour.cases import Case, CaseError, CaseStep, parse_seconds, resolve
from tests.behaviour.clockwork import real_seconds
from tests.behaviour.match import ABSENT, differences
from tests.behaviour.signing import SignatureScope

EVENTUALLY_SECONDS = 5


class CaseFailed(AssertionError):
    """A step's result differs from the expected one; the text says which and how."""


@dataclass
class CaseCaller:
    """An account with an access key."""

    account: str
    signer: SignatureScope
    principal_id: str


class Subject(Protocol):
    """The service under test, with its clock controlled by the test."""

    host: str
    region: str

    async def new_caller(self) -> CaseCaller:
        """Create an account."""

    async def exchange(self, request: wire.WireRequest) -> wire.WireAnswer:
        """Make one HTTP exchange."""

    async def advance(self, seconds: float) -> None:
        """Advance virtual time, and run everything that is due."""

    async def run_until_idle(self) -> None:
        """Run pending calls until they wait for something."""

    def now_ms(self) -> int:
        """Return virtual time, in milliseconds."""


@dataclass
class CallOutcome:
    """Result of a call."""

    answer: wire.WireAnswer
    parsed: dict[str, Any] | wire.WireRefusal | None


class CaseRun:
    """One case in one protocol: variables and calls under way."""

    def __init__(
        self, subject: Subject, case: Case, protocol: wire.Protocol, caller: CaseCaller, other: CaseCaller
    ) -> None:
        self._subject = subject
        self._case = case
        self._protocol = protocol
        self._caller = caller
        self._callers = {"self": caller, "other": other}
        self._waiting: dict[str, tuple[CaseStep, asyncio.Task[CallOutcome]]] = {}
        self.variables: dict[str, Any] = {
            "account": caller.account,
            "other": other.account,
            "sender": caller.principal_id,
            "other_sender": other.principal_id,
            "key": caller.signer.access_key_id,
            "host": subject.host,
            "region": subject.region,
            "empty": "",
        }
        self.variables.update({name: resolve(value, self.variables) for name, value in case.variables.items()})

    async def run(self) -> None:
        """Run the case.  Raises CaseFailed."""
        try:
            for name, attributes in self._case.queues.items():
                await self._make_queue(name, attributes)
            for number, step in enumerate(self._case.steps, 1):
                if step.options.get("only", self._protocol) == self._protocol:
                    await self._step(number, step)
        finally:
            for _, task in self._waiting.values():
                task.cancel()
            await asyncio.gather(*(task for _, task in self._waiting.values()), return_exceptions=True)

    async def _make_queue(self, name: str, attributes: dict[str, str]) -> None:
        short = name.removesuffix(".fifo")
        params: dict[str, Any] = {"QueueName": name}
        attributes = resolve(attributes, self.variables)
        if name.endswith(".fifo"):
            attributes = {"FifoQueue": "true", **attributes}
        if attributes:
            params["Attributes"] = attributes
        outcome = await self._call("CreateQueue", params, {})
        if not isinstance(outcome.parsed, dict):
            raise CaseFailed(f"{self._case.name}: queue {name}: {outcome}")
        self.variables[short] = outcome.parsed["QueueUrl"]
        if any("background" in step.options for step in self._case.steps):
            # Opens the partition, so that a background call reaches its wait without waiting for the disk.
            await self._call("GetQueueAttributes", {"QueueUrl": self.variables[short], "AttributeNames": ["All"]}, {})
        self.variables[f"{short}.name"] = name
        self.variables[f"{short}.arn"] = f"arn:aws:sqs:{self._subject.region}:{self._caller.account}:{name}"

    async def _step(self, number: int, step: CaseStep) -> None:
        self.variables["now_ms"] = self._subject.now_ms()
        give_up = real_seconds() + EVENTUALLY_SECONDS
        label = f"{self._case.name} [{self._protocol}] step {number} ({step.action or step.kind})"
        if step.kind == "advance":
            await self._subject.advance(parse_seconds(resolve(step.params, self.variables)))
            return
        if step.kind == "await":
            step, task = self._waiting.pop(step.params)
            async with asyncio.timeout(30):
                outcome = await task
        else:
            if step.kind == "call":
                coroutine = self._call(step.action, resolve(step.params, self.variables), step.options)
            else:
                coroutine = self._http(resolve(step.params, self.variables), step.options)
            if "background" in step.options:
                self._waiting[step.options["background"]] = (step, asyncio.ensure_future(coroutine))
                await self._subject.run_until_idle()
                return
            async with asyncio.timeout(30):
                outcome = await coroutine
        while step.options.get("eventually") and self._problems(step, outcome)[0] and real_seconds() < give_up:
            await self._subject.run_until_idle()
            outcome = await self._call(step.action, resolve(step.params, self.variables), step.options)
        self._judge(label, step, outcome)

    async def _call(self, action: str, params: Any, options: dict[str, Any]) -> CallOutcome:
        path = resolve(options.get("path"), self.variables)
        request = wire.encode(self._protocol, action, params, method=options.get("method", "POST"), path=path)
        answer = await self._send(request, options)
        return CallOutcome(answer, wire.decode(self._protocol, action, answer))

    async def _http(self, params: dict[str, Any], options: dict[str, Any]) -> CallOutcome:
        """Make a request that no SDK would make; ``expect`` is about status, headers and body text."""
        body = params.get("body", "")
        request = wire.WireRequest(
            params.get("method", "POST"),
            params.get("path", "/"),
            dict(params.get("headers", {})),
            params.get("query", ""),
            body.encode() if isinstance(body, str) else body,
        )
        return CallOutcome(await self._send(request, options), None)

    async def _send(self, request: wire.WireRequest, options: dict[str, Any]) -> wire.WireAnswer:
        host = resolve(options.get("host", self._subject.host), self.variables)
        request.headers.update(resolve(options.get("headers", {}), self.variables))
        sign = resolve(options.get("sign", {}), self.variables)
        if sign is False:
            request.headers["Host"] = host
            return await self._subject.exchange(request)
        signer = self._callers[sign.get("as", "self")].signer
        signer = SignatureScope(
            sign.get("key", signer.access_key_id),
            sign.get("secret", signer.secret),
            sign.get("region", signer.region),
            sign.get("service", signer.service),
        )
        now_ms = self._subject.now_ms() + int(parse_seconds(sign.get("offset", 0)) * 1000)
        signed = signer.sign(request, host, now_ms, presign_seconds=sign.get("presign"))
        for header, value in sign.get("then", {}).items():
            # Changed after signing: the request is tampered with.
            if header == "body":
                signed.body = value.encode()
            elif header == "query":
                signed.query = value
            elif value is None:
                signed.headers = {key: text for key, text in signed.headers.items() if key.lower() != header.lower()}
            else:
                signed.headers[header] = value
        return await self._subject.exchange(signed)

    def _judge(self, label: str, step: CaseStep, outcome: CallOutcome) -> None:
        problems, seen = self._problems(step, outcome)
        if problems:
            raise CaseFailed(f"{label}:\n  " + "\n  ".join(problems) + f"\n  answer: {str(seen)[:1500]}")
        for name, source in step.options.get("save", {}).items():
            value = _dig(seen, source)
            if value is ABSENT:
                raise CaseFailed(f"{label}: nothing at {source} to save: {seen}")
            self.variables[name] = value

    def _problems(self, step: CaseStep, outcome: CallOutcome) -> tuple[list[str], dict[str, Any]]:
        """Return the differences from the step's expectation, and the actual values."""
        parsed, error = outcome.parsed, step.options.get("error")
        seen: dict[str, Any]
        if step.kind == "http":
            seen = {
                "status": outcome.answer.status,
                "headers": outcome.answer.headers,
                "body": outcome.answer.body.decode(errors="replace"),
            }
            return differences(resolve(step.options["expect"], self.variables), seen), seen
        if step.options.get("outcome") == "any":
            return [], {}
        if isinstance(parsed, wire.WireRefusal):
            seen = {"shape": parsed.shape, "code": parsed.code, "status": parsed.status, "message": parsed.message}
            if error is None:
                return ["refused"], seen
            return differences(expected_refusal(resolve(error, self.variables), self._protocol), seen, "error"), seen
        seen = parsed or {}
        if error is not None:
            return [f"answered, expected {error}"], seen
        return differences(resolve(step.options.get("expect", {}), self.variables), seen), seen


def expected_refusal(error: str | dict[str, Any], protocol: wire.Protocol) -> dict[str, Any]:
    """Return the shape, code, status and message that an ``error`` in a case expects."""
    if isinstance(error, str):
        error = {"shape": error}
    unknown = set(error) - {"shape", "code", "status", "message"}
    if unknown:
        raise CaseError(f"unknown keys in error: {unknown}")
    wanted: dict[str, Any] = {}
    shape = error.get("shape")
    if shape is not None and shape in wire.errors():
        wanted["code"], wanted["status"] = wire.errors()[shape]
    if shape is not None and protocol == "json":
        wanted["shape"] = shape
    wanted.update({key: error[key] for key in ("code", "status", "message") if key in error})
    message = wanted.get("message")
    if isinstance(message, dict) and set(message) <= {"json", "query"}:
        wanted["message"] = message[protocol]
    return wanted


def _dig(value: Any, path: str) -> Any:
    for key in path.split("."):
        if isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        elif isinstance(value, dict) and key in value:
            value = value[key]
        else:
            return ABSENT
    return value
