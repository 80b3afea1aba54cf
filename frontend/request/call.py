"""The call of an action, with its caller."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from auth.credentials import Tenant
from auth.principal import Principal
from frontend.request.allowance import Allowance
from frontend.request.long_polls import AsgiReceive
from frontend.sqs.protocol.errors import MALFORMED_INPUT, SqsError

_DOTS = (b".", b"..")
_PLACES = [bytes((place,)) for place in range(256)]

Members = dict[str, Any]
Scope = MutableMapping[str, Any]
"""An HTTP request in ASGI's form."""


def client_address(scope: Scope) -> str | None:
    """Address of the client; None if the server does not know it."""
    client = scope.get("client")
    return client[0] if client else None


def raw_path(scope: Scope) -> bytes:
    """The path of an ASGI scope as sent in the request line; encoded again if the server does not supply it."""
    given: bytes | None = scope.get("raw_path")
    return given or quote(scope["path"]).encode()


def check_path(path: bytes) -> None:
    """Raise :class:`SqsError` (400) unless the raw path is in canonical form.

    Some clients' signatures, and many proxies, remove empty and dot segments: a call signed for one path would
    then be valid for another, which is routed elsewhere.  A trailing slash is allowed.  ``path`` is as sent in
    the request line, with its escapes.
    """
    if b"//" not in path and b"/." not in path and b"%" not in path and path[:1] == b"/":
        return  # certainly canonical
    segments = path.lower().replace(b"%2e", b".").split(b"/")
    if path[:1] != b"/" or any(segment in (b"", b".", b"..") for segment in segments[1:-1]) or segments[-1] in _DOTS:
        raise SqsError(
            MALFORMED_INPUT, "The path of a request begins with a slash and has no empty, '.' or '..' segments."
        )


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
    allowance: Allowance | None = None
    """Remaining limits of the tenant; None: it has no limits."""
    retry: Retry | None = None
    """Token of a sending call, if it has one."""
    handed: Handed | None = None
    """Trace context that a sending call gives its messages."""

    def queue_url(self, account: str, name: str) -> str:
        return f"{self.base_url}/{account}/{name}"
