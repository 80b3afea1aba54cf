"""AWS Signature Version 4: verification of signed requests, in the header and in the query string.

Pure: the time is passed in, keys are looked up by the caller.  Verification has two steps, because a key may
have to be fetched in between: :meth:`Verifier.claim` extracts the claimed signer, :meth:`Verifier.check`
verifies it.

Decisions where AWS's documents leave a choice, or where its services differ:

* **Payload hash.**  The hash in the canonical request is always that of the body that arrived.  A header
  ``x-amz-content-sha256`` is signed like any ``x-amz-`` header but never replaces it, so ``UNSIGNED-PAYLOAD``
  (an S3 feature) fails as a signature that does not match.
* **Scope.**  Date, region, service and terminator must be right; another region is refused as in AWS, with a text that
  names the right one.
* **Signed headers.**  ``host`` and every ``x-amz-`` header that was sent must be signed.
* **Query strings.**  Clients disagree on the canonical form of an odd query string.  Two forms are accepted:
  each part decoded and encoded again (the specification), and the parts as they were sent (botocore with a
  ready-made URL).  Both bind every byte that is then read from the query, so neither weakens the other.
* **Session tokens** are returned to the caller, which decrypts the secret from them.  A token in a header has
  to be signed like every ``x-amz-`` header; one in the query string is bound by the signature like the whole
  query string.
"""

from __future__ import annotations

import hmac
import re
import time
from calendar import timegm
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_tz
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import quote

from auth.errors import (
    IncompleteSignature,
    InvalidClientTokenId,
    MissingAuthenticationToken,
    RequestExpired,
    SignatureDoesNotMatch,
)
from auth.signatures import percent
from auth.signatures.claim import SignatureClaim, SigningScheme

if TYPE_CHECKING:
    from hashlib import _Hash

ALGORITHM = "AWS4-HMAC-SHA256"
WINDOW_SECONDS = 15 * 60
"""Maximum difference between the clocks of client and server."""
PRESIGNED_SECONDS_MAX = 7 * 24 * 3600
QUERY_PARAMETERS_MAX = 1_000
"""Maximum number of parameters in the query string of a signed request."""
KEY_ID_LENGTH_MAX = 128
"""Maximum length of an access key id in characters (IAM API Reference, AccessKey)."""
SIGNED_HEADERS_MAX = 200
"""Maximum number of signed headers, more than a request can have."""

_TERMINATOR = "aws4_request"
_PARTS_MAX = 10
"""Maximum number of parts parsed of an Authorization header, which has three."""
_SCHEMES_MAX = 4096
_SCHEME_BYTES_MAX = 512
_SCHEME_NAMES_MAX = 16
"""Largest scheme that is kept, twice what SDKs send: schemes are kept before their signature is checked."""
_DATE_LENGTH = 8
_DATE = re.compile(r"\d{8}T\d{6}Z\Z", re.ASCII)
_PLAIN_PATH = re.compile(rb"(?:/[A-Za-z0-9_\-~][A-Za-z0-9_.\-~]*)+\Z")
_BLOCK_BYTES = 64
_NO_QUERY = (b"",)
_HEX64 = re.compile(rb"[0-9a-f]{64}\Z")

Headers = Mapping[bytes, bytes]
"""Header values by name in lower case; repeated headers have their trimmed values joined by commas."""


class Verifier:
    """Verifies requests for one service in one region."""

    def __init__(self, region: str, service: str = "sqs") -> None:
        self.region = region
        self.service = service
        self._place = f"{region}/{service}/{_TERMINATOR}"
        self._schemes: dict[bytes, SigningScheme] = {}

    def claim(self, headers: Headers, query: bytes) -> SignatureClaim:
        """Extract the signer's claim from the header or the query string.  Raises :class:`~auth.errors.AuthError`."""
        authorization = headers.get(b"authorization")
        if authorization is not None:
            return self._header_claim(authorization, headers)
        if b"X-Amz-" in query:
            return self._query_claim(query, headers)
        if b"AWSAccessKeyId=" in query:
            raise IncompleteSignature("Only signature version 4 is supported.")
        raise MissingAuthenticationToken

    def check(
        self,
        claim: SignatureClaim,
        secret: str,
        *,
        method: bytes,
        path: bytes,
        query: bytes,
        headers: Headers,
        body: bytes,
        now: float,
    ) -> None:
        """Verify that ``secret`` signed exactly this request, recently enough.

        ``path`` and ``query`` are as they were sent; ``now`` is in seconds since the epoch. Raises
        :class:`~auth.errors.AuthError`.
        """
        scheme = claim.scheme
        if scheme.place != self._place or claim.stamp[:8] != scheme.date:
            self._refuse_scope(claim)
        if claim.expires_seconds is not None or not -WINDOW_SECONDS <= now - claim.signed_at <= WINDOW_SECONDS:
            _check_time(claim, now)
        lines = []
        for name, line in scheme.lines:
            value = headers.get(name)
            if value is None:
                raise SignatureDoesNotMatch
            lines.append(line + b" ".join(value.split()))
        before = b"%b\n%b\n" % (method, canonical_path(path))
        after = b"\n%b\n%b%b" % (b"\n".join(lines), scheme.signed, sha256(body).hexdigest().encode())
        inner, outer = _signer(secret, scheme.date, scheme.region, self.service)
        to_sign = b"AWS4-HMAC-SHA256\n%b%b" % (claim.stamp.encode(), scheme.scope_line)
        presigned = claim.expires_seconds is not None
        for canonical_query in _NO_QUERY if not query else canonical_queries(query, presigned):
            within = inner.copy()
            within.update(to_sign + sha256(before + canonical_query + after).hexdigest().encode())
            expected = outer.copy()
            expected.update(within.digest())
            if hmac.compare_digest(expected.hexdigest().encode(), claim.signature):
                return
        raise SignatureDoesNotMatch

    def _header_claim(self, authorization: bytes, headers: Headers) -> SignatureClaim:
        common, _, signature = authorization.rpartition(b"Signature=")
        usual = _HEX64.match(signature) is not None
        scheme = self._schemes.get(common) if usual else None
        if scheme is None:
            scheme, signature = _parse_authorization(authorization)
            if usual and len(common) <= _SCHEME_BYTES_MAX and self._is_kept(scheme):
                if len(self._schemes) >= _SCHEMES_MAX:
                    self._schemes.clear()
                self._schemes[common] = scheme
        names = scheme.names
        for name in headers:
            if name[:6] == b"x-amz-" and name not in names:
                raise SignatureDoesNotMatch(f"The header '{name.decode('latin-1')}' is sent, but not signed.")
        session_token = headers.get(b"x-amz-security-token")
        sent = headers.get(b"x-amz-date")
        if sent is not None:
            stamp = sent.decode("latin-1").strip()
            return SignatureClaim(scheme.access_key_id, scheme, signature, stamp, _seconds(stamp), None, session_token)
        sent = headers.get(b"date")
        if sent is None or b"date" not in names:
            raise IncompleteSignature(
                "Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header."
            )
        stamp = _stamp_of_date_header(sent.decode("latin-1"))
        return SignatureClaim(scheme.access_key_id, scheme, signature, stamp, _seconds(stamp), None, session_token)

    def _is_kept(self, scheme: SigningScheme) -> bool:
        return (
            len(scheme.names) <= _SCHEME_NAMES_MAX and scheme.place == self._place and len(scheme.date) == _DATE_LENGTH
        )

    def _query_claim(self, query: bytes, headers: Headers) -> SignatureClaim:
        found: dict[str, str] = {}
        if query.count(b"&") >= QUERY_PARAMETERS_MAX:
            raise IncompleteSignature(f"A query string can have at most {QUERY_PARAMETERS_MAX} parameters.")
        for pair in query.split(b"&"):
            name, _, value = pair.partition(b"=")
            if name.startswith(b"X-Amz-"):
                decoded = name.decode("latin-1")
                if decoded in found:
                    raise IncompleteSignature(f"The parameter '{decoded}' was given more than once.")
                found[decoded] = _decoded(value).decode("latin-1")
        wanted = ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature")
        missing = [name for name in wanted if not found.get(f"X-Amz-{name}")]
        if missing:
            raise IncompleteSignature(
                " ".join(f"AWS query-string parameters must include 'X-Amz-{name}'." for name in missing)
            )
        if found["X-Amz-Algorithm"] != ALGORITHM:
            raise IncompleteSignature(f"X-Amz-Algorithm only supports '{ALGORITHM}'.")
        signature = found["X-Amz-Signature"].encode()
        if not _HEX64.match(signature):
            raise SignatureDoesNotMatch
        expires = found["X-Amz-Expires"]
        if not (expires.isascii() and expires.isdigit() and len(expires) <= 6):
            raise IncompleteSignature("X-Amz-Expires should be a number of seconds, at most 604800.")
        if not 0 < int(expires) <= PRESIGNED_SECONDS_MAX:
            raise IncompleteSignature("X-Amz-Expires must be between 1 and 604800 seconds (a week).")
        scheme = _scheme(found["X-Amz-Credential"], found["X-Amz-SignedHeaders"])
        for name in headers:
            if name[:6] == b"x-amz-" and name not in scheme.names:
                raise SignatureDoesNotMatch(f"The header '{name.decode('latin-1')}' is sent, but not signed.")
        stamp = found["X-Amz-Date"]
        token = found.get("X-Amz-Security-Token")
        session_token = headers.get(b"x-amz-security-token") if token is None else token.encode("latin-1")
        return SignatureClaim(
            scheme.access_key_id, scheme, signature, stamp, _seconds(stamp), int(expires), session_token
        )

    def _refuse_scope(self, claim: SignatureClaim) -> NoReturn:
        scheme = claim.scheme
        if scheme.region != self.region:
            raise SignatureDoesNotMatch(
                f"Credential should be scoped to a valid region. This endpoint is in region '{self.region}', "
                "so that is what your client's region has to be."
            )
        if scheme.place != self._place:
            service, terminator = scheme.scope.split("/")[2:]
            if service != self.service:
                raise SignatureDoesNotMatch(f"Credential should be scoped to correct service: '{self.service}'.")
            raise SignatureDoesNotMatch(
                f"Credential should be scoped with a valid terminator: '{_TERMINATOR}', not '{terminator}'."
            )
        raise SignatureDoesNotMatch(
            "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: "
            f"'{scheme.date}' != '{claim.stamp[:8]}', from '{claim.stamp}'."
        )


def canonical_path(path: bytes) -> bytes:
    """Path of the canonical request: the raw path, encoded a second time.

    Empty and dot segments stay: a signature is valid only for the path that is routed.  Clients that remove
    them before signing have requests with such paths refused.
    """
    return path if path == b"/" or _PLAIN_PATH.match(path) else quote(path or b"/", safe="/~").encode()


def canonical_queries(query: bytes, presigned: bool) -> list[bytes]:
    """Possible canonical forms of the query string (one, if they are equal).

    Raises :class:`~auth.errors.SignatureDoesNotMatch` when it has too many parameters.
    """
    if query.count(b"&") >= QUERY_PARAMETERS_MAX:
        raise SignatureDoesNotMatch(f"A query string can have at most {QUERY_PARAMETERS_MAX} parameters.")
    pairs = []
    for pair in query.split(b"&"):
        name, _, value = pair.partition(b"=")
        if not presigned or name != b"X-Amz-Signature":
            pairs.append((name, value))
    encoded = sorted((_encoded(name), _encoded(value)) for name, value in pairs if name or value)
    forms = [b"&".join(name + b"=" + value for name, value in encoded)]
    as_sent = b"&".join(name + b"=" + value for name, value in sorted(pairs))
    if as_sent != forms[0]:
        forms.append(as_sent)
    return forms


def _encoded(part: bytes) -> bytes:
    return quote(_decoded(part, plus=True), safe="-_.~").encode()


def _decoded(part: bytes, *, plus: bool = False) -> bytes:
    """The part with its escapes decoded; unchanged if they are malformed."""
    try:
        return percent.decode(part, plus=plus)
    except percent.MalformedEscape:
        return part


def _parse_authorization(authorization: bytes) -> tuple[SigningScheme, bytes]:
    text = authorization.decode("latin-1").strip()
    algorithm, _, rest = text.partition(" ")
    if algorithm != ALGORITHM:
        if algorithm[:3].upper() == "AWS":
            raise IncompleteSignature(f"Unsupported signature algorithm: only '{ALGORITHM}' is supported.")
        raise MissingAuthenticationToken
    parts: dict[str, str] = {}
    for item in rest.split(",", _PARTS_MAX):
        name, found, value = item.strip().partition("=")
        if not found or name in parts:
            raise IncompleteSignature(f"'{name[:64]}' is not a key=value pair, or repeated, in Authorization header.")
        parts[name] = value
    missing = [name for name in ("Credential", "Signature", "SignedHeaders") if not parts.get(name)]
    if missing:
        raise IncompleteSignature(" ".join(f"Authorization header requires '{name}' parameter." for name in missing))
    signature = parts["Signature"].encode("latin-1")
    if not _HEX64.match(signature):
        raise SignatureDoesNotMatch
    return _scheme(parts["Credential"], parts["SignedHeaders"]), signature


def _scheme(credential: str, signed: str) -> SigningScheme:
    if signed.count(";") >= SIGNED_HEADERS_MAX:
        raise IncompleteSignature(f"SignedHeaders names more than {SIGNED_HEADERS_MAX} headers.")
    fields = credential.split("/", 5)
    if len(fields) != 5 or not all(fields):
        raise IncompleteSignature(
            "Credential must have exactly 5 slash-delimited elements, e.g. keyid/date/region/service/term."
        )
    names = tuple(name.encode("latin-1") for name in signed.split(";"))
    if b"host" not in names:
        raise SignatureDoesNotMatch("'Host' must be a 'SignedHeader' in the AWS Authorization.")
    if list(names) != sorted(set(names)) or signed != signed.lower():
        raise IncompleteSignature("SignedHeaders must be in lower case, sorted and distinct.")
    access_key_id, date, region, _, _ = fields
    if len(access_key_id) > KEY_ID_LENGTH_MAX:
        raise InvalidClientTokenId
    scope = "/".join(fields[1:])
    return SigningScheme(
        access_key_id,
        date,
        region,
        scope,
        "/".join(fields[2:]),
        names,
        tuple((name, name + b":") for name in names),
        b"\n%b\n" % signed.encode("latin-1"),
        b"\n%b\n" % scope.encode("latin-1"),
    )


def _check_time(claim: SignatureClaim, now: float) -> None:
    signed_at = claim.signed_at
    if claim.expires_seconds is not None:
        if now > signed_at + claim.expires_seconds:
            raise RequestExpired
    elif now > signed_at + WINDOW_SECONDS:
        raise SignatureDoesNotMatch(
            f"Signature expired: {claim.stamp} is now earlier than {_stamp(now - WINDOW_SECONDS)} "
            f"({_stamp(now)} - 15 min.)"
        )
    if now < signed_at - WINDOW_SECONDS:
        raise SignatureDoesNotMatch(
            f"Signature not yet current: {claim.stamp} is still later than {_stamp(now + WINDOW_SECONDS)} "
            f"({_stamp(now)} + 15 min.)"
        )


@lru_cache(maxsize=4096)
def _signer(secret: str, date: str, region: str, service: str) -> tuple[_Hash, _Hash]:
    """HMAC-SHA256 with the signing key (RFC 2104), as its inner and outer hash with the key absorbed.

    The caller copies them, at a fraction of the cost of keying again, and half that of copying the library's
    HMAC object.
    """
    key = hmac.digest(b"AWS4" + secret.encode(), date.encode("latin-1"), "sha256")
    key = hmac.digest(key, region.encode("latin-1"), "sha256")
    key = hmac.digest(key, service.encode(), "sha256")
    key = hmac.digest(key, _TERMINATOR.encode(), "sha256").ljust(_BLOCK_BYTES, b"\0")
    return sha256(bytes(byte ^ 0x36 for byte in key)), sha256(bytes(byte ^ 0x5C for byte in key))


def signers_known() -> tuple[int, int]:
    """Hits and misses of the cache of signing keys."""
    found = _signer.cache_info()
    return found.hits, found.misses


@lru_cache(maxsize=64)
def _seconds(stamp: str) -> int:
    if _DATE.match(stamp):
        try:
            return int(datetime.strptime(stamp, "%Y%m%dT%H%M%S%z").timestamp())
        except ValueError:
            pass
    raise IncompleteSignature(f"Date must be in ISO-8601 'basic format'. Got '{stamp[:64]}'.")


def _stamp_of_date_header(text: str) -> str:
    if _DATE.match(text.strip()):
        return text.strip()
    fields = parsedate_tz(text)
    if fields is None:
        raise IncompleteSignature("The 'Date' header is neither ISO-8601 'basic format' nor an HTTP date.")
    try:
        return _stamp(timegm((*fields[:6], 0, 0, 0)) - (fields[9] or 0))
    except (ValueError, OverflowError):
        raise IncompleteSignature("The 'Date' header is no valid date.") from None


def _stamp(seconds: float) -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(seconds))
