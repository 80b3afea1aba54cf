"""The forms in which publications are delivered to queues: SNS's JSON, or the message itself (raw)."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from frontend.sns.messages.publication import PublicationContent
from frontend.sqs.protocol.limits import MESSAGE_ATTRIBUTES_MAX
from frontend.sqs.protocol.md5 import Attribute

NOTIFICATION = "Notification"
CONFIRMATION = "SubscriptionConfirmation"
UNSUBSCRIBED = "UnsubscribeConfirmation"


class RenderedMessage(NamedTuple):
    """A message as a queue's consumer receives it."""

    body: str
    attributes: tuple[Attribute, ...]


def render_raw(publication: PublicationContent) -> RenderedMessage:
    """Render a publication for a subscription with raw delivery: message and attributes as they were published."""
    return RenderedMessage(publication.message, publication.attributes)


def fits_raw(publication: PublicationContent) -> bool:
    """True if a message of a queue can have all attributes of the publication."""
    return len(publication.attributes) <= MESSAGE_ATTRIBUTES_MAX


def render_envelope(
    publication: PublicationContent, *, base_url: str, subscription_arn: str, sequence_number: str | None = None
) -> RenderedMessage:
    """Render a publication in SNS's JSON.

    ``base_url``: beginning of the service's URLs, without a trailing slash; ``sequence_number``: that of a publication
    to a FIFO topic.
    """
    members: list[tuple[str, str]] = [("Type", NOTIFICATION), ("MessageId", publication.message_id)]
    if sequence_number is not None:
        members.append(("SequenceNumber", sequence_number))
    members.append(("TopicArn", publication.topic_arn))
    if publication.subject is not None:
        members.append(("Subject", publication.subject))
    members += [("Message", publication.message), ("Timestamp", timestamp_text(publication.timestamp_ms))]
    if publication.signature:
        members += _signature(publication.signature_version, publication.signature, base_url, publication.certificate)
    members.append(("UnsubscribeURL", f"{base_url}/?Action=Unsubscribe&SubscriptionArn={subscription_arn}"))
    return RenderedMessage(_object(members, _attributes(publication.attributes)), ())


class Confirmation(NamedTuple):
    """A message that asks the owner of an endpoint to confirm its subscription, or says that it has ended."""

    message_id: str
    token: str
    topic_arn: str
    timestamp_ms: int
    unsubscribed: str | None = None
    """ARN of the subscription that has ended; None: it is to be confirmed."""

    @property
    def type(self) -> str:
        return CONFIRMATION if self.unsubscribed is None else UNSUBSCRIBED

    @property
    def message(self) -> str:
        if self.unsubscribed is not None:
            return (
                f"You have chosen to deactivate subscription {self.unsubscribed}.\n"
                "To cancel this operation and restore the subscription, visit the SubscribeURL included in this "
                "message."
            )
        return (
            f"You have chosen to subscribe to the topic {self.topic_arn}.\n"
            "To confirm the subscription, visit the SubscribeURL included in this message."
        )

    def subscribe_url(self, base_url: str) -> str:
        return f"{base_url}/?Action=ConfirmSubscription&TopicArn={self.topic_arn}&Token={self.token}"


def render_confirmation(
    confirmation: Confirmation, *, base_url: str, signature_version: str, signature: bytes, certificate: str
) -> str:
    """Render a confirmation in SNS's JSON."""
    members = [
        ("Type", confirmation.type),
        ("MessageId", confirmation.message_id),
        ("Token", confirmation.token),
        ("TopicArn", confirmation.topic_arn),
        ("Message", confirmation.message),
        ("SubscribeURL", confirmation.subscribe_url(base_url)),
        ("Timestamp", timestamp_text(confirmation.timestamp_ms)),
        *_signature(signature_version, signature, base_url, certificate),
    ]
    return _object(members, "")


def signed_notification(publication: PublicationContent) -> bytes:
    """The text that the signature of a notification is of."""
    members = [("Message", publication.message), ("MessageId", publication.message_id)]
    if publication.subject is not None:
        members.append(("Subject", publication.subject))
    members += [
        ("Timestamp", timestamp_text(publication.timestamp_ms)),
        ("TopicArn", publication.topic_arn),
        ("Type", NOTIFICATION),
    ]
    return _signed(members)


def signed_confirmation(confirmation: Confirmation, base_url: str) -> bytes:
    """The text that the signature of a confirmation is of."""
    return _signed(
        [
            ("Message", confirmation.message),
            ("MessageId", confirmation.message_id),
            ("SubscribeURL", confirmation.subscribe_url(base_url)),
            ("Timestamp", timestamp_text(confirmation.timestamp_ms)),
            ("Token", confirmation.token),
            ("TopicArn", confirmation.topic_arn),
            ("Type", confirmation.type),
        ]
    )


def timestamp_text(timestamp_ms: int) -> str:
    """Time with milliseconds, as in ``2012-04-25T21:49:25.719Z``."""
    moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"


def certificate_path(certificate: str) -> str:
    """Path at which the frontend serves a certificate."""
    return f"/SimpleNotificationService-{certificate}.pem"


def _signature(version: str, signature: bytes, base_url: str, certificate: str) -> list[tuple[str, str]]:
    return [
        ("SignatureVersion", version),
        ("Signature", b64encode(signature).decode()),
        ("SigningCertURL", base_url + certificate_path(certificate)),
    ]


def _attributes(attributes: tuple[Attribute, ...]) -> str:
    if not attributes:
        return ""
    entries = ",\n".join(
        f'    {_text(name)} : {{"Type":{_text(type_)},"Value":{_text(_value(value))}}}'
        for name, type_, value in attributes
    )
    return f',\n  "MessageAttributes" : {{\n{entries}\n  }}'


def _value(value: str | bytes) -> str:
    return b64encode(value).decode() if isinstance(value, bytes) else value


def _object(members: list[tuple[str, str]], last: str) -> str:
    lines = ",\n".join(f'  "{name}" : {_text(value)}' for name, value in members)
    return f"{{\n{lines}{last}\n}}"


def _signed(members: list[tuple[str, str]]) -> bytes:
    return "".join(f"{name}\n{value}\n" for name, value in members).encode()


def _text(value: str) -> str:
    return msgspec.json.encode(value).decode()  # orjson would reserve 16 times the length of the text
