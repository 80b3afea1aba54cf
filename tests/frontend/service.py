"""A frontend over a backend in memory, and a caller that signs."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
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
from auth.tokens.oidc import Oidc, OidcSettings
from backend.api import Answer, Command, Peeked, PeekMessages, Send, Target
from backend.clocks.node_clock import SteadyClock
from backend.resolver import StoreResolver
from billing.metering.meter import Meter
from frontend.app import FrontendApp, SenderOf
from frontend.services import Services
from frontend.settings import FrontendSettings
from frontend.sns.publishing import QueuePublisher
from metadata_service.nodes.cached_client import MetadataClient
from metadata_service.nodes.cached_streams import StreamClient
from metadata_service.nodes.cached_topics import TopicClient
from metadata_service.sqlite.store import SQLiteStore
from ratelimit.limiter import Limiter
from tests.auth.clock import Clock
from tests.auth.outside import OidcIssuer
from tests.backend.memory_backend import MemoryBackend
from tests.closing import closing

KEY = AccessKey("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "123456789012", "AIDAPRINCIPAL")
NAMING = b"a secret of the service"
HOST = "queue.example.com"
AnyCommand = TypeVar("AnyCommand", bound=Command[Any])


class InterceptedBackend:
    """A :class:`MemoryBackend` whose calls a test observes, delays, fails and replaces."""

    def __init__(self, inside: MemoryBackend) -> None:
        self.inside = inside
        self.partitions = inside.partitions
        self.commands: list[Command[Any]] = []
        """All calls, also those that fail."""
        self.fail_with: Exception | None = None
        self.replaced: dict[type[Command[Any]], Callable[[Any], Awaitable[Any]]] = {}
        """Functions that answer in place of the backend, by type of command."""
        self.sending = asyncio.Event()
        """While cleared, sends take effect, and their answers wait."""
        self.sending.set()
        self.sends = 0
        """Number of sends that have taken effect."""
        self.lost_answers: list[Exception] = []
        """Errors that sends raise after they have taken effect."""

    async def call(self, command: Command[Answer]) -> Answer:
        self.commands.append(command)
        if self.fail_with is not None:
            raise self.fail_with
        replaced = self.replaced.get(type(command))
        answer: Answer = await (self.inside.call(command) if replaced is None else replaced(command))
        if isinstance(command, Send):
            self.sends += 1
            await self.sending.wait()
            if self.lost_answers:
                raise self.lost_answers.pop()
        return answer

    def calls_of(self, kind: type[AnyCommand]) -> list[AnyCommand]:
        return [command for command in self.commands if isinstance(command, kind)]

    async def stored(self) -> list[Peeked]:
        """Return all messages of all queues."""
        peeked = []
        for partition in self.partitions.values():
            settings = partition.fold.settings
            assert settings is not None
            peeked += await self.inside.call(PeekMessages(Target(partition.id, settings.queue_id), 1000))
        return peeked


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

    @property
    def problem(self) -> tuple[int, str]:
        """Status and code of an error of REST."""
        assert self.headers["content-type"] == "application/problem+json"
        document = self.json
        assert document["status"] == self.status
        assert document["request_id"] == self.headers["x-request-id"]
        assert document["detail"]
        return self.status, document["code"]


class FrontendService:
    """The application and its dependencies."""

    def __init__(
        self,
        app: FrontendApp,
        backend: InterceptedBackend,
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
        self, action: str, members: Any = None, *, path: str = "/", body: bytes | None = None, by: AccessKey = KEY
    ) -> FrontendAnswer:
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
        content = orjson.dumps(members or {}) if body is None else body
        return await self.signed("POST", path, content, headers, by)

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

    async def rest(self, method: str, path: str, body: Any = None, *, by: AccessKey = KEY) -> FrontendAnswer:
        """Make a request at a path below /v1, with a JSON body."""
        content = b"" if body is None else orjson.dumps(body)
        headers = {"Content-Type": "application/json"} if content else {}
        return await self.signed(method, f"/v1{path}", content, headers, by)

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

    async def send(self, url: str, body: str) -> str:
        """Send a message; returns its id."""
        answer = await self.json("SendMessage", {"QueueUrl": url, "MessageBody": body})
        assert answer.status == 200, answer.content
        return str(answer.json["MessageId"])

    async def received(self, url: str) -> list[str]:
        """Receive once; returns the bodies."""
        answer = await self.json("ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": 10})
        assert answer.status == 200, answer.content
        return [message["Body"] for message in answer.json.get("Messages", [])]

    async def tenant(self, account: str = KEY.account) -> Tenant:
        found = await self.store.credentials.get_tenant(account)
        assert found is not None
        return found

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
    folder: Path,
    settings: FrontendSettings | None = None,
    meter: Meter | None = None,
    trusted: tuple[OidcIssuer, OidcSettings | None] | None = None,
    sender_of: SenderOf = QueuePublisher,
) -> AsyncIterator[FrontendService]:
    """A service with one tenant, which has one key; it trusts an issuer whose settings are given.

    Unlike that of a process, its application creates its part for REST with the first call to it, because this takes
    four fifths of the start.
    """
    store = SQLiteStore(folder / "metadata.sqlite")
    settings = settings or FrontendSettings()
    clock = Clock(1_800_000_000.0)
    backend = MemoryBackend(StoreResolver(store.queues, settings), SteadyClock(clock, clock, clock))
    intercepted = InterceptedBackend(backend)
    async with closing(store), closing(backend):
        await store.credentials.put_tenant(Tenant(KEY.account, "tests"))
        await store.credentials.put_access_key(KEY)
        keyring = Keyring(store, LocalMasterKeys([new_master_key()]), clock=clock)
        audit_file = folder / "audit.jsonl"
        audit = AuditLog(AuditFile(audit_file), clock)
        issuer, oidc = trusted or (None, None)
        app = FrontendApp(
            Services(
                settings,
                Credentials(store.credentials),
                MetadataClient(store.queues),
                intercepted,
                clock,
                streams=StreamClient(store.streams),
                audit=audit,
                keyring=keyring,
                naming=NAMING,
                meter=meter,
                limiter=Limiter(clock),
                oidc=Oidc(oidc, issuer.client, clock=clock) if issuer is not None and oidc is not None else None,
                topics=TopicClient(store.topics),
            ),
            sender_of,
        )
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport) as client:
            yield FrontendService(app, intercepted, clock, client, store, audit_file)
        audit.close()
