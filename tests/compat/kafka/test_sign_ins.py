"""Sign-in of Kafka's clients: SCRAM without TLS, API keys and tokens over TLS, and refusals."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.auth.code_issuer import served
from tests.auth.outside import AUDIENCE, OidcIssuer
from tests.compat.kafka.scenarios import create, numbered, places, produce, step
from tests.compat.kafka.sessions import ClientSignIn, StreamServer, judge
from tests.compat.kafka.tried import QUICK_CLIENT, TRIED
from tests.compat.test_sign_in import rest
from tests.holdfast.pairs import make_pair
from tests.runner.long import all_but

MECHANISMS = ("PLAIN", "OAUTHBEARER", "OAUTHBEARER of an issuer", "SCRAM-SHA-512")

SASL_AUTHENTICATION_FAILED = 58

IMPATIENT = ("aiokafka", "franz-go", "sarama")
"""Clients that report a refusal at once; the others try again until their call's timeout."""


@pytest.mark.parametrize("client", all_but([QUICK_CLIENT], TRIED))
def test_scram_sha_512_without_tls(stream_server: StreamServer, client: str) -> None:
    check(client, stream_server.sign_in("SCRAM-SHA-512"), f"{client}-scram-512")


@pytest.mark.long
@pytest.mark.parametrize("client", IMPATIENT)
def test_an_unknown_key_is_refused(stream_server: StreamServer, client: str) -> None:
    refused = replace(stream_server.sign_in(), user="AKIA0000000000000000")
    (result,) = TRIED[client].program().run(refused, {"refused": [step("topics", prefix=client)]})["refused"]
    assert "failure" in result or result == {"error": SASL_AUTHENTICATION_FAILED}
    assert "as 'AKIA0000000000000000' was refused" in stream_server.log_text()


@pytest.fixture(scope="module")
def issuer() -> Iterator[OidcIssuer]:
    with served(OidcIssuer) as issuer:
        yield issuer


@pytest.fixture(scope="module")
def sign_ins(tmp_path_factory: pytest.TempPathFactory, issuer: OidcIssuer) -> Iterator[dict[str, ClientSignIn]]:
    """Sign-ins at a service with TLS, by mechanism."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    make_pair().write(cert, key)
    settings = {"OIDC_ISSUER": issuer.url, "OIDC_AUDIENCE": AUDIENCE}
    server = StreamServer(folder, settings)
    with server:
        made = server.rest("POST", "/v1/keys", {"name": "producer", "kind": "api"})
        token = rest(server, made["secret"], "POST", "/token", {"seconds": 3600})["token"]
        server.stop()
        server.secure(cert, key)
        server.start()
        now = int(time.time())
        outside = issuer.token(iat=now, exp=now + 3600, holdfast_account=server.account).decode()
        plain = replace(server.sign_in("PLAIN"), user=made["id"], password=made["secret"], certificate=cert)
        yield {
            "PLAIN": plain,
            "OAUTHBEARER": replace(plain, mechanism="OAUTHBEARER", user="", password=token),
            "OAUTHBEARER of an issuer": replace(plain, mechanism="OAUTHBEARER", user="", password=outside),
            "SCRAM-SHA-512": replace(server.sign_in("SCRAM-SHA-512"), certificate=cert),
        }


@pytest.mark.long
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", TRIED)
def test_sign_in_over_tls(sign_ins: dict[str, ClientSignIn], client: str, mechanism: str) -> None:
    check(client, sign_ins[mechanism], f"{client}-{mechanism.replace(' ', '-')}")


def check(client: str, sign_in: ClientSignIn, topic: str) -> None:
    """Fail unless the client produces and reads with this sign-in."""
    steps = [
        create(topic),
        produce(topic, numbered(0, 3), places(0, 3)),
        step("offsets", [0, 3], topic=topic, partition=0),
    ]
    judge(steps, TRIED[client].program().run(sign_in, {"sign-in": steps})["sign-in"])
