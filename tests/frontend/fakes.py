"""A backend in a dictionary, a service around it, and a caller that signs."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree as ET

import httpx
import orjson
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as ClientCredentials

from auth.audit import AuditFile, AuditLog
from auth.credentials import AccessKey, Tenant
from auth.encryption.keyring import Keyring
from auth.encryption.master_keys import LocalMasterKeys, new_master_key
from auth.lookup import Credentials
from backend.api import (
    Counters,
    HandleOutcome,
    Measures,
    MoveTask,
    MoveTaskRefused,
    MoveTaskUnknown,
    NewMessage,
    PartitionGone,
    PartitionSettings,
    PartitionUnknown,
    Peeked,
    PeekState,
    Receive,
    ReceivedMessage,
    SendResult,
    SettingsStale,
    Target,
    TokenReused,
)
from billing.metering.meter import Meter
from frontend.app import FrontendApp, create_app
from frontend.request.settings import FrontendSettings
from frontend.services import Services
from metadata_service.nodes.cached_client import MetadataClient
from metadata_service.sqlite.store import SQLiteStore
from ratelimit.limiter import Limiter
from tests.auth.clock import Clock

KEY = AccessKey("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "123456789012", "AIDAPRINCIPAL")
NAMING = b"a secret of the service"
HOST = "queue.example.com"


@dataclass
class FakeMessage:
    new: NewMessage
    stored: SendResult
    visible_at: float
    sent_ms: int
    receives: int = 0
    first_received_ms: int = 0


@dataclass
class FakePartition:
    settings: PartitionSettings
    messages: dict[str, FakeMessage] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    tokens: dict[bytes, SendResult] = field(default_factory=dict)
    retries: dict[bytes, tuple[float, bytes, SendResult]] = field(default_factory=dict)
    """Time of first use, digest and answer by retry token."""
    moves: list[MoveTask] = field(default_factory=list)


class FakeBackend:
    """Fake backend with visibility, delays and tokens; without order, dead letters and waiting."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.partitions: dict[int, FakePartition] = {}
        self.dropped: set[int] = set()
        self.calls: list[tuple[str, Any]] = []
        self.fail_with: Exception | None = None
        self.sending = asyncio.Event()
        """While cleared, sends take effect, and their answers wait."""
        self.sending.set()
        self.sends = 0
        self.lost_answers: list[Exception] = []
        """Errors that sends raise after they have taken effect."""
        self._numbers = itertools.count(1)

    async def configure(self, settings: PartitionSettings) -> None:
        self.calls.append(("configure", settings))
        partition = self.partitions.setdefault(settings.partition, FakePartition(settings))
        if settings.version >= partition.settings.version:
            partition.settings = settings

    async def drop(self, target: Target) -> None:
        self.partitions.pop(target.partition, None)
        self.dropped.add(target.queue_id)

    async def purge(self, target: Target, purge_id: int) -> None:
        self._partition(target).messages.clear()

    async def release(self, target: Target, handles: Sequence[str]) -> None:
        self.calls.append(("release", handles))

    def _partition(self, target: Target) -> FakePartition:
        if self.fail_with is not None:
            raise self.fail_with
        if target.queue_id in self.dropped:
            raise PartitionGone
        partition = self.partitions.get(target.partition)
        if partition is None:
            raise PartitionUnknown
        if target.version > partition.settings.version:
            raise SettingsStale
        return partition

    async def send(self, target: Target, messages: Sequence[NewMessage]) -> list[SendResult]:
        partition = self._partition(target)
        self.sends += 1
        answers = [self._send(partition, message) for message in messages]
        await self.sending.wait()
        if self.lost_answers:
            raise self.lost_answers.pop()
        return answers

    def _send(self, partition: FakePartition, message: NewMessage) -> SendResult:
        if message.retry is not None:
            token, digest, now = message.retry[:16], message.retry[16:], self.clock()
            at, known, stored = partition.retries.get(token, (0.0, b"", None))
            if stored is not None and now < at + partition.settings.retry_window_seconds:
                if known != digest:
                    raise TokenReused
                return stored
            stored = self._store(partition, message)
            partition.retries[token] = (now, digest, stored)
            return stored
        return self._store(partition, message)

    def _store(self, partition: FakePartition, message: NewMessage) -> SendResult:
        if message.token is not None:
            for token in (message.token, message.also):
                if token in partition.tokens:
                    first = partition.tokens[token]
                    return SendResult(first.message_id, first.number, duplicate=True)
        number = next(self._numbers)
        stored = SendResult(f"00000000-0000-4000-8000-{number:012x}", number)
        delay = partition.settings.delay_seconds if message.delay_seconds is None else message.delay_seconds
        now = self.clock()
        partition.messages[stored.message_id] = FakeMessage(message, stored, now + delay, int(now * 1000))
        if message.token is not None:
            partition.tokens[message.token] = stored
        return stored

    async def receive(self, target: Target, command: Receive) -> list[ReceivedMessage]:
        self.calls.append(("receive", command))
        partition = self._partition(target)
        now = self.clock()
        received: list[ReceivedMessage] = []
        for message in partition.messages.values():
            if message.visible_at <= now and len(received) < command.most:
                message.visible_at = now + command.visibility_seconds
                message.receives += 1
                message.first_received_ms = message.first_received_ms or int(now * 1000)
                received.append(
                    ReceivedMessage(
                        message.stored.message_id,
                        f"{target.queue_id}:{message.stored.message_id}",
                        message.new.payload,
                        message.stored.number,
                        message.receives,
                        message.first_received_ms,
                        message.sent_ms,
                        message.new.group,
                    )
                )
        return received

    def _outcome(self, target: Target, handle: str) -> HandleOutcome:
        match = re.fullmatch(r"(\d+):(\S+)", handle)
        if not match:
            return HandleOutcome.MALFORMED
        return HandleOutcome.DONE if int(match[1]) == target.queue_id else HandleOutcome.OTHER_QUEUE

    async def delete(self, target: Target, handles: Sequence[str]) -> list[HandleOutcome]:
        partition = self._partition(target)
        for handle in handles:
            partition.messages.pop(handle.partition(":")[2], None)
        return [self._outcome(target, handle) for handle in handles]

    async def change_visibility(self, target: Target, changes: Sequence[tuple[str, int]]) -> list[HandleOutcome]:
        partition = self._partition(target)
        outcomes = []
        for handle, seconds in changes:
            outcome = self._outcome(target, handle)
            message = partition.messages.get(handle.partition(":")[2])
            if outcome == HandleOutcome.DONE and message is None:
                outcome = HandleOutcome.GONE
            elif message is not None:
                message.visible_at = self.clock() + seconds
            outcomes.append(outcome)
        return outcomes

    async def counters(self, target: Target) -> Counters:
        messages = self._partition(target).messages.values()
        now = self.clock()
        visible = sum(1 for message in messages if message.visible_at <= now)
        delayed = sum(1 for message in messages if message.visible_at > now and not message.receives)
        stored_bytes = sum(len(message.new.payload) for message in messages)
        return Counters(visible, len(messages) - visible - delayed, delayed, stored_bytes)

    async def stored_bytes(self, account: str) -> int:
        if self.fail_with is not None:
            raise self.fail_with
        return sum(
            len(message.new.payload)
            for partition in self.partitions.values()
            if partition.settings.account == account
            for message in partition.messages.values()
        )

    async def measures(self, target: Target) -> list[Measures]:
        partition, counters = self._partition(target), await self.counters(target)
        return [
            Measures(
                partition.settings.partition,
                partition.settings.arn.rpartition(":")[2],
                counters.visible,
                counters.in_flight,
                counters.delayed,
                counters.stored_bytes,
                min((one.sent_ms for one in partition.messages.values()), default=0),
            )
        ]

    async def measures_of(self, account: str, prefixes: Sequence[str], after: str, most: int) -> list[Measures]:
        self.calls.append(("measures_of", (account, prefixes, after, most)))
        measured: dict[str, Measures] = {}
        for partition in self.partitions.values():
            settings = partition.settings
            if settings.account == account:
                (one,) = await self.measures(Target(settings.partition, settings.queue_id, settings.version))
                if one.queue > after and (not prefixes or one.queue.startswith(tuple(prefixes))):
                    measured[one.queue] = one
        return [measured[name] for name in sorted(measured)[:most]]

    async def peek(self, target: Target, most: int, after: int = 0) -> list[Peeked]:
        now = self.clock()
        peeked = []
        later = [one for one in self._partition(target).messages.values() if one.stored.number > after]
        for message in later[:most]:
            state, due_ms = PeekState.VISIBLE, 0
            if message.visible_at > now:
                state = PeekState.IN_FLIGHT if message.receives else PeekState.DELAYED
                due_ms = int(message.visible_at * 1000)
            peeked.append(
                Peeked(
                    message.stored.message_id,
                    message.new.payload,
                    message.stored.number,
                    state,
                    due_ms,
                    message.receives,
                    message.first_received_ms,
                    message.sent_ms,
                    message.new.group,
                )
            )
        return peeked

    async def watch(self, target: Target, wait_seconds: float) -> bool:
        now = self.clock()
        return any(message.visible_at <= now for message in self._partition(target).messages.values())

    async def start_move(
        self, target: Target, destination_arn: str | None, rate_per_second: int, task_id: str | None = None
    ) -> MoveTask:
        partition = self._partition(target)
        if partition.moves and partition.moves[0].status == "RUNNING":
            raise MoveTaskRefused
        total = len(partition.messages)
        task_id = task_id or f"task-{len(partition.moves)}"
        task = MoveTask(task_id, "RUNNING", int(self.clock() * 1000), rate_per_second, destination_arn, total)
        partition.moves.insert(0, task)
        return task

    async def list_moves(self, target: Target) -> list[MoveTask]:
        return self._partition(target).moves

    async def cancel_move(self, target: Target, task_id: str) -> MoveTask:
        for task in self._partition(target).moves:
            if task.task_id == task_id and task.status == "RUNNING":
                task.status = "CANCELLED"
                return task
        raise MoveTaskUnknown


class FrontendAnswer:
    """An answer in either protocol."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.headers = response.headers
        self.content = response.content

    @property
    def json(self) -> Any:
        return orjson.loads(self.content)

    @property
    def xml(self) -> ET.Element:
        return ET.fromstring(re.sub(rb' xmlns="[^"]+"', b"", self.content))

    def text(self, path: str) -> str:
        found = self.xml.find(path)
        assert found is not None, self.content
        return found.text or ""

    @property
    def code(self) -> str:
        """Query code of an error, in either protocol."""
        if "x-amzn-query-error" in self.headers:
            return str(self.headers["x-amzn-query-error"].split(";")[0])
        return self.text("Error/Code")

    @property
    def message(self) -> str:
        if self.headers["content-type"].startswith("application/x-amz-json"):
            return str(self.json["message"])
        return self.text("Error/Message")


class FrontendService:
    """The application and its dependencies."""

    def __init__(
        self,
        app: FrontendApp,
        backend: FakeBackend,
        clock: Clock,
        client: httpx.AsyncClient,
        store: SQLiteStore,
        audit_file: Path,
    ) -> None:
        self.app = app
        self.backend = backend
        self.clock = clock
        self.client = client
        self.store = store
        self.audit_file = audit_file
        self._prepared: set[str] = set()
        """Ids of requests of :meth:`make_queue`."""

    def url(self, name: str) -> str:
        return f"http://{HOST}/{KEY.account}/{name}"

    async def json(
        self, action: str, members: Any = None, *, path: str = "/", body: bytes | None = None
    ) -> FrontendAnswer:
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
        content = orjson.dumps(members or {}) if body is None else body
        return await self.signed("POST", path, content, headers)

    async def query(
        self, action: str | None, parameters: Mapping[str, str] | None = None, *, path: str = "/"
    ) -> FrontendAnswer:
        form = dict(parameters or {})
        if action is not None:
            form = {"Action": action, "Version": "2012-11-05", **form}
        headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
        return await self.signed("POST", path, urlencode(form).encode(), headers)

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> FrontendAnswer:
        return await self.signed("GET", path, b"", dict(headers or {}))

    async def signed(
        self, method: str, path: str, content: bytes, headers: dict[str, str], key: AccessKey = KEY
    ) -> FrontendAnswer:
        return await self.unsigned(method, path, content, sign(method, path, content, headers, self.clock(), key))

    async def unsigned(self, method: str, path: str, content: bytes, headers: Mapping[str, str]) -> FrontendAnswer:
        return FrontendAnswer(
            await self.client.request(method, f"http://{HOST}{path}", content=content, headers=headers)
        )

    def audited(self) -> list[dict[str, Any]]:
        """Lines of the audit log, except those for queues prepared by the test."""
        lines = [orjson.loads(line) for line in self.audit_file.read_bytes().splitlines()]
        return [line for line in lines if line["request_id"] not in self._prepared]

    async def make_queue(self, name: str, **attributes: str) -> str:
        answer = await self.json("CreateQueue", {"QueueName": name, "Attributes": attributes})
        assert answer.status == 200, answer.content
        self._prepared.add(answer.headers["x-amzn-requestid"])
        return str(answer.json["QueueUrl"])


def sign(
    method: str,
    path: str,
    content: bytes,
    headers: Mapping[str, str],
    now: float,
    key: AccessKey = KEY,
    service: str = "sqs",
) -> dict[str, str]:
    """Headers with those of a signature made by botocore."""
    request = AWSRequest(method, f"http://{HOST}{path}", data=content, headers={**headers, "Host": HOST})
    signer = SigV4Auth(ClientCredentials(key.access_key_id, key.secret), service, "us-east-1")
    moment = datetime.fromtimestamp(now, UTC)
    request.context["timestamp"] = moment.strftime("%Y%m%dT%H%M%SZ")
    request.headers["X-Amz-Date"] = request.context["timestamp"]
    request.headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={signer.scope(request)}, "
        f"SignedHeaders={signer.signed_headers(signer.headers_to_sign(request))}, "
        f"Signature={signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)}"
    )
    return dict(request.headers.items())


@asynccontextmanager
async def running(
    folder: Path, settings: FrontendSettings | None = None, meter: Meter | None = None
) -> AsyncIterator[FrontendService]:
    """A service with one tenant, which has one key."""
    store = SQLiteStore(folder / "metadata.sqlite")
    try:
        await store.put_tenant(Tenant(KEY.account, "tests"))
        await store.put_access_key(KEY)
        clock = Clock(1_800_000_000.0)
        backend = FakeBackend(clock)
        keyring = Keyring(store, LocalMasterKeys([new_master_key()]), clock=clock)
        audit_file = folder / "audit.jsonl"
        audit = AuditLog(AuditFile(audit_file), clock)
        app = create_app(
            Services(
                settings or FrontendSettings(),
                Credentials(store),
                MetadataClient(store),
                backend,
                clock,
                audit=audit,
                keyring=keyring,
                naming=NAMING,
                meter=meter,
                limiter=Limiter(clock),
            )
        )
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport) as client:
            yield FrontendService(app, backend, clock, client, store, audit_file)
        audit.close()
    finally:
        await store.close()
