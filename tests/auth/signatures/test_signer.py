"""Signer and verifier agree; and botocore signs the same."""

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from auth.errors import SignatureDoesNotMatch
from auth.signatures.signer import sign
from auth.signatures.sigv4 import Verifier

NOW = 1_800_000_000.0
ID, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
HEADERS = {"Host": "127.0.0.1:9324", "Content-Type": "application/json"}


def signed(method: str, path: bytes, query: bytes, body: bytes) -> dict[str, str]:
    return sign(method, path, query, HEADERS, body, access_key_id=ID, secret=SECRET, region="us-east-1", now=NOW)


@pytest.mark.parametrize(
    ("method", "path", "query", "body"),
    [
        ("GET", b"/", b"", b""),
        ("GET", b"/v1/queues", b"prefix=a%20b&account=123456789012", b""),
        ("POST", b"/v1/queues/a.fifo/messages", b"group=g%2F%3F", b'{"body": "x"}'),
        ("DELETE", b"/v1/queues/q/messages", b"receipt_handle=AAA%3D%3D&empty=", b""),
    ],
)
def test_the_verifier_accepts_what_is_signed(method: str, path: bytes, query: bytes, body: bytes) -> None:
    verifier = Verifier("us-east-1")
    headers = {
        name.lower().encode(): value.encode() for name, value in (HEADERS | signed(method, path, query, body)).items()
    }
    claim = verifier.claim(headers, query)
    assert claim.access_key_id == ID
    verifier.check(
        claim, SECRET, method=method.encode(), path=path, query=query, headers=headers, body=body, now=NOW + 5
    )
    with pytest.raises(SignatureDoesNotMatch):
        verifier.check(
            claim, SECRET, method=method.encode(), path=path, query=query, headers=headers, body=body + b"!", now=NOW
        )


def test_botocore_signs_the_same() -> None:
    url, body = "http://127.0.0.1:9324/v1/queues?prefix=a&limit=3", b'{"a":1}'
    request = AWSRequest("POST", url, data=body, headers=HEADERS)
    request.context["timestamp"] = "20270115T080000Z"
    request.headers["X-Amz-Date"] = request.context["timestamp"]
    signer = SigV4Auth(Credentials(ID, SECRET), "sqs", "us-east-1")
    expected = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
    ours = signed("POST", b"/v1/queues", b"prefix=a&limit=3", body)
    assert ours["authorization"].endswith(f"Signature={expected}")
