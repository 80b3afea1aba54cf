"""The JSON of notifications, and their signatures, verified with the certificate that is served."""

import asyncio
import json
from base64 import b64decode
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from hypothesis import given
from hypothesis import strategies as st

from frontend.sns.messages import rendering, signing
from frontend.sns.messages.publication import PublicationContent
from frontend.sns.messages.rendering import Confirmation
from frontend.sns.messages.signing import NotificationSigner, SigningKeys
from metadata_service.sqlite.store import SQLiteStore
from tests.closing import closing

TOPIC = "arn:aws:sns:us-east-1:123456789012:orders"
SUBSCRIPTION = TOPIC + ":c0ffee00-0000-4000-8000-000000000001"
BASE = "https://queue.example.com"
NOW = 1_335_390_565.719

EXPECTED = """{
  "Type" : "Notification",
  "MessageId" : "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
  "TopicArn" : "arn:aws:sns:us-east-1:123456789012:orders",
  "Subject" : "My \\"first\\" message",
  "Message" : "Hello\\nwörld / <b>",
  "Timestamp" : "2012-04-25T21:49:25.719Z",
  "SignatureVersion" : "1",
  "Signature" : "c2lnbmVk",
  "SigningCertURL" : "https://queue.example.com/SimpleNotificationService-abc.pem",
  "UnsubscribeURL" : "https://queue.example.com/?Action=Unsubscribe&SubscriptionArn=\
arn:aws:sns:us-east-1:123456789012:orders:c0ffee00-0000-4000-8000-000000000001",
  "MessageAttributes" : {
    "kind" : {"Type":"String","Value":"a\\"b"},
    "picture" : {"Type":"Binary","Value":"/w=="}
  }
}"""
EXPECTED_FIFO = """{
  "Type" : "Notification",
  "MessageId" : "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
  "SequenceNumber" : "00000000000000000007",
  "TopicArn" : "arn:aws:sns:us-east-1:123456789012:orders",
  "Message" : "m",
  "Timestamp" : "2012-04-25T21:49:25.719Z",
  "UnsubscribeURL" : "https://queue.example.com/?Action=Unsubscribe&SubscriptionArn=\
arn:aws:sns:us-east-1:123456789012:orders:c0ffee00-0000-4000-8000-000000000001"
}"""


@pytest.fixture(scope="module")
def signer() -> NotificationSigner:
    return NotificationSigner(signing.new_signing_key(NOW))


def publication(message: str, subject: str | None = None, **others: object) -> PublicationContent:
    content = PublicationContent(1, TOPIC, "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324", int(NOW * 1000), message, subject)
    for name, value in others.items():
        setattr(content, name, value)
    return content


def test_a_notification_has_the_layout_of_sns() -> None:
    content = publication(
        "Hello\nwörld / <b>",
        'My "first" message',
        attributes=(("kind", "String", 'a"b'), ("picture", "Binary", b"\xff")),
        signature=b"signed",
        certificate="abc",
    )
    rendered = rendering.render_envelope(content, base_url=BASE, subscription_arn=SUBSCRIPTION)
    assert rendered == (EXPECTED, ())


def test_a_notification_of_a_fifo_topic_has_a_sequence_number_and_no_signature() -> None:
    rendered = rendering.render_envelope(
        publication("m"), base_url=BASE, subscription_arn=SUBSCRIPTION, sequence_number=f"{7:020d}"
    )
    assert rendered == (EXPECTED_FIFO, ())


@given(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8"), min_size=1))
def test_a_notification_is_json_with_all_of_the_publication(message: str, subject: str) -> None:
    content = publication(message, subject, attributes=(("a", "String", message),))
    document = json.loads(rendering.render_envelope(content, base_url=BASE, subscription_arn=SUBSCRIPTION).body)
    assert document["Message"] == message
    assert document["Subject"] == subject
    assert document["MessageAttributes"] == {"a": {"Type": "String", "Value": message}}


def test_raw_delivery_has_message_and_attributes() -> None:
    attributes = tuple((f"a{count}", "String", "x") for count in range(10))
    content = publication("m", "s", attributes=attributes)
    assert rendering.render_raw(content) == ("m", attributes)
    assert rendering.fits_raw(content)
    assert not rendering.fits_raw(publication("m", attributes=(*attributes, ("b", "String", "x"))))


@pytest.mark.parametrize("version", signing.SIGNATURE_VERSIONS)
@pytest.mark.parametrize("subject", [None, "s"])
async def test_signatures_are_verified_as_clients_do(
    signer: NotificationSigner, version: str, subject: str | None
) -> None:
    content = publication("m\nn", subject, signature_version=version, certificate=signer.certificate)
    content.signature = await signer.sign(rendering.signed_notification(content), version)
    body = rendering.render_envelope(content, base_url=BASE, subscription_arn=SUBSCRIPTION).body
    verify(signer.certificate_pem, json.loads(body))


async def test_a_confirmation_is_signed_and_names_its_token(signer: NotificationSigner) -> None:
    confirmation = Confirmation("an-id", "a-token", TOPIC, int(NOW * 1000))
    signature = await signer.sign(rendering.signed_confirmation(confirmation, BASE), "2")
    body = rendering.render_confirmation(
        confirmation, base_url=BASE, signature_version="2", signature=signature, certificate=signer.certificate
    )
    document = json.loads(body)
    assert list(document) == [
        *("Type", "MessageId", "Token", "TopicArn", "Message", "SubscribeURL", "Timestamp"),
        *("SignatureVersion", "Signature", "SigningCertURL"),
    ]
    assert document["SubscribeURL"] == f"{BASE}/?Action=ConfirmSubscription&TopicArn={TOPIC}&Token=a-token"
    verify(signer.certificate_pem, document)


def verify(certificate: bytes, document: dict[str, str]) -> None:
    """Verify a message as SNS's documentation describes it for its clients."""
    if document["Type"] == "Notification":
        names = ["Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"]
    else:
        names = ["Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"]
    text = "".join(f"{name}\n{document[name]}\n" for name in names if name in document)
    kind = hashes.SHA1() if document["SignatureVersion"] == "1" else hashes.SHA256()
    key = x509.load_pem_x509_certificate(certificate).public_key()
    assert isinstance(key, rsa.RSAPublicKey)
    assert key.key_size == 2048
    key.verify(b64decode(document["Signature"]), text.encode(), padding.PKCS1v15(), kind)
    name = document["SigningCertURL"].removeprefix(f"{BASE}/SimpleNotificationService-").removesuffix(".pem")
    assert name
    assert rendering.certificate_path(name) == document["SigningCertURL"].removeprefix(BASE)


async def test_processes_that_start_together_have_the_same_key(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "metadata.sqlite")
    async with closing(store):
        processes = [SigningKeys(store.credentials, clock=lambda: NOW) for _ in range(2)]
        one, other = await asyncio.gather(*(process.signer() for process in processes))
        later = await SigningKeys(store.credentials, clock=lambda: NOW + 1e9).signer()
    assert one.certificate == other.certificate == later.certificate
    assert await one.sign(b"a", "2") == await later.sign(b"a", "2")
