"""The receiver in docs/topics.md, with messages that the service signs."""

import json
import re
from typing import Any

import pytest

from frontend.sns.messages import rendering
from frontend.sns.messages.publication import PUBLICATION_FORMAT, PublicationContent
from frontend.sns.messages.rendering import Confirmation
from frontend.sns.messages.signing import NotificationSigner, new_signing_key
from tests.servers.server import REPOSITORY

DOCUMENT = REPOSITORY / "docs" / "topics.md"
SERVICE = "https://sns.example.com"
TOPIC = "arn:aws:sns:us-east-1:000000000000:news"


@pytest.fixture(scope="module")
def receiver() -> dict[str, Any]:
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    names: dict[str, Any] = {"__name__": "receiver"}
    exec(compile(code, str(DOCUMENT), "exec"), names)
    return names


@pytest.fixture(scope="module")
def signer() -> NotificationSigner:
    return NotificationSigner(new_signing_key(1_800_000_000))


def messages(signer: NotificationSigner, version: str) -> list[dict[str, str]]:
    """A message of each type."""
    content = PublicationContent(PUBLICATION_FORMAT, TOPIC, "id", 1, "ü", "s", signature_version=version)
    content.certificate = signer.certificate
    content.signature = signer.sign_at_once(rendering.signed_notification(content), version)
    found = [rendering.render_envelope(content, base_url=SERVICE, subscription_arn="s").body]
    for ended in (None, f"{TOPIC}:one"):
        confirmation = Confirmation("id", "token", TOPIC, 1, ended)
        found.append(
            rendering.render_confirmation(
                confirmation,
                base_url=SERVICE,
                signature_version=version,
                signature=signer.sign_at_once(rendering.signed_confirmation(confirmation, SERVICE), version),
                certificate=signer.certificate,
            )
        )
    return [json.loads(body) for body in found]


@pytest.mark.parametrize("version", ["1", "2"])
def test_receiver_accepts_what_the_topic_signs_and_nothing_else(
    receiver: dict[str, Any], signer: NotificationSigner, version: str
) -> None:
    verify = receiver["is_from_topic"]
    fetched: list[str] = []

    def fetch(url: str) -> bytes:
        fetched.append(url)
        return signer.certificate_pem

    for message in messages(signer, version):
        assert verify(message, SERVICE, TOPIC, fetch)
        assert fetched.pop() == SERVICE + rendering.certificate_path(signer.certificate)
        assert not verify(message | {"Message": "other"}, SERVICE, TOPIC, fetch)
        assert not verify(message | {"SignatureVersion": "3"}, SERVICE, TOPIC, fetch)
        assert not verify(message | {"Signature": "AAAA"}, SERVICE, TOPIC, fetch)
        fetched.clear()
        assert not verify(message, "https://other.example.com", TOPIC, fetch)
        assert not verify(message, SERVICE, TOPIC + "2", fetch)
        assert not fetched, "no certificate of another host is read"
