"""Signatures between the processes of a cluster."""

import pytest

from metadata_service.nodes import signing

SECRET = b"s" * 32


class _Clock:
    now = 5000.0

    def __call__(self) -> float:
        return self.now


def checker(secret: bytes = SECRET, node: str = "m1", clock: _Clock | None = None) -> signing.Checker:
    return signing.Checker(secret, node, clock or _Clock())


def test_a_signed_request_is_accepted_once() -> None:
    clock = _Clock()
    node = checker(clock=clock)
    signature = signing.Signer(SECRET).sign("m1", node.start, 0, "POST", "/v1/x", b"body")
    clock.now += 3
    node.check(signature, "POST", "/v1/x", b"body")
    with pytest.raises(signing.SignatureRefused, match="sent before"):
        node.check(signature, "POST", "/v1/x", b"body")
    node.check(signing.Signer(SECRET).sign("m1", node.start, 0, "POST", "/v1/x", b"body"), "POST", "/v1/x", b"body")


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
def test_requests_signed_otherwise_are_refused(secret: bytes, node: str, method: str, path: str, body: bytes) -> None:
    one = checker()
    signature = signing.Signer(secret).sign(node, one.start, 0, method, path, body)
    with pytest.raises(signing.SignatureRefused, match="another secret, or for another node or request"):
        one.check(signature, "POST", "/v1/x", b"body")


def test_a_signature_that_was_changed_is_refused() -> None:
    node = checker()
    parts = signing.Signer(SECRET).sign("m1", signing.UNKNOWN, 0, "POST", "/v1/x", b"").split(" ")
    for at, other in ((1, node.start), (2, "1"), (3, "0" * 32)):
        with pytest.raises(signing.SignatureRefused, match="another secret"):
            node.check(" ".join([*parts[:at], other, *parts[at + 1 :]]), "POST", "/v1/x", b"")


@pytest.mark.parametrize(
    "signature", ["", "v1", "v2 - 1 2 3", "v1 - x 2 3", "v1 - 1 2 3 4", "v1 - ² 2 3", "v1 - " + "9" * 5000 + " a b"]
)
def test_invalid_signatures_are_refused(signature: str) -> None:
    with pytest.raises(signing.SignatureRefused, match="missing or has another form"):
        checker().check(signature, "POST", "/v1/x", b"")


@pytest.mark.parametrize("off_ms", [signing.WINDOW_SECONDS * 1000 + 1, -signing.WINDOW_SECONDS * 1000 - 1, 3_600_000])
def test_another_time_is_told_apart(off_ms: int) -> None:
    node = checker()
    with pytest.raises(signing.OutOfTime):
        node.check(signing.Signer(SECRET).sign("m1", node.start, off_ms, "POST", "/v1/x", b""), "POST", "/v1/x", b"")


def test_another_start_is_another_time() -> None:
    """A restarted node has forgotten earlier nonces."""
    before, after = checker(), checker()
    signature = signing.Signer(SECRET).sign("m1", before.start, 0, "POST", "/v1/x", b"")
    before.check(signature, "POST", "/v1/x", b"")
    with pytest.raises(signing.OutOfTime):
        after.check(signature, "POST", "/v1/x", b"")
    with pytest.raises(signing.OutOfTime):
        after.check(signing.Signer(SECRET).sign("m1", signing.UNKNOWN, 0, "POST", "/v1/x", b""), "POST", "/v1/x", b"")


def test_a_repetition_is_refused_as_long_as_its_time_counts_and_numbers_are_forgotten() -> None:
    clock = _Clock()
    node = checker(clock=clock)
    late = signing.Signer(SECRET).sign("m1", node.start, signing.WINDOW_SECONDS * 1000, "POST", "/v1/x", b"")
    node.check(late, "POST", "/v1/x", b"")
    for seconds in (0.001, 2 * signing.WINDOW_SECONDS):
        clock.now = 5000 + seconds
        with pytest.raises(signing.SignatureRefused, match="sent before"):
            node.check(late, "POST", "/v1/x", b"")
    for _ in range(100):
        clock.now += 10
        node.check(signing.Signer(SECRET).sign("m1", node.start, node.now_ms, "GET", "/", b""), "GET", "/", b"")
    assert len(node._nonces) == len(node._nonces_in_order) < 10


def test_an_answer_belongs_to_its_request() -> None:
    signer, node = signing.Signer(SECRET), checker()
    one, other = (signer.sign("m1", node.start, 0, "POST", "/v1/x", b"body") for _ in range(2))
    answered = node.answer(one, 200, b"yes")
    assert signer.believes(one, 200, b"yes", answered)
    assert not signer.believes(other, 200, b"yes", answered)
    assert not signer.believes(one, 409, b"yes", answered)
    assert not signer.believes(one, 200, b"no", answered)
    assert not signer.believes(one, 200, b"yes", "")
    assert not signer.believes(one, 200, b"yes", "é")
    assert not signing.Signer(b"t" * 32).believes(one, 200, b"yes", answered)


def test_a_short_secret_is_refused_and_none_is_shown() -> None:
    with pytest.raises(ValueError, match=f"has 15 bytes; it takes at least {signing.SECRET_BYTES_MIN}"):
        signing.Signer(b"x" * 15)
    assert "ssss" not in repr(signing.Signer(SECRET)) + repr(checker())
