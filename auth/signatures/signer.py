"""Signing of requests with AWS Signature Version 4, for clients of this service; :mod:`auth.signatures.sigv4` verifies
them."""

from __future__ import annotations

import hmac
import time
from collections.abc import Mapping
from hashlib import sha256

from auth.signatures.sigv4 import ALGORITHM, canonical_path, canonical_queries


def sign(
    method: str,
    path: bytes,
    query: bytes,
    headers: Mapping[str, str],
    body: bytes,
    *,
    access_key_id: str,
    secret: str,
    region: str,
    now: float,
    service: str = "sqs",
) -> dict[str, str]:
    """Headers to be sent in addition to ``headers``, all of which are signed; ``host`` must be among them.

    ``path`` and ``query`` are as they will be sent; ``now`` is in seconds since the epoch.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    signed = {name.lower(): " ".join(value.split()) for name, value in headers.items()} | {"x-amz-date": stamp}
    names = ";".join(sorted(signed))
    lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed)).encode()
    canonical_query = canonical_queries(query, presigned=False)[0] if query else b""
    request = b"\n".join(
        (
            method.encode(),
            canonical_path(path),
            canonical_query,
            lines,
            names.encode(),
            sha256(body).hexdigest().encode(),
        )
    )
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    to_sign = f"{ALGORITHM}\n{stamp}\n{scope}\n{sha256(request).hexdigest()}"
    key = b"AWS4" + secret.encode()
    for part in (stamp[:8], region, service, "aws4_request", to_sign):
        key = hmac.digest(key, part.encode(), "sha256")
    authorization = f"{ALGORITHM} Credential={access_key_id}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
    return {"x-amz-date": stamp, "authorization": authorization}
