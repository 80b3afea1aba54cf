"""Signatures between the processes of a cluster."""

from __future__ import annotations

import pytest

from metadata_service.signing import SECRET_BYTES_LEAST, WINDOW_SECONDS, Checker, OutOfTime, SignatureRefused, Signer

SECRET = b"s" * 32
NOW = 1_800_000_000_000


def checker(secret: bytes = SECRET, node: str = "m1", started_ms: int = NOW - 10**6) -> Checker:
    return Checker(secret, node, started_ms)


def test_what_is_signed_is_let_in_once() -> None:
    node = checker()
    signature = Signer(SECRET).sign("m1", "POST", "/v1/x", b"body", NOW)
    node.check(signature, "POST", "/v1/x", b"body", NOW + 3000)
    with pytest.raises(SignatureRefused, match="heard before"):
        node.check(signature, "POST", "/v1/x", b"body", NOW + 3001)
    node.check(Signer(SECRET).sign("m1", "POST", "/v1/x", b"body", NOW), "POST", "/v1/x", b"body", NOW)


@pytest.mark.parametrize(
    ("secret", "node", "method", "path", "body"),
    [
        (b"t" * 32, "m1", "POST", "/v1/x", b"body"),
        (SECRET, "m2", "POST", "/v1/x", b"body"),
        (SECRET, "m1", "PUT", "/v1/x", b"body"),
        (SECRET, "m1", "POST", "/v1/y", b"body"),
        (SECRET, "m1", "POST", "/v1/x", b"another"),
        (SECRET, "m1", "POST", "/v1/xb", b"ody"),
    ],
)
def test_what_is_signed_otherwise_is_refused(secret: bytes, node: str, method: str, path: str, body: bytes) -> None:
    signature = Signer(secret).sign(node, method, path, body, NOW)
    with pytest.raises(SignatureRefused, match="another secret, or for another node or request"):
        checker().check(signature, "POST", "/v1/x", b"body", NOW)


@pytest.mark.parametrize(
    "signature", ["", "v1", "v2 1 2 3", "v1 x 2 3", "v1 1 2 3 4", "v1 ² 2 3", "v1 " + "9" * 5000 + " a b"]
)
def test_what_is_no_signature_is_refused(signature: str) -> None:
    with pytest.raises(SignatureRefused):
        checker().check(signature, "POST", "/v1/x", b"", NOW)


@pytest.mark.parametrize("off_ms", [WINDOW_SECONDS * 1000 + 1, -WINDOW_SECONDS * 1000 - 1, 3_600_000])
def test_another_time_is_told_apart(off_ms: int) -> None:
    signature = Signer(SECRET).sign("m1", "POST", "/v1/x", b"", NOW + off_ms)
    with pytest.raises(OutOfTime):
        checker().check(signature, "POST", "/v1/x", b"", NOW)


def test_the_time_before_the_start_is_another_time() -> None:
    """A node that starts anew has forgotten what it heard."""
    signature = Signer(SECRET).sign("m1", "POST", "/v1/x", b"", NOW - 1)
    checker(started_ms=NOW - 1).check(signature, "POST", "/v1/x", b"", NOW)
    with pytest.raises(OutOfTime):
        checker(started_ms=NOW).check(signature, "POST", "/v1/x", b"", NOW)


def test_a_repetition_is_refused_as_long_as_its_time_counts_and_numbers_are_forgotten() -> None:
    node = checker()
    late = Signer(SECRET).sign("m1", "POST", "/v1/x", b"", NOW + WINDOW_SECONDS * 1000)
    node.check(late, "POST", "/v1/x", b"", NOW)
    for after_ms in (1, 2 * WINDOW_SECONDS * 1000):
        with pytest.raises(SignatureRefused, match="heard before"):
            node.check(late, "POST", "/v1/x", b"", NOW + after_ms)
    for number in range(100):
        now = NOW + 10_000 * number
        node.check(Signer(SECRET).sign("m1", "GET", "/", b"", now), "GET", "/", b"", now)
    assert len(node._heard) == len(node._heard_in_order) < 10


def test_an_answer_belongs_to_its_request() -> None:
    signer, node = Signer(SECRET), checker()
    one, other = (signer.sign("m1", "POST", "/v1/x", b"body", NOW) for _ in range(2))
    answered = node.answer(one, 200, b"yes")
    assert signer.believes(one, 200, b"yes", answered)
    assert not signer.believes(other, 200, b"yes", answered)
    assert not signer.believes(one, 409, b"yes", answered)
    assert not signer.believes(one, 200, b"no", answered)
    assert not signer.believes(one, 200, b"yes", "")
    assert not signer.believes(one, 200, b"yes", "é")
    assert not Signer(b"t" * 32).believes(one, 200, b"yes", answered)


def test_a_short_secret_is_refused_and_none_is_shown() -> None:
    with pytest.raises(ValueError, match=f"has 15 bytes; it takes at least {SECRET_BYTES_LEAST}"):
        Signer(b"x" * 15)
    assert "ssss" not in repr(Signer(SECRET)) + repr(checker())
