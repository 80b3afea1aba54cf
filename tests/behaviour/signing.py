"""Signature version 4 as botocore makes it, at a time chosen by the test."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.behaviour.wire import WireRequest


@dataclass
class SignatureScope:
    """Credentials, time and service of a signature."""

    access_key_id: str
    secret: str
    region: str = "us-east-1"
    service: str = "sqs"
    token: str | None = None
    """Session token, if the key is a session's."""

    def sign(self, request: WireRequest, host: str, now_ms: int, *, presign_seconds: int | None = None) -> WireRequest:
        """Sign the request: by an Authorization header, or by a query string that is valid for ``presign_seconds``."""
        url = f"http://{host}{request.path}" + (f"?{request.query}" if request.query else "")
        aws = AWSRequest(method=request.method, url=url, headers={**request.headers, "Host": host}, data=request.body)
        aws.context["now"] = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
        credentials = Credentials(self.access_key_id, self.secret, self.token)
        if presign_seconds is None:
            _HeaderAt(credentials, self.service, self.region).add_auth(aws)
        else:
            _QueryAt(credentials, self.service, self.region, expires=presign_seconds).add_auth(aws)
        parts = urlsplit(aws.url)
        return WireRequest(request.method, parts.path, dict(aws.headers.items()), parts.query, request.body)


class _At:
    """Replaces the machine's time by the test's in botocore."""

    def _modify_request_before_signing(self, request: Any) -> None:
        request.context["timestamp"] = request.context["now"]
        super()._modify_request_before_signing(request)  # type: ignore[misc]


class _HeaderAt(_At, SigV4Auth):  # type: ignore[misc]
    pass


class _QueryAt(_At, SigV4QueryAuth):  # type: ignore[misc]
    pass
