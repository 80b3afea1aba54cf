"""Signature Version 4 for calls of tests and the bench: JSON 1.0, POST to ``/``, signed in the header.

Written independently of :mod:`auth`, so that the two verify each other.  Source: AWS, "Create a signed AWS API
request".
"""

import hashlib
import hmac
import time
import uuid
from collections.abc import Callable
from typing import NamedTuple

CONTENT_TYPE = "application/x-amz-json-1.0"
FORM = "application/x-www-form-urlencoded"
SIGNED_HEADERS = "content-type;host;x-amz-date;x-amz-target"


class SigningCredentials(NamedTuple):
    """Credentials and region for signatures."""

    access_key_id: str
    secret: str
    region: str = "us-east-1"


def signing_key(secret: str, day: str, region: str, service: str = "sqs") -> bytes:
    """Derive the key of a day's signatures."""
    key = b"AWS4" + secret.encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


class RequestSigner:
    """Builds complete HTTP/1.1 requests, ready to be written to a socket.

    A request costs about 7 µs: the signing key is cached for the day, the date for the second.
    """

    def __init__(
        self,
        host: str,
        credentials: SigningCredentials,
        clock: Callable[[], float] = time.time,
        *,
        invocation_ids: bool = False,
        service: str = "sqs",
    ) -> None:
        """``invocation_ids``: give each call an id of its own, as the SDKs do."""
        self._service = service
        self._host = host
        self._credentials = credentials
        self._clock = clock
        self._second = -1
        self._day = ""
        self._date = ""
        self._scope = ""
        self._key = b""
        self._invocation = uuid.uuid4().int if invocation_ids else 0

    def request(self, action: str, body: bytes) -> bytes:
        """Return the bytes of one call.  ``body`` is the JSON of the action's input."""
        second = int(self._clock())
        if second != self._second:
            self._turn(second)
        canonical = (
            f"POST\n/\n\ncontent-type:{CONTENT_TYPE}\nhost:{self._host}\nx-amz-date:{self._date}\n"
            f"x-amz-target:AmazonSQS.{action}\n\n{SIGNED_HEADERS}\n{hashlib.sha256(body).hexdigest()}"
        )
        to_sign = f"AWS4-HMAC-SHA256\n{self._date}\n{self._scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        signature = hmac.digest(self._key, to_sign.encode(), "sha256").hex()
        head = (
            f"POST / HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: {CONTENT_TYPE}\r\n"
            f"X-Amz-Target: AmazonSQS.{action}\r\nX-Amz-Date: {self._date}\r\n"
            f"Authorization: AWS4-HMAC-SHA256 Credential={self._credentials.access_key_id}/{self._scope}, "
            f"SignedHeaders={SIGNED_HEADERS}, Signature={signature}\r\n"
            f"Content-Length: {len(body)}\r\n"
        )
        if self._invocation:
            self._invocation += 1
            head += f"amz-sdk-invocation-id: {self._invocation:032x}\r\n"
        head += "\r\n"
        return head.encode() + body

    def form(self, body: bytes) -> bytes:
        """Return the bytes of one call in the Query protocol."""
        second = int(self._clock())
        if second != self._second:
            self._turn(second)
        names = "content-type;host;x-amz-date"
        canonical = (
            f"POST\n/\n\ncontent-type:{FORM}\nhost:{self._host}\nx-amz-date:{self._date}\n\n"
            f"{names}\n{hashlib.sha256(body).hexdigest()}"
        )
        to_sign = f"AWS4-HMAC-SHA256\n{self._date}\n{self._scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        signature = hmac.digest(self._key, to_sign.encode(), "sha256").hex()
        head = (
            f"POST / HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: {FORM}\r\nX-Amz-Date: {self._date}\r\n"
            f"Authorization: AWS4-HMAC-SHA256 Credential={self._credentials.access_key_id}/{self._scope}, "
            f"SignedHeaders={names}, Signature={signature}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def _turn(self, second: int) -> None:
        self._second = second
        self._date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
        if self._date[:8] != self._day:
            self._day = self._date[:8]
            self._key = signing_key(self._credentials.secret, self._day, self._credentials.region, self._service)
            self._scope = f"{self._day}/{self._credentials.region}/{self._service}/aws4_request"
