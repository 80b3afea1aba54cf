"""A client's request while it is answered, and the call of an action that it makes."""

from __future__ import annotations

import os
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from auth.credentials import Tenant
from auth.principal import Principal
from auth.signatures.sigv4 import Headers
from frontend.http.asgi import AsgiReceive, Scope, client_address
from frontend.queues.view import QueueView
from frontend.request.allowance import Allowance
from metadata_service.topics import Topic
from telemetry.calls import Calling

if TYPE_CHECKING:
    from telemetry.spans import Span

_PLACES = [bytes((place,)) for place in range(256)]

Members = dict[str, Any]


class Format(Enum):
    """The form in which a request is answered."""

    QUERY = "SQS's XML"
    QUERY_JSON = "SQS's Query protocol, with answers in JSON"
    JSON = "SQS's JSON"
    STS = "STS's XML"
    SNS = "SNS's XML"
    REST = "plain JSON"


class Retry(msgspec.Struct, frozen=True, gc=False):
    """Token and digest by which a call's repeats are recognized."""

    base: bytes
    digest: bytes

    def of(self, place: int) -> bytes:
        """Token and digest of the call's message with this index."""
        return self.base + _PLACES[place] + self.digest

    @property
    def request_id(self) -> str:
        """Request id that is the same for each attempt, so that answers whose bodies contain it are identical."""
        digits = self.base.hex()
        return f"{digits[:8]}-{digits[8:12]}-4{digits[12:15]}-8{digits[15:18]}-{digits[18:30]}"


class Handed(NamedTuple):
    """Trace context for the messages of a sending call."""

    header: str | None
    """AWSTraceHeader for messages that have none."""
    span: bytes | None
    """Packed span of the call."""


class Call(msgspec.Struct, eq=False):
    """The call of an action by a known caller."""

    request_id: str
    principal: Principal
    """The authenticated caller."""
    base_url: str
    """Beginning of queue URLs, without a trailing slash."""
    receive: AsgiReceive
    """The connection's next event, by which a waiting call learns that its client has disconnected."""
    tenant: Tenant
    """Tenant of the caller."""
    scope: Scope
    """The HTTP request, for conditions of queue policies."""
    headers: Headers = {}
    """Headers of the request."""
    allowance: Allowance | None = None
    """Remaining limits of the tenant; None: it has no limits."""
    retry: Retry | None = None
    """Token of a sending call, if it has one."""
    handed: Handed | None = None
    """Trace context that a sending call gives its messages."""
    topic: Topic | None = None
    """Topic of the caller's own account that an action of SNS is about, once the caller is authorized."""

    def queue_url(self, account: str, name: str) -> str:
        return f"{self.base_url}/{account}/{name}"


class ClientRequest(msgspec.Struct, eq=False):
    """A client's request, filled in step by step; the defaults apply to errors in the first steps."""

    request_id: str
    method: str
    path: bytes
    """Path as it was sent."""
    query: bytes
    """Query string as it was sent."""
    headers: dict[bytes, bytes]
    """Headers as in :data:`auth.signatures.sigv4.Headers`."""
    scope: Scope
    receive: AsgiReceive
    started_at: float
    calling: Calling
    """Entry of the request among the current calls."""
    format: Format
    body_read: bool = False
    """True once the body was read.  Otherwise its rest would be taken for the next request, so the connection
    is closed."""
    bytes_in: int = 0
    """Bytes of the body."""
    credential: str = ""
    """Claimed identity of the caller, a key's public id: set as soon as it is known, for logs."""
    account: str = ""
    """Account of the caller; "": not authenticated."""
    call: Call | None = None
    """Call of an SQS action, once the caller is known."""
    route: str = ""
    """Name of the REST route, under which the whole request is audited."""
    action: str = ""
    """SQS action as which the request is counted and metered."""
    view: QueueView | None = None
    """Queue of the action, once the caller is authorized."""
    members: Members | None = None
    """Members of the action, once parsed."""
    result: Members | None = None
    """Result of an action that was carried out."""
    throttled: bool = False
    """True if a limit has refused the request."""
    status: int = 0
    """Status of the answer; 0: there is none yet."""
    span: Span | None = None
    """Span of the request; None: it is not sampled."""

    @property
    def address(self) -> str:
        """Address of the client; empty if it is not known."""
        return client_address(self.scope) or ""

    @property
    def queue_path(self) -> str | None:
        """The path if it is a queue's: a name, optionally after an account."""
        if len(self.path) < 2:
            return None
        text = self.path.decode("latin-1").strip("/")
        return None if not text or (len(text) == 12 and text.isdigit()) else f"/{text}"

    def rename(self, request_id: str) -> None:
        """Change the request id that the client sees."""
        self.request_id = self.calling[0] = request_id

    def fail(self, code: str) -> None:
        """Mark the request as refused or failed with this code."""
        if self.span is not None:
            self.span.fail(code)


class RequestIds:
    """Generates ids in the form of a UUID: random for each process, then counted."""

    def __init__(self) -> None:
        seed = os.urandom(12).hex()
        self._prefix = f"{seed[:8]}-{seed[8:12]}-{seed[12:16]}-{seed[16:20]}-"
        self._next = int(seed[20:], 16)

    def __call__(self) -> str:
        self._next += 1
        return f"{self._prefix}{self._next & 0xFFFFFFFFFFFF:012x}"
