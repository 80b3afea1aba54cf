"""Signature verification against botocore's signers, and errors of refusals."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from unittest import mock
from urllib.parse import urlsplit

import pytest
from botocore import auth as botocore_auth
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from auth.errors import (
    AuthError,
    IncompleteSignature,
    MissingAuthenticationToken,
    RequestExpired,
    SignatureDoesNotMatch,
)
from auth.signatures import sigv4
from auth.signatures.sigv4 import Verifier

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


# --- botocore's signatures are accepted --------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "/123456789012/queue.fifo",
        "/trailing/",
        "/with%20space",
        "/caf%C3%A9",
        "/percent%25",
        "/tilde~_-.",
        "/plus+and=equals",
        "/%2e%2e/x",
        "/semi;colon:at@",
    ],
)
def test_odd_paths(path: str) -> None:
    assert signed(url=f"http://localhost:9324{path}").verify() == KEY_ID


@pytest.mark.parametrize("path", ["//double//slash", "/a/./b/../c", "/..", "//", "/queue/."])
def test_a_path_that_botocore_changes_before_it_signs(path: str) -> None:
    with pytest.raises(SignatureDoesNotMatch):
        signed(url=f"http://localhost:9324{path}").verify()


@pytest.mark.parametrize(
    ("signed_for", "sent_to"), [("/1/q1", "/1/x/../q1"), ("/v1/queues/q1", "//v1/queues/q1"), ("/", "//")]
)
def test_a_signature_holds_for_no_other_spelling_of_its_path(signed_for: str, sent_to: str) -> None:
    sent = signed(url=f"http://localhost:9324{signed_for}")
    assert sent.verify() == KEY_ID
    sent.path = sent_to.encode()
    with pytest.raises(SignatureDoesNotMatch):
        sent.verify()


@pytest.mark.parametrize(
    "query",
    [
        "Action=ListQueues",
        "b=2&a=1",
        "a=2&a=1",
        "a=b%20c",
        "a=b+c",
        "flag",
        "flag=",
        "a=1&&b=2",
        "a=%E2%82%AC",
        "a=~-_.",
        "a=b=c",
        "MessageBody=%3C%26%3E",
        "a-b=1&a=2",
    ],
)
def test_odd_query_strings(query: str) -> None:
    sent = signed("GET", f"http://localhost:9324/?{query}", body=b"")
    assert sent.verify() == KEY_ID


def test_parameters_that_the_client_encodes_another_way_than_it_signs() -> None:
    sent = signed("GET", body=b"", params={"MessageBody": "hello world ü&=+~*", "Action": "SendMessage"})
    assert b"hello+world" in sent.query
    assert sent.verify() == KEY_ID


def test_repeated_headers_and_runs_of_spaces() -> None:
    headers = [("X-Amz-Meta", "a   b "), ("X-Amz-Meta", " c\td"), ("My-Header", "  x  ")]
    assert signed(headers=headers).verify() == KEY_ID


def test_presigned_get_and_post() -> None:
    assert signed("GET", "http://localhost/?Action=ListQueues", body=b"", presign=60).verify() == KEY_ID
    assert (
        signed("POST", "http://localhost/1/q?Action=SendMessage&MessageBody=a%20b", presign=604800).verify() == KEY_ID
    )


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


# --- changed requests are refused --------------------------------------------------------------------------


def refused(sent: Sent, error: type[AuthError], text: str = "", **how: float | str) -> None:
    with pytest.raises(error) as caught:
        sent.verify(**how)  # type: ignore[arg-type]
    assert text in caught.value.message
    assert SECRET not in caught.value.message


def test_a_changed_request_does_not_match() -> None:
    for change in ("body", "method", "path", "query", "host"):
        sent = signed(url="http://localhost/123456789012/q?x=1", body=b"original")
        if change == "host":
            sent.headers[b"host"] = b"other"
        else:
            setattr(sent, change, b"/changed")
        refused(sent, SignatureDoesNotMatch, "signature we calculated does not match")


def test_another_secret_does_not_match() -> None:
    refused(signed(), SignatureDoesNotMatch, secret="x" * 40)


def test_the_signature_has_to_be_hexadecimal() -> None:
    sent = signed()
    sent.headers[b"authorization"] = sent.headers[b"authorization"][:-64] + b"\xe9" * 64
    refused(sent, SignatureDoesNotMatch)


def test_an_unsigned_amz_header_is_refused() -> None:
    sent = signed()
    sent.headers[b"x-amz-target"] = b"AmazonSQS.DeleteQueue"
    refused(sent, SignatureDoesNotMatch, "x-amz-target")
    presigned = signed("GET", "http://localhost/?Action=ListQueues", body=b"", presign=60)
    presigned.headers[b"x-amz-target"] = b"AmazonSQS.DeleteQueue"
    refused(presigned, SignatureDoesNotMatch, "x-amz-target")


def test_host_has_to_be_signed() -> None:
    sent = signed()
    sent.headers[b"authorization"] = sent.headers[b"authorization"].replace(b"SignedHeaders=host;", b"SignedHeaders=")
    refused(sent, SignatureDoesNotMatch, "Host")


def test_an_unsigned_payload_is_no_payload_hash_here() -> None:
    sent = signed(headers=[("X-Amz-Content-SHA256", "UNSIGNED-PAYLOAD")])
    refused(sent, SignatureDoesNotMatch)
    presigned = signed("GET", "http://localhost/?Action=ListQueues", body=b"", presign=60)
    presigned.body = b"Action=DeleteQueue"
    refused(presigned, SignatureDoesNotMatch)


def test_the_payload_hash_in_the_header_binds_nothing_by_itself() -> None:
    sent = signed(
        headers=[("X-Amz-Content-SHA256", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")]
    )
    sent.body = b""
    assert sent.verify() == KEY_ID
    sent.body = b"other"
    refused(sent, SignatureDoesNotMatch)


# --- scope and time ----------------------------------------------------------------------------------------


def test_another_region_is_told_the_right_one() -> None:
    refused(signed(region="eu-west-1"), SignatureDoesNotMatch, "region 'us-east-1'")
    assert signed(region="eu-west-1").verify(region="eu-west-1") == KEY_ID


def test_another_service_is_refused() -> None:
    refused(signed(service="sns"), SignatureDoesNotMatch, "correct service: 'sqs'")


def test_the_scope_has_the_date_of_the_request() -> None:
    sent = signed()
    day = datetime.fromtimestamp(NOW, UTC).strftime("%Y%m%d").encode()
    sent.headers[b"authorization"] = sent.headers[b"authorization"].replace(day, b"20200101")
    refused(sent, SignatureDoesNotMatch, "Date in Credential scope")


def test_the_scope_has_its_terminator() -> None:
    sent = signed()
    sent.headers[b"authorization"] = sent.headers[b"authorization"].replace(b"aws4_request", b"aws5_request")
    refused(sent, SignatureDoesNotMatch, "valid terminator")


def test_the_window_of_fifteen_minutes() -> None:
    assert signed(at=NOW - 900).verify() == KEY_ID
    assert signed(at=NOW + 900).verify() == KEY_ID
    refused(signed(at=NOW - 901), SignatureDoesNotMatch, "is now earlier than")
    refused(signed(at=NOW + 901), SignatureDoesNotMatch, "is still later than")


def test_a_presigned_request_lives_as_long_as_it_says() -> None:
    sent = signed("GET", "http://localhost/?Action=ListQueues", body=b"", presign=60)
    assert sent.verify(now=NOW + 60) == KEY_ID
    refused(sent, RequestExpired, "Request has expired.", now=NOW + 61)
    refused(sent, SignatureDoesNotMatch, "not yet current", now=NOW - 901)


@pytest.mark.parametrize("expires", [0, 604801, -1])
def test_a_presigned_request_lives_a_week_at_most(expires: int) -> None:
    sent = signed("GET", "http://localhost/?Action=ListQueues", body=b"", presign=expires)
    refused(sent, IncompleteSignature, "X-Amz-Expires")


# --- no signature at all ----------------------------------------------------------------------------------


def claim(headers: Mapping[bytes, bytes], query: bytes = b"") -> str:
    return Verifier("us-east-1").claim(headers, query).access_key_id


@pytest.mark.parametrize("authorization", [None, b"", b"Bearer abc", b"Basic YTpi"])
def test_unsigned_requests(authorization: bytes | None) -> None:
    headers = {b"host": b"localhost"} | ({} if authorization is None else {b"authorization": authorization})
    with pytest.raises(MissingAuthenticationToken):
        claim(headers)


@pytest.mark.parametrize(
    "authorization",
    [
        b"AWS AKID:signature",
        b"AWS4-HMAC-SHA512 Credential=a",
        b"AWS4-HMAC-SHA256",
        b"AWS4-HMAC-SHA256 ",
        b"AWS4-HMAC-SHA256 Credential=a/b/c/d/e",
        b"AWS4-HMAC-SHA256 Credential=, SignedHeaders=host, Signature=0",
        b"AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=" + b"0" * 64,
        b"AWS4-HMAC-SHA256 Credential=a//c/d/e, SignedHeaders=host, Signature=" + b"0" * 64,
        b"AWS4-HMAC-SHA256 Credential=a/b/c/d/e, SignedHeaders=x;host, Signature=" + b"0" * 64,
        b"AWS4-HMAC-SHA256 Credential=a/b/c/d/e, SignedHeaders=host;host, Signature=" + b"0" * 64,
        b"AWS4-HMAC-SHA256 Credential=a/b/c/d/e, Credential=a/b/c/d/e, SignedHeaders=host, Signature=" + b"0" * 64,
        b"AWS4-HMAC-SHA256 nonsense",
    ],
)
def test_incomplete_signatures(authorization: bytes) -> None:
    with pytest.raises(IncompleteSignature):
        claim({b"host": b"localhost", b"authorization": authorization, b"x-amz-date": b"20261121T000000Z"})


@pytest.mark.parametrize(
    "date", [None, b"", b"yesterday", b"20261321T000000Z", b"00000101T000000Z", b"20261121T250000Z"]
)
def test_dates_that_are_none(date: bytes | None) -> None:
    sent = signed()
    del sent.headers[b"x-amz-date"]
    if date is not None:
        sent.headers[b"x-amz-date"] = date
    with pytest.raises(IncompleteSignature):
        claim(sent.headers)


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


def test_a_session_token_that_is_not_signed_is_refused() -> None:
    sent = signed()
    sent.headers[b"x-amz-security-token"] = b"slipped in"
    with pytest.raises(SignatureDoesNotMatch, match="not signed"):
        claim(sent.headers)


def test_the_cache_of_signers_is_bounded() -> None:
    verifier = Verifier("us-east-1")
    for number in range(sigv4._SCHEMES_MOST + 10):
        verifier.claim(
            {
                b"host": b"localhost",
                b"x-amz-date": b"20261121T000000Z",
                b"authorization": b"AWS4-HMAC-SHA256 Credential=key%d/20261121/us-east-1/sqs/aws4_request, "
                b"SignedHeaders=host;x-amz-date, Signature=%s" % (number, b"0" * 64),
            },
            b"",
        )
    assert len(verifier._schemes) <= sigv4._SCHEMES_MOST


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
