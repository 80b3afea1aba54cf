"""The handshake: a peer without the secret learns nothing, and no proof can be replayed."""

import hashlib
import hmac

import pytest

from backend.rpc.handshake import (
    AnswererSide,
    CallerSide,
    Challenge,
    HandshakeRefused,
    Hello,
    Proof,
    SecretUnusable,
    Welcome,
)
from backend.rpc.wire import Frames, encode

SECRET = b"a secret that both sides know"


def payload(data: bytes) -> memoryview:
    ((_, _, found),) = Frames().feed(data)
    return found


def greet(caller: CallerSide, answerer: AnswererSide) -> Welcome:
    challenge = answerer.greeted(payload(caller.start()))
    proof = caller.challenged(payload(challenge))
    return caller.welcomed(payload(answerer.proved(payload(proof), 1000)))


def test_two_that_know_the_secret_connect() -> None:
    caller, answerer = CallerSide(SECRET, "frontend-1"), AnswererSide(SECRET, "backend-1")
    assert greet(caller, answerer).under_way_bytes == 1000
    assert (caller.peer, answerer.peer, caller.version, answerer.version) == ("backend-1", "frontend-1", 1, 1)


def test_the_secret_is_never_logged() -> None:
    caller, answerer = CallerSide(SECRET, "f"), AnswererSide(SECRET, "b")
    hello = caller.start()
    challenge = answerer.greeted(payload(hello))
    proof = caller.challenged(payload(challenge))
    welcome = answerer.proved(payload(proof), 1)
    transcript = hello + challenge + proof + welcome
    assert SECRET not in transcript
    assert repr(caller) + repr(answerer) == (repr(caller) + repr(answerer)).replace(SECRET.decode(), "")


ANOTHER = b"another secret than that"
NO_VERSION = r"no common version.*caller speaks \d.*server speaks 2 to 3"


@pytest.mark.parametrize(
    ("caller", "answerer", "why"),
    [
        (CallerSide(ANOTHER, "f"), AnswererSide(SECRET, "b"), "another shared secret"),
        (CallerSide(ANOTHER, "f", b"b" * 32), AnswererSide(SECRET, "b", b"b" * 32), "another shared secret"),
        # Somebody has a TLS connection to each of them, and relays their messages.
        (CallerSide(SECRET, "f", b"1" * 32), AnswererSide(SECRET, "b", b"2" * 32), "a third party changes the traffic"),
        (CallerSide(SECRET, "f", b"", 1, 1), AnswererSide(SECRET, "b", b"", 2, 3), NO_VERSION),
        (CallerSide(SECRET, "f", b"", 4, 5), AnswererSide(SECRET, "b", b"", 2, 3), NO_VERSION),
    ],
    ids=["another secret", "another secret, bound", "somebody between", "too old", "too new"],
)
def test_a_failed_handshake_is_refused_with_a_reason(caller: CallerSide, answerer: AnswererSide, why: str) -> None:
    with pytest.raises(HandshakeRefused, match=why):
        greet(caller, answerer)


def test_a_server_that_does_not_know_the_secret_is_refused() -> None:
    caller, answerer = CallerSide(SECRET, "f"), AnswererSide(ANOTHER, "b")
    own_proof = caller.challenged(payload(answerer.greeted(payload(caller.start()))))
    for proof in (b"", b"\0" * 32, b"\0" * 31):
        with pytest.raises(HandshakeRefused, match="another shared secret"):
            caller.welcomed(memoryview(encode(Welcome(proof, 1))))
    with pytest.raises(HandshakeRefused):  # a proof does not serve in the other direction
        caller.welcomed(payload(own_proof))


def test_a_proof_does_not_serve_for_another_connection() -> None:
    caller = CallerSide(SECRET, "f")
    hello = caller.start()
    proof = caller.challenged(payload(AnswererSide(SECRET, "b").greeted(payload(hello))))
    again = AnswererSide(SECRET, "b")
    again.greeted(payload(hello))
    with pytest.raises(HandshakeRefused):
        again.proved(payload(proof), 1)


def test_a_third_party_cannot_force_a_lower_version() -> None:
    caller, answerer = CallerSide(SECRET, "f", lowest=1, highest=2), AnswererSide(SECRET, "b", lowest=1, highest=2)
    hello = caller.start()
    offered = bytearray(bytes(payload(hello)))
    assert offered[2] == 2
    offered[2] = 1
    challenge = answerer.greeted(memoryview(bytes(offered)))
    assert answerer.version == 1
    with pytest.raises(HandshakeRefused):
        answerer.proved(payload(caller.challenged(payload(challenge))), 1)


@pytest.mark.parametrize(
    ("caller", "server", "version"),
    [((1, 1), (1, 2), 1), ((1, 3), (2, 2), 2), ((2, 3), (1, 3), 3), ((1, 9), (1, 2), 2)],
)
def test_the_highest_common_version_is_spoken(caller: tuple[int, int], server: tuple[int, int], version: int) -> None:
    one, other = CallerSide(SECRET, "f", b"", *caller), AnswererSide(SECRET, "b", b"", *server)
    greet(one, other)
    assert one.version == other.version == version


def test_a_server_that_chooses_what_was_not_offered_is_refused() -> None:
    caller = CallerSide(SECRET, "f")
    caller.start()
    with pytest.raises(HandshakeRefused, match="chose version 7"):
        caller.challenged(memoryview(encode(Challenge(7, b"n" * 32, "b"))))


def test_steps_cannot_be_left_out_or_repeated() -> None:
    with pytest.raises(HandshakeRefused, match="before it was asked"):
        AnswererSide(SECRET, "b").proved(memoryview(encode(Proof(b"p" * 32))), 1)
    caller = CallerSide(SECRET, "f")
    caller.start()
    with pytest.raises(HandshakeRefused, match="skipped its challenge"):
        caller.welcomed(memoryview(encode(Welcome(b"q" * 32, 1))))
    answerer = AnswererSide(SECRET, "b")
    answerer.greeted(payload(CallerSide(SECRET, "f").start()))
    with pytest.raises(HandshakeRefused, match="greeted twice"):
        answerer.greeted(payload(CallerSide(SECRET, "f").start()))


@pytest.mark.parametrize(
    ("greeting", "why"), [(encode(Hello(1, 1, b"abc", "f")), "nonce of 3 bytes"), (b"\xc1", "cannot be read")]
)
def test_a_greeting_that_is_wrong_is_refused(greeting: bytes, why: str) -> None:
    with pytest.raises(HandshakeRefused, match=why):
        AnswererSide(SECRET, "b").greeted(memoryview(greeting))


def test_a_secret_that_is_short_is_refused() -> None:
    with pytest.raises(SecretUnusable, match="has 15 bytes, it takes at least 16"):
        CallerSide(b"s" * 15, "f")


def test_the_proof_of_version_1_is_what_it_was() -> None:
    """Computed here separately, so that a change of the proof, which old programs would reject, is noticed."""
    caller, answerer = CallerSide(SECRET, "f", b"binding"), AnswererSide(SECRET, "b", b"binding")
    hello = bytes(payload(caller.start()))
    challenge = bytes(payload(answerer.greeted(memoryview(hello))))
    transcript = b"".join(len(part).to_bytes(4, "little") + part for part in (b"binding", hello, challenge))
    proof = hmac.new(SECRET, b"holdfast wire client" + transcript, hashlib.sha256).digest()
    assert bytes(payload(caller.challenged(memoryview(challenge)))) == encode(Proof(proof))
    welcome = answerer.proved(memoryview(encode(Proof(proof))), 5)
    proof = hmac.new(SECRET, b"holdfast wire server" + transcript, hashlib.sha256).digest()
    assert bytes(payload(welcome)) == encode(Welcome(proof, 5))
