"""Publications: the content that is stored of them, and its validation as SNS validates it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from frontend.query.reading import Members
from frontend.sns.protocol import limits
from frontend.sns.protocol.errors import invalid_message_attribute, invalid_parameter
from frontend.sqs.protocol import limits as sqs_limits
from frontend.sqs.protocol.md5 import Attribute
from frontend.sqs.protocol.validation import has_invalid_characters, size_of
from metadata_service.topics import PUSHED_PROTOCOLS
from telemetry.texts import shown

PUBLICATION_FORMAT = 1
PROTOCOL = "sqs"
"""Protocol of the endpoints that messages are delivered to: the key of a message for them, with a structure."""

_ID = re.compile(r"[!-~]{1,128}\Z")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_TYPE = re.compile(r"(String|Number|Binary)(\..+)?\Z", re.DOTALL)
_ARRAY = "String.Array"
_Variants = tuple[tuple[str, str], ...]
_NO_VARIANTS: _Variants = ()
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?\Z")


class PublicationContent(msgspec.Struct, array_like=True):
    """The stored content of a publication, which is opaque to the backend.

    Fields are only added at the end, with a default, so that stored publications stay readable.
    """

    format: int
    topic_arn: str
    message_id: str
    timestamp_ms: int
    message: str
    subject: str | None = None
    attributes: tuple[tuple[str, str, Any], ...] = ()
    """Attributes in the form of :data:`frontend.sqs.protocol.md5.Attribute`."""
    signature_version: str = "1"
    signature: bytes = b""
    """Signature of the notification; empty: it is delivered without one, as by a FIFO topic."""
    certificate: str = ""
    """Name of the certificate of the signature's key."""
    sender: str = ""
    """Principal that published it."""
    deduplication_id: str | None = None
    trace_header: str | None = None
    variants: tuple[tuple[str, str, bytes], ...] = ()
    """Other messages for some protocols: protocol, message, and the signature of its notification."""

    def for_protocol(self, protocol: str) -> PublicationContent:
        """The publication as endpoints of a protocol get it."""
        for name, message, signature in self.variants:
            if name == protocol:
                return msgspec.structs.replace(self, message=message, signature=signature)
        return self


encode_publication = msgspec.msgpack.Encoder().encode
decode_publication = msgspec.msgpack.Decoder(PublicationContent).decode


class PublishedMessage(msgspec.Struct, frozen=True):
    """The validated members of a publication."""

    message: str
    subject: str | None
    attributes: tuple[Attribute, ...]
    group: str | None
    deduplication: str | None
    size: int
    """Bytes that count towards the limits: the message as it was given, and its attributes."""
    variants: _Variants = ()
    """Other messages for protocols of HTTP: protocol and message."""


class TopicRules(NamedTuple):
    """Demands of a topic on its publications, by its type and its attributes."""

    fifo: bool
    content_based: bool
    size_max: int = limits.MESSAGE_BYTES_MAX
    """Bytes of a publication with its attributes."""


def read_publication(members: Members, topic: TopicRules) -> PublishedMessage:
    """Validate the members of a publication.  Raises InvalidParameter and ParameterValueInvalid."""
    given: str | None = members.get("Message")
    if not given:
        raise invalid_parameter("Empty message")
    check_size(len(given))  # before it is parsed; there are at least as many bytes
    message, variants, encoded = given, _NO_VARIANTS, given.encode()
    structure = members.get("MessageStructure")
    if structure:
        message, variants = _messages(given, structure)
    else:
        _check_characters(encoded)
    size = len(encoded)
    del encoded  # frees a copy of a long message
    given_attributes = members.get("MessageAttributes")
    attributes: tuple[Attribute, ...] = ()
    if given_attributes:
        attributes = message_attributes(given_attributes)
        size += size_of(attributes)
    subject = members.get("Subject")
    if subject is not None:
        subject = _subject(subject)
    group, deduplication = _order(members, topic)
    return PublishedMessage(message, subject, attributes, group, deduplication, size, variants)


def check_size(size: int, size_max: int = limits.MESSAGE_BYTES_MAX) -> None:
    """Check the size of a publication.  Raises InvalidParameter."""
    if size > size_max:
        raise invalid_parameter("Message too long")


def check_ordered(members: Members, topic: TopicRules) -> None:
    """Check the ids that a FIFO topic demands of each entry of a batch, for which the whole batch is refused."""
    _order(members, topic)


# --- message and subject -----------------------------------------------------------------------------------


def _messages(given: str, structure: str) -> tuple[str, _Variants]:
    """The message for queues, and those for protocols of HTTP that differ from it, of a structured message."""
    if structure != "json":
        raise invalid_parameter(f"MessageStructure Reason: it is json or absent, not {shown(structure)}")
    message, variants = _structured(given)
    for text in (message, *(variant for _, variant in variants)):
        _check_characters(text.encode())
    return message, variants


def _check_characters(message: bytes) -> None:
    if has_invalid_characters(message):
        raise invalid_parameter("Message Reason: it has characters that a message in a queue cannot have")


class _StructuredMessage(msgspec.Struct):
    """The members of a structured message that are served; others are skipped without being stored."""

    default: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    sqs: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    http: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    https: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_read_structured = msgspec.json.Decoder(_StructuredMessage).decode
_read_text = msgspec.json.Decoder(str).decode


def _structured(given: str) -> tuple[str, _Variants]:
    """The messages in an object with one for each protocol."""
    try:
        messages = _read_structured(given)
    except (msgspec.MsgspecError, RecursionError):
        raise invalid_parameter("Message Structure - JSON message body failed to parse") from None
    if isinstance(messages.default, msgspec.UnsetType):
        raise invalid_parameter("Message Structure - No default entry in JSON message body")
    default = _entry_text(messages.default)
    if default is None:
        raise invalid_parameter("Message Structure - The default entry of the JSON message body is not a text")
    found: dict[str, str] = {}
    for protocol in (PROTOCOL, *PUSHED_PROTOCOLS):
        entry = getattr(messages, protocol)
        message = None if isinstance(entry, msgspec.UnsetType) else _entry_text(entry)
        if message is None:  # as SNS does: an entry that is no text is ignored
            message = default
        if not message:
            raise invalid_parameter("Empty message")
        found[protocol] = message
    of_queues = found.pop(PROTOCOL)
    return of_queues, tuple((protocol, other) for protocol, other in found.items() if other != of_queues)


def _entry_text(entry: msgspec.Raw) -> str | None:
    """The text of an entry; None: it is no text."""
    try:
        return _read_text(entry)
    except msgspec.MsgspecError:
        return None


def _subject(given: str) -> str | None:
    if not given:
        return None
    if len(given) > limits.SUBJECT_LENGTH_MAX:
        raise invalid_parameter(f"Subject Reason: it has at most {limits.SUBJECT_LENGTH_MAX} characters")
    if _CONTROL.search(given) is not None or given[0] == " ":
        raise invalid_parameter("Subject Reason: it begins with a space, or has line breaks or control characters")
    return given


# --- order -------------------------------------------------------------------------------------------------


def _order(members: Members, topic: TopicRules) -> tuple[str | None, str | None]:
    """The group and the deduplication id."""
    group, deduplication = members.get("MessageGroupId"), members.get("MessageDeduplicationId")
    if group is None and deduplication is None and not topic.fifo:
        return None, None  # the most common
    return _group(group, topic), _deduplication(deduplication, topic)


def _group(given: str | None, topic: TopicRules) -> str | None:
    if given is None:
        if topic.fifo:
            raise invalid_parameter("The MessageGroupId parameter is required for FIFO topics")
        return None
    _check_id(given, "MessageGroupId")
    return given


def _deduplication(given: str | None, topic: TopicRules) -> str | None:
    if given is None:
        if topic.fifo and not topic.content_based:
            raise invalid_parameter(
                "The topic should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided "
                "explicitly"
            )
        return None
    if not topic.fifo:
        raise invalid_parameter(
            "The request includes MessageDeduplicationId parameter that is not valid for this topic type"
        )
    _check_id(given, "MessageDeduplicationId")
    return given


def _check_id(given: str, name: str) -> None:
    if not _ID.match(given):
        text = f"{name} Reason: it has 1 to 128 characters, which are letters, digits and punctuation of ASCII"
        raise invalid_parameter(text)


# --- attributes --------------------------------------------------------------------------------------------


def message_attributes(given: Mapping[str, Mapping[str, Any]]) -> tuple[Attribute, ...]:
    """Validate the attributes of a message.  Raises ParameterValueInvalid."""
    if len(given) > limits.MESSAGE_ATTRIBUTES_MAX:
        raise invalid_message_attribute(
            f"A message has at most {limits.MESSAGE_ATTRIBUTES_MAX} attributes, not {len(given)}."
        )
    return tuple(_attribute(name, value) for name, value in given.items())


def _attribute(name: str, value: Mapping[str, Any]) -> Attribute:
    _check_name(name)
    type_: str = value.get("DataType") or ""
    if not type_:
        raise invalid_message_attribute(
            f"The message attribute '{name}' must contain non-empty message attribute type."
        )
    match = _TYPE.match(type_)
    if not match or len(type_) > sqs_limits.MESSAGE_ATTRIBUTE_TYPE_LENGTH_MAX or has_invalid_characters(type_.encode()):
        raise invalid_message_attribute(
            f"The message attribute '{name}' has an invalid message attribute type, the set of supported type "
            "prefixes is Binary, Number, and String."
        )
    wanted, other = ("BinaryValue", "StringValue") if match[1] == "Binary" else ("StringValue", "BinaryValue")
    content: str | bytes | None = value.get(wanted)
    if value.get(other):
        raise invalid_message_attribute(
            f"The message attribute '{name}' with type '{shown(type_)}' must use field '{wanted[:-5]}'."
        )
    if not content:
        raise invalid_message_attribute(
            f"The message attribute '{name}' must contain non-empty message attribute value for message attribute "
            f"type '{shown(type_)}'."
        )
    if isinstance(content, str):
        if has_invalid_characters(content.encode()):
            raise invalid_message_attribute(
                f"The message attribute '{name}' has characters that a message in a queue cannot have."
            )
        check_size(len(content))
        check = _CHECKS.get(type_ if type_ == _ARRAY else match[1])
        if check is not None:
            check(name, content)
    return name, type_, content


def _check_name(name: str) -> None:
    if not name:
        raise invalid_message_attribute("The name of a message attribute must not be empty.")
    if len(name.encode()) > sqs_limits.MESSAGE_ATTRIBUTE_NAME_LENGTH_MAX:
        raise invalid_message_attribute(
            f"The name of a message attribute has at most {sqs_limits.MESSAGE_ATTRIBUTE_NAME_LENGTH_MAX} bytes."
        )
    wrong = next((letter for letter in name if not (letter.isascii() and letter.isalnum()) and letter not in "_-."), "")
    if wrong:
        raise invalid_message_attribute(
            f"Invalid non-alphanumeric character '#x{ord(wrong):X}' was found in the message attribute name. Can only "
            "include alphanumeric characters, hyphens, underscores, or dots."
        )
    if name[0] == "." or name[-1] == "." or ".." in name:
        raise invalid_message_attribute(
            "The name of a message attribute does not begin or end with a period, nor has periods in succession."
        )
    if name.lower().startswith(("aws.", "amazon.")):
        raise invalid_message_attribute("The prefixes AWS. and Amazon. of message attributes are reserved.")


def _check_number(name: str, text: str) -> None:
    if len(text) > sqs_limits.MESSAGE_ATTRIBUTE_TYPE_LENGTH_MAX or not _NUMBER.match(text):
        raise invalid_message_attribute(
            f"Could not cast message attribute '{name}' value to number for message attribute type 'Number'."
        )


def _check_array(name: str, text: str) -> None:
    try:
        _read_array(text)
    except (msgspec.MsgspecError, RecursionError):
        raise invalid_message_attribute(
            f"The value of the message attribute '{name}' of the type String.Array is an array in JSON whose elements "
            "are texts, numbers, true, false and null."
        ) from None


_read_array = msgspec.json.Decoder(list[str | float | int | bool | None]).decode
_CHECKS: dict[str, Callable[[str, str], None]] = {"Number": _check_number, _ARRAY: _check_array}
