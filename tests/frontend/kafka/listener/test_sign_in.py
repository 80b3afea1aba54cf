"""Sign-in by SASL: mechanisms, refusals, and what is served before."""

from __future__ import annotations

import asyncio
import base64
import logging
from pathlib import Path

import msgspec
import orjson
import pytest

from auth.credentials import AccessKey, Tenant
from auth.guessing import ALLOWED
from auth.signatures.scram import ScramExchange, ScramRefused, derive_keys
from auth.signatures.scram_keys import ScramKeyCache
from auth.tokens.api_keys import new_api_key
from auth.tokens.oidc import Oidc, OidcSettings
from frontend.kafka.connection import SIGN_IN_FRAME_BYTES_MAX, SIGN_IN_REQUESTS_MAX
from frontend.kafka.protocol.generated.metadata import ApiVersionsRequest, MetadataRequest
from frontend.kafka.protocol.versions import ADVERTISED
from frontend.streams.errors import ErrorCode
from tests.auth.clock import Clock
from tests.auth.outside import OidcIssuer
from tests.frontend.kafka.listener.kafka_service import CodecClient, running_kafka
from tests.frontend.kafka.listener.sign_ins import authenticate, handshake, scram
from tests.frontend.service import KEY

SCRAMS = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
OTHER_ACCOUNT = "210987654321"


async def is_signed_in(client: CodecClient) -> bool:
    answer = await client.call("Metadata", 12, MetadataRequest(None))
    return bool(answer.controller_id == 1)


# --- SCRAM -------------------------------------------------------------------------------------------------


def test_the_exchange_of_rfc_7677() -> None:
    exchange = ScramExchange("SCRAM-SHA-256", nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert exchange.client_first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == "user"
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    assert exchange.server_first(salt) == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    keys = derive_keys("SCRAM-SHA-256", "pencil", salt)
    assert exchange.finish(final, keys) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    with pytest.raises(ScramRefused, match="the proof is wrong"):
        exchange.finish(final, derive_keys("SCRAM-SHA-256", "pencils", salt))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,n=user",
        b"n,,r=nonce,n=user",
        b"p=tls-unique,,n=user,r=nonce",
        b"n,a=other,n=user,r=nonce",
        b"n,,m=ext,n=user,r=nonce",
        b"n,,n=us=er,r=nonce",
        b"n,,n=user,r=",
        b"n,,n=user,r=n\xffnce",
        b"n,,n=user,r=" + b"x" * 600,
        b"n,,n=" + b"u" * 3000 + b",r=nonce",
    ],
)
def test_first_messages_that_are_refused(message: bytes) -> None:
    with pytest.raises(ScramRefused):
        ScramExchange("SCRAM-SHA-256").client_first(message)


def test_names_are_unescaped() -> None:
    assert ScramExchange("SCRAM-SHA-256").client_first(b"y,a=a=2Cb=3D,n=a=2Cb=3D,r=x,tokenauth=true") == "a,b="


@pytest.mark.parametrize(
    "final",
    ["c=biws,r={nonce}x,p={proof}", "c=eSws,r={nonce},p={proof}", "c=biws,r={nonce},p=AAAA", "c=biws,r={nonce}", "p="],
)
def test_last_messages_that_are_refused(final: str) -> None:
    exchange = ScramExchange("SCRAM-SHA-512", nonce="server")
    exchange.client_first(b"n,,n=user,r=client")
    exchange.server_first(b"salt")
    text = final.format(nonce="clientserver", proof=base64.b64encode(bytes(64)).decode())
    keys = derive_keys("SCRAM-SHA-512", "secret", b"salt")
    with pytest.raises(ScramRefused):
        exchange.finish(text.encode(), keys)


async def test_keys_are_derived_once_and_anew_for_another_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    derived = []

    def derive(mechanism: str, secret: str, salt: bytes) -> object:
        derived.append(secret)
        return derive_keys(mechanism, secret, salt)

    monkeypatch.setattr("auth.signatures.scram_keys.derive_keys", derive)
    cache = ScramKeyCache(b"naming")
    first, again = await asyncio.gather(*(cache.keys("SCRAM-SHA-256", "user", "secret") for _ in range(2)))
    assert first is again is await cache.keys("SCRAM-SHA-256", "user", "secret")
    assert derived == ["secret"]
    await cache.keys("SCRAM-SHA-256", "user", "other")
    assert derived == ["secret", "other"]
    await cache.keys("SCRAM-SHA-256", "nobody", None)
    await cache.keys("SCRAM-SHA-256", "nobody", None)
    assert len(derived) == 3, "invented keys are cached, too"
    cache.close()


@pytest.mark.parametrize("mechanism", SCRAMS)
async def test_scram_by_an_access_key(tmp_path: Path, mechanism: str) -> None:
    async with running_kafka(tmp_path) as service:
        for _ in range(2):  # derived, then cached
            client = await service.connect()
            answer = await scram(client, mechanism, KEY.access_key_id, KEY.secret)
            assert (answer.error_code, bytes(answer.auth_bytes)[:2]) == (0, b"v=")
            assert await is_signed_in(client)


async def test_refused_sign_ins_are_alike_and_end_the_connection(tmp_path: Path) -> None:
    async with running_kafka(tmp_path) as service:
        texts = set()
        for user, secret in ((KEY.access_key_id, "wrong"), ("AKIA0000000000000000", KEY.secret), ("x", "y")):
            client = await service.connect()
            answer = await scram(client, "SCRAM-SHA-256", user, secret)
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            texts.add((answer.error_message, bytes(answer.auth_bytes)))
            assert await client.ended()
        assert len(texts) == 1
        audited = [orjson.loads(line) for line in service.audit_file.read_bytes().splitlines()]
        assert [entry["credential"] for entry in audited] == [KEY.access_key_id, "AKIA0000000000000000", "x"]
        assert KEY.secret not in service.audit_file.read_text()


async def test_an_unknown_user_is_refused_even_with_a_proof_that_fits(tmp_path: Path) -> None:
    """The invented keys of a name could be computed by a holder of the service's naming secret."""
    async with running_kafka(tmp_path) as service:
        naming = service.context.services.naming
        client = await service.connect()
        user = "AKIA0000000000000000"
        invented = ScramKeyCache(naming)._keyed(f"secret/{user}").hex()
        answer = await scram(client, "SCRAM-SHA-256", user, invented)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_repeated_failures_are_answered_slowly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    delays = []

    async def wait(seconds: float) -> bool:
        delays.append(seconds)
        return True

    async with running_kafka(tmp_path) as service:
        monkeypatch.setattr(service.context.guesses, "wait", wait)
        for _ in range(ALLOWED):
            service.context.guesses.delay("SignatureDoesNotMatch", "127.0.0.1", "x")
        client = await service.connect()
        await scram(client, "SCRAM-SHA-256", KEY.access_key_id, "wrong")
        assert len(delays) == 1
        assert delays[0] > 0


# --- PLAIN, OAUTHBEARER ------------------------------------------------------------------------------------


async def test_plain_by_an_api_key_and_the_end_of_the_key(tmp_path: Path) -> None:
    async with running_kafka(tmp_path, clear_text_secrets=True) as service:
        record, text = new_api_key(KEY.account)
        credentials = service.context.services.credentials
        await credentials.put_api_key(record)
        client = await service.connect()
        assert (await handshake(client, "PLAIN")).error_code == 0
        answer = await authenticate(client, f"\0hf_{record.key_id}\0{text}".encode())
        assert (answer.error_code, answer.session_lifetime_ms) == (0, 0)
        assert await is_signed_in(client)
        await credentials.update_api_key(msgspec.structs.replace(record, active=False))
        async with asyncio.timeout(20):
            while True:  # the session looks at its credential once a second
                try:
                    await is_signed_in(client)
                except (asyncio.IncompleteReadError, ConnectionError):
                    break


@pytest.mark.parametrize(
    "message",
    ["", "\0", "\0{user}\0wrong", "\0other\0{key}", "other\0{user}\0{key}", "\0{user}\0{key}\0", "\0{user}\0{key}x"],
)
async def test_plain_messages_that_are_refused(tmp_path: Path, message: str) -> None:
    async with running_kafka(tmp_path, clear_text_secrets=True) as service:
        record, text = new_api_key(KEY.account)
        await service.context.services.credentials.put_api_key(record)
        client = await service.connect()
        await handshake(client, "PLAIN")
        answer = await authenticate(client, message.format(user=f"hf_{record.key_id}", key=text).encode())
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert text not in answer.error_message
        assert await client.ended()


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER", "GSSAPI"])
async def test_secrets_are_not_accepted_in_clear_text(tmp_path: Path, mechanism: str) -> None:
    async with running_kafka(tmp_path) as service:
        client = await service.connect()
        answer = await handshake(client, mechanism)
        assert (answer.error_code, answer.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, SCRAMS)
        assert await client.ended()


async def test_a_token_of_the_service_and_its_end(tmp_path: Path) -> None:
    clock = Clock(1_800_000_000.0)
    async with running_kafka(tmp_path, clear_text_secrets=True, services={"clock": clock}) as service:
        record, _ = new_api_key(KEY.account)
        services = service.context.services
        await services.credentials.put_api_key(record)
        token = await services.tokens.issue(record, clock(), seconds=600)
        client = await service.connect()
        await handshake(client, "OAUTHBEARER")
        answer = await authenticate(client, f"n,,\x01auth=Bearer {token}\x01\x01".encode())
        assert (answer.error_code, answer.session_lifetime_ms) == (0, 600_000)
        assert await is_signed_in(client)
        later = await services.tokens.issue(record, clock(), seconds=1200)
        assert (await handshake(client, "OAUTHBEARER")).error_code == 0
        answer = await authenticate(client, f"n,,\x01auth=Bearer {later}\x01\x01".encode())
        assert answer.session_lifetime_ms == 1_200_000, "the client has signed in again"
        clock.now += 601
        assert await is_signed_in(client)
        clock.now += 600
        client.send("Metadata", 12, MetadataRequest(None))
        assert await client.ended()


async def test_a_token_of_the_outside_issuer(tmp_path: Path) -> None:
    issuer = OidcIssuer()
    clock = Clock(1_800_000_000.0)
    oidc = Oidc(OidcSettings(issuer.url, "holdfast"), issuer.client, clock=clock)
    async with running_kafka(tmp_path, clear_text_secrets=True, services={"clock": clock, "oidc": oidc}) as service:
        for account, code in ((KEY.account, 0), (OTHER_ACCOUNT, ErrorCode.SASL_AUTHENTICATION_FAILED)):
            token = issuer.token(aud="holdfast", exp=clock() + 60, holdfast_account=account).decode()
            client = await service.connect()
            await handshake(client, "OAUTHBEARER")
            assert (await authenticate(client, f"n,,\x01auth=Bearer {token}\x01\x01".encode())).error_code == code


@pytest.mark.parametrize("message", [b"", b"n,,", b"n,,\x01auth=Bearer\x01\x01", b"x\x01auth=Bearer a.b.c\x01\x01"])
async def test_tokens_that_are_refused(tmp_path: Path, message: bytes) -> None:
    async with running_kafka(tmp_path, clear_text_secrets=True) as service:
        client = await service.connect()
        await handshake(client, "OAUTHBEARER")
        assert (await authenticate(client, message)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_a_connection_signs_in_again_only_as_the_same_caller(tmp_path: Path) -> None:
    async with running_kafka(tmp_path) as service:
        other = AccessKey("AKIAOTHEROTHEROTHER", "another secret access key", KEY.account, "AIDAOTHER")
        await service.add_key(other)
        client = await service.signed_in()
        answer = await scram(client, "SCRAM-SHA-256", KEY.access_key_id, KEY.secret)
        assert answer.error_code == 0
        answer = await scram(client, "SCRAM-SHA-256", other.access_key_id, other.secret)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await client.ended()


async def test_a_suspended_tenant_cannot_sign_in(tmp_path: Path) -> None:
    async with running_kafka(tmp_path) as service:
        await service.store.credentials.put_tenant(Tenant(KEY.account, "tests", state="suspended"))
        client = await service.connect()
        answer = await scram(client, "SCRAM-SHA-256", KEY.access_key_id, KEY.secret)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "suspended" in answer.error_message


# --- before the sign-in ------------------------------------------------------------------------------------


async def test_versions_are_listed_before_the_sign_in(tmp_path: Path) -> None:
    async with running_kafka(tmp_path) as service:
        client = await service.connect()
        answer = await client.call("ApiVersions", 4, ApiVersionsRequest("test", "1"))
        assert [(one.api_key, one.min_version, one.max_version) for one in answer.api_keys] == [
            (one.api_key, one.min_version, one.max_version) for one in ADVERTISED
        ]


async def test_an_unknown_version_of_api_versions_is_answered_in_version_0(tmp_path: Path) -> None:
    async with running_kafka(tmp_path) as service:
        client = await service.connect()
        client.send_frame(b"\0\x12\0\x63\0\0\0\x07\xff\xff")
        frame = await client.frame()
        assert frame[4:10] == b"\0\0\0\x07\0\x23"


@pytest.mark.parametrize(
    "frame",
    [b"", b"\0", b"\0\x03\0\0\0\0\0\x01\xff\xff\0\0\0\0", bytes(SIGN_IN_FRAME_BYTES_MAX + 1)],
    ids=["empty", "cut off", "another API", "too long"],
)
async def test_nothing_else_is_read_before_the_sign_in(
    tmp_path: Path, frame: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_kafka(tmp_path) as service:
        client = await service.connect()
        client.send_frame(frame)
        assert await client.ended()
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_requests_before_the_sign_in_are_counted(tmp_path: Path) -> None:
    async with running_kafka(tmp_path) as service:
        client = await service.connect()
        for _ in range(SIGN_IN_REQUESTS_MAX):
            await client.call("ApiVersions", 0, ApiVersionsRequest())
        client.send("ApiVersions", 0, ApiVersionsRequest())
        assert await client.ended()


async def test_messages_need_a_mechanism(tmp_path: Path) -> None:
    async with running_kafka(tmp_path) as service:
        client = await service.connect()
        assert (await authenticate(client, b"n,,n=user,r=nonce")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await client.ended()


async def test_frames_without_a_header_after_a_handshake_of_version_0(tmp_path: Path) -> None:
    async with running_kafka(tmp_path, clear_text_secrets=True) as service:
        for ending, works in (("", True), ("x", False)):
            record, text = new_api_key(KEY.account)
            await service.context.services.credentials.put_api_key(record)
            client = await service.connect()
            await handshake(client, "PLAIN", version=0)
            client.send_frame(f"\0hf_{record.key_id}\0{text}{ending}".encode())
            if works:
                assert await client.frame() == bytes(4)
                assert await is_signed_in(client)
            else:
                assert await client.ended()


async def test_a_sign_in_has_to_end_in_time(tmp_path: Path) -> None:
    async with running_kafka(tmp_path, sign_in_seconds=0.1) as service:
        client = await service.connect()
        assert await client.ended()
