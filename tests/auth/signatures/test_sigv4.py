"""Signature verification against botocore's signers, and errors of refusals."""

import re
import tracemalloc
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import pytest
from botocore import auth as botocore_auth
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from auth import errors
from auth.errors import AuthError, IncompleteSignature, SignatureDoesNotMatch
from auth.signatures import sigv4
from auth.signatures.sigv4 import Verifier
from tests.tables import beside

NOW = 1_795_000_000
KEY_ID, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


class Sent:
    """A request as a server sees it."""

    def __init__(self, method: str, url: str, headers: list[tuple[str, str]], body: bytes) -> None:
        parts = urlsplit(url)
        self.method = method.encode()
        self.path = parts.path.encode("latin-1")
        self.query = parts.query.encode("latin-1")
        self.headers: dict[bytes, bytes] = {}
        for name, value in headers:
            key, data = name.lower().encode(), value.strip().encode("latin-1")
            self.headers[key] = self.headers[key] + b"," + data if key in self.headers else data
        self.body = body

    def verify(self, *, now: float = NOW, secret: str = SECRET, region: str = "us-east-1") -> str:
        verifier = Verifier(region)
        for _ in range(2):  # the second time from the cache
            claim = verifier.claim(self.headers, self.query)
            verifier.check(
                claim,
                secret,
                method=self.method,
                path=self.path,
                query=self.query,
                headers=self.headers,
                body=self.body,
                now=now,
            )
        return claim.access_key_id


def signed(
    method: str = "POST",
    url: str = "http://localhost:9324/",
    *,
    body: bytes = b"{}",
    headers: list[tuple[str, str]] | None = None,
    params: Mapping[str, str] | None = None,
    presign: int | None = None,
    at: float = NOW,
    region: str = "us-east-1",
    service: str = "sqs",
    token: str | None = None,
) -> Sent:
    request = AWSRequest(method, url, data=body, params=dict(params or {}))
    for name, value in headers or []:
        request.headers[name] = value  # botocore's headers are a list: a name can be added again
    credentials = Credentials(KEY_ID, SECRET, token)
    signer = (
        SigV4Auth(credentials, service, region)
        if presign is None
        else SigV4QueryAuth(credentials, service, region, expires=presign)
    )
    with mock.patch.object(botocore_auth, "get_current_datetime", return_value=datetime.fromtimestamp(at, UTC)):
        signer.add_auth(request)
    if "Host" not in request.headers:
        request.headers["Host"] = urlsplit(url).netloc
    prepared = request.prepare()
    return Sent(method, prepared.url, list(request.headers.items()), body if presign is None else b"")


TABLE = beside(__file__, "signatures.yaml")
ROWS = [pytest.param(row, id=f"{name}-{number}") for name, rows in TABLE.items() for number, row in enumerate(rows, 1)]


def changed(sent: Sent, change: dict[str, Any]) -> Sent:
    """The request, with parts of it replaced after it was signed."""
    for name in set(change) - {"headers", "authorization"}:
        setattr(sent, name, change[name].encode())
    for name, value in change.get("headers", {}).items():
        sent.headers.pop(name.encode(), None)
        if value is not None:
            sent.headers[name.encode()] = value.encode()
    if "authorization" in change:
        pattern, new = change["authorization"]
        before = sent.headers[b"authorization"].decode()
        sent.headers[b"authorization"] = re.sub(pattern, new, before, count=1).encode("latin-1")
        assert sent.headers[b"authorization"] != before.encode(), pattern
    return sent


@pytest.mark.parametrize("row", ROWS)
def test_signatures(row: dict[str, Any]) -> None:
    given, check = dict(row.get("sign", {})), dict(row.get("check", {}))
    given["url"] = "http://localhost:9324" + given.get("url", "/")
    given["body"] = given.get("body", "{}").encode()
    given["at"] = NOW + given.get("at", 0)
    check["now"] = NOW + check.get("now", 0)
    sent = changed(signed(**given), row.get("change", {}))
    if "error" not in row:
        assert sent.verify(**check) == KEY_ID
        return
    error, _, text = row["error"].partition(" ")
    with pytest.raises(getattr(errors, error)) as caught:
        sent.verify(**check)
    assert text in caught.value.message
    assert SECRET not in caught.value.message


@given(
    segments=st.lists(st.text(alphabet="abc.-_~%20+*é", min_size=1, max_size=8).filter(lambda s: s not in (".", ".."))),
    query=st.lists(st.tuples(st.text(max_size=5), st.text(max_size=8)), max_size=5),
    body=st.binary(max_size=50),
)
def test_any_request_that_botocore_signs(segments: list[str], query: list[tuple[str, str]], body: bytes) -> None:
    from urllib.parse import quote, urlencode

    url = f"http://localhost/{quote('/'.join(segments), safe='/')}?{urlencode(query)}"
    assert signed(url=url, body=body).verify() == KEY_ID


def test_the_date_header_in_place_of_x_amz_date() -> None:
    request = AWSRequest("POST", "http://localhost/", data=b"")
    request.headers["Date"] = formatdate(NOW, usegmt=True)
    request.headers["Host"] = "localhost"
    stamp = datetime.fromtimestamp(NOW, UTC).strftime("%Y%m%dT%H%M%SZ")
    request.context["timestamp"] = stamp
    signer = SigV4Auth(Credentials(KEY_ID, SECRET), "sqs", "us-east-1")
    signature = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
    names = signer.signed_headers(signer.headers_to_sign(request))
    request.headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={signer.scope(request)}, SignedHeaders={names}, Signature={signature}"
    )
    assert Sent("POST", "http://localhost/", list(request.headers.items()), b"").verify() == KEY_ID


def test_parts_of_the_authorization_in_another_order() -> None:
    sent = signed()
    algorithm, _, rest = sent.headers[b"authorization"].partition(b" ")
    parts = rest.split(b", ")
    sent.headers[b"authorization"] = algorithm + b" " + b",".join(reversed(parts))
    assert sent.verify() == KEY_ID


# --- no signature at all ----------------------------------------------------------------------------------


def claim(headers: Mapping[bytes, bytes], query: bytes = b"") -> str:
    return Verifier("us-east-1").claim(headers, query).access_key_id


@pytest.mark.parametrize("name", ["Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature"])
def test_every_part_of_a_presigned_request_is_needed(name: str) -> None:
    sent = signed("GET", "http://localhost/?Action=ListQueues", body=b"", presign=60)
    pairs = [pair for pair in sent.query.split(b"&") if not pair.startswith(b"X-Amz-" + name.encode())]
    with pytest.raises(IncompleteSignature):
        claim(sent.headers, b"&".join(pairs))
    with pytest.raises(IncompleteSignature):
        claim(sent.headers, sent.query + b"&X-Amz-" + name.encode() + b"=again")


def test_session_tokens_are_handed_on_and_bound_by_the_signature() -> None:
    sent = signed(token="session")
    assert Verifier("us-east-1").claim(sent.headers, b"").session_token == b"session"
    sent.verify()
    sent.headers[b"x-amz-security-token"] = b"another"
    with pytest.raises(SignatureDoesNotMatch):
        sent.verify()
    presigned = signed("GET", "http://localhost/?Action=ListQueues", body=b"", presign=60, token="session")
    assert Verifier("us-east-1").claim(presigned.headers, presigned.query).session_token == b"session"
    presigned.verify()
    presigned.query = presigned.query.replace(b"Security-Token=session", b"Security-Token=another")
    with pytest.raises(SignatureDoesNotMatch):
        presigned.verify()
    assert Verifier("us-east-1").claim(signed().headers, b"").session_token is None


@pytest.mark.parametrize(
    ("names", "date", "region"),
    [
        (2, "20261121", "us-east-1"),
        (16, "20261121", "us-east-1"),
        (150, "20261121", "us-east-1"),
        (16, "2" * 300, "us-east-1"),
        (16, "20261121", "r" * 300),
    ],
    ids=["2 names", "16 names", "150 names", "long date", "long region"],
)
def test_the_cache_of_signers_is_bounded(names: int, date: str, region: str) -> None:
    scope = f"{date}/{region}/sqs/aws4_request".encode()
    verifier = Verifier("us-east-1")
    more = b"".join(b";i%03d" % name for name in range(names - 2))
    tracemalloc.start()
    try:
        for number in range(sigv4._SCHEMES_MAX + 10):
            verifier.claim(
                {
                    b"host": b"localhost",
                    b"x-amz-date": b"20261121T000000Z",
                    b"authorization": b"AWS4-HMAC-SHA256 Credential=key%d/%b, "
                    b"SignedHeaders=host%b;x-amz-date, Signature=%b" % (number, scope, more, b"0" * 64),
                },
                b"",
            )
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert len(verifier._schemes) <= sigv4._SCHEMES_MAX


@given(st.binary(max_size=200), st.binary(max_size=100))
def test_no_input_makes_anything_but_an_auth_error(authorization: bytes, query: bytes) -> None:
    verifier = Verifier("us-east-1")
    headers = {
        b"host": b"h",
        b"x-amz-date": b"20261121T000000Z",
        b"authorization": b"AWS4-HMAC-SHA256 " + authorization,
    }
    for given_headers, given_query in ((headers, query), ({b"host": b"h"}, b"X-Amz-Algorithm=" + query)):
        with pytest.raises(AuthError):
            verifier.claim(given_headers, given_query)
