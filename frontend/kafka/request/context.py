"""The services of handlers, and the call that a handler answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from auth.audit import SIGN_IN, AuditEntry, Outcome
from auth.guessing import Guesses
from auth.principal import Principal, Scope
from backend.api import Backend, BackendError
from backend.stream_api import GroupSettings
from billing.metering.meter import UsageNotCounted
from frontend.bearers import Caller
from frontend.kafka.request.failed_batches import FailedBatches
from frontend.kafka.request.fetch_memory import FetchMemory
from frontend.request.error_log import ErrorLog
from frontend.request.request import RequestIds
from frontend.request.throttle import Throttle
from frontend.services import Services
from frontend.streams.calls import GROUP_DEFAULTS, StreamCalls
from frontend.streams.catalog import CatalogRefusal, StreamCatalog
from frontend.streams.encryption import BatchEncryption
from frontend.streams.errors import ErrorCode
from frontend.streams.rights import is_stream_name, permits
from frontend.streams.usage import StreamUsage
from metadata_service.store import StoreError
from metadata_service.streams import Stream

BROKER_ID: Final = 1
"""The service is one broker: any frontend serves all partitions and groups."""

LINES_OF_CLIENTS: Final = 10
"""Number of lines logged for errors of clients of one kind; further ones are counted."""

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Settings of the listener and of its answers."""

    host: str = "127.0.0.1"
    port: int = 9092
    """Address that clients are given for everything (``advertised.listeners``)."""
    cluster_id: str = "holdfast"
    auto_create_topics: bool = False
    """Create a topic when a client that wishes so names one that does not exist, and may create it."""
    partitions_default: int = 1
    """Number of partitions of a new topic that does not say how many."""
    clear_text_secrets: bool = False
    """Offer PLAIN and OAUTHBEARER without TLS too, by which secrets can be read: on this machine, or for tests."""
    frame_bytes_max: int = 16 << 20
    """Longest request of a client that has signed in."""
    fetch_bytes_max: int = 16 << 20
    """Bytes of batches in one answer, unless the first one is larger."""
    fetch_wait_seconds_max: float = 30.0
    decompressed_bytes_max: int = 32 << 20
    """Bytes of a decompressed batch, for searches by time."""
    idle_seconds: float = 600.0
    """Time after which a connection without requests is closed (``connections.max.idle.ms``)."""
    read_seconds: float = 60.0
    """Time for a request to arrive, and for a client to read what was written."""
    sign_in_seconds: float = 30.0
    """Time from a connection to the end of its sign-in."""
    groups: GroupSettings = GROUP_DEFAULTS
    """Settings of all consumer groups."""


class KafkaCall(msgspec.Struct, eq=False, gc=False):
    """A request of a signed-in client."""

    caller: Caller
    client_id: str
    client_host: str
    version: int
    throttle_time_ms: int = 0
    """Time for which the request was held back because of a rate limit."""
    failed_batches: FailedBatches = msgspec.field(default_factory=FailedBatches)
    """Those of the connection."""

    @property
    def account(self) -> str:
        return self.caller.principal.account

    @property
    def principal(self) -> Principal:
        return self.caller.principal


class KafkaContext:
    """The services of handlers, and what their requests share."""

    def __init__(
        self,
        services: Services,
        catalog: StreamCatalog,
        backend: Backend,
        settings: KafkaSettings,
        *,
        guesses: Guesses,
        throttle: Throttle | None = None,
    ) -> None:
        """``backend``: commands for one partition that are called one after the other take effect in that order, so
        batches that are appended at the same time keep theirs.  ``guesses``: failed sign-ins, which all protocols of a
        process count together."""
        self.services = services
        self.catalog = catalog
        self.backend = backend
        self.settings = settings
        self.guesses = guesses
        self.throttle = Throttle(services) if throttle is None else throttle
        self.calls = StreamCalls(catalog, backend, settings.groups)
        self.encryption = BatchEncryption(services.keyring, encrypts=services.settings.encryption)
        self.usage = None if services.meter is None else StreamUsage(services.meter)
        """Meters calls of topics; None: usage is not counted."""
        self.log = logging.getLogger("holdfast.kafka")
        self.error_log = ErrorLog(self.log)
        self.client_log = ErrorLog(self.log, level=logging.INFO, lines=LINES_OF_CLIENTS)
        self.draining = asyncio.Event()
        """Set when the listener stops: waiting fetches end then."""
        self.fetch_memory = FetchMemory()
        self._request_ids = RequestIds()
        self._finishing: set[asyncio.Task[object]] = set()

    def finish(self, work: Coroutine[Any, Any, object]) -> None:
        """Finish what a request has begun whose client is gone."""
        task = asyncio.ensure_future(work)
        self._finishing.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[object]) -> None:
        self._finishing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.report(error)

    # --- topics ---

    async def find(self, call: KafkaCall, name: str) -> Stream | None:
        """Find a topic of the caller's account.  Raises the store's errors."""
        found = self.catalog.cached(call.account, name)
        return await self.catalog.reread(call.account, name) if found is None else found

    async def find_permitted(self, call: KafkaCall, name: str, *scopes: Scope) -> Stream | ErrorCode:
        """Find a topic that the caller may use with one of these scopes, or the error for the client."""
        if not permits(call.principal, scopes, name):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if not is_stream_name(name):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            return await self.find(call, name) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        except StoreError as error:
            self.report(error)
            return ErrorCode.LEADER_NOT_AVAILABLE

    async def find_described(self, call: KafkaCall, name: str, *scopes: Scope) -> Stream | ErrorCode:
        """Find a topic to describe, as :meth:`find_permitted` does, which has no error for names that none can have."""
        found = await self.find_permitted(call, name, *scopes)
        if found is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not is_stream_name(name):
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        return found

    async def find_partition(self, call: KafkaCall, name: str, number: int, *scopes: Scope) -> Stream | ErrorCode:
        """Find a topic that has this partition, as :meth:`find_permitted` does."""
        found = await self.find_permitted(call, name, *scopes)
        if isinstance(found, Stream) and not 0 <= number < found.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return found

    # --- errors and audit ---

    def report(self, error: BaseException) -> None:
        """Log an error that lies with the service; repeated ones are counted."""
        if isinstance(error, BackendError | StoreError | UsageNotCounted) or not isinstance(error, Exception):
            self.error_log.say(type(error).__name__, "a request failed: %r", error)
        else:
            self.log.error("a request failed", exc_info=error)

    def sign_in_refused(self, code: str, address: str, credential: str) -> None:
        """Log and audit a refused sign-in.  Never waits."""
        self.client_log.say(code, "a sign-in from %r as %r was refused: %s", address, credential, code)
        if self.services.audit is not None:
            entry = AuditEntry(self._request_ids(), "", credential, address, SIGN_IN, "", "refused", code)
            self.services.audit.refused_sign_in(entry)

    async def audited(self, call: KafkaCall, action: str, target: str, act: Callable[[], Awaitable[R]]) -> R:
        """Result or error of ``act``, after its audit entry is on disk."""
        try:
            result = await act()
        except CatalogRefusal as refusal:
            await self._write_audit(call, action, target, "refused", refusal.code.name)
            raise
        except Exception as error:
            await self._write_audit(call, action, target, "failed", type(error).__name__)
            raise
        await self._write_audit(call, action, target, "done")
        return result

    async def _write_audit(self, call: KafkaCall, action: str, target: str, outcome: Outcome, reason: str = "") -> None:
        if self.services.audit is not None:
            principal = call.principal
            about = (self._request_ids(), principal.arn, principal.credential, call.client_host)
            await self.services.audit.write(AuditEntry(*about, f"streams:{action}", target, outcome, reason))
