"""Fuzz targets of SNS: its Query forms, publications with their envelopes, attributes, policies, ARNs and tokens.

Filter policies have targets of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote_plus
from xml.etree import ElementTree as ET

from frontend.query.next_tokens import next_token, position_of
from frontend.query.shapes import wire_names
from frontend.sns.messages import rendering
from frontend.sns.messages.arn import subscription_arn, topic_arn
from frontend.sns.messages.publication import (
    PUBLICATION_FORMAT,
    PublicationContent,
    PublishedMessage,
    TopicRules,
    check_size,
    decode_publication,
    encode_publication,
    read_publication,
)
from frontend.sns.protocol import query
from frontend.sns.protocol.errors import SNS_REGISTRY, as_sns_error
from frontend.sns.protocol.limits import MESSAGE_BYTES_MAX, PARAMETERS_BYTES_MAX
from frontend.sns.protocol.model import NOT_SERVED, SNS_ACTIONS
from frontend.sns.topics import attributes, policies, subscription_attributes
from frontend.sns.topics.attributes import TOPIC_READABLE
from frontend.sns.topics.subscription_attributes import SUBSCRIPTION_READABLE
from frontend.sqs.protocol.errors import SqsError
from frontend.sqs.protocol.query import read_parameters
from tests.fuzz import large
from tests.fuzz.grammar import Draws
from tests.fuzz.kafka_targets import promise

NAMES = tuple(SNS_ACTIONS)
TOPIC = "arn:aws:sns:us-east-1:000000000000:t"
SUBSCRIPTION = f"{TOPIC}:12345678-1234-1234-1234-123456789012"
QUEUE = "arn:aws:sqs:us-east-1:000000000000:q"
WIRES = {
    name: [wire for member in shape.input.members.values() for wire in wire_names(member)]
    for name, shape in SNS_ACTIONS.items()
}
"""Names of parameters of each action, with N for numbers."""
GOOD = (TOPIC, SUBSCRIPTION, QUEUE, "sqs", "true", "String", "Number", "QQ==", "json", "t", "DisplayName", "Publish")
FITTING: dict[str, tuple[str, ...]] = {
    "ReturnSubscriptionArn": ("true", "false"),
    "SubscriptionArn": (SUBSCRIPTION,),
    "TargetArn": ("",),
    "Arn": (TOPIC, TOPIC, TOPIC + ".fifo"),
    "Endpoint": (QUEUE,),
    "key": (*SUBSCRIPTION_READABLE, *TOPIC_READABLE),
    "AttributeName": (*SUBSCRIPTION_READABLE, *TOPIC_READABLE),
    "DataType": ("String", "Number", "Binary", "String.Array"),
    "AWSAccountId.member.N": ("111122223333",),
    "ActionName.member.N": ("Publish", "Subscribe"),
    "BinaryValue": ("QQ==", ""),
    "Protocol": ("sqs", "sqs", "http"),
    "AuthenticateOnUnsubscribe": ("true", "false"),
    "MessageStructure": ("", "json"),
    "NextToken": ("", next_token("t"), next_token("00" * 16)),
    "PhoneNumber": ("",),
}
"""Values that fit a parameter, by the end of its name."""
NUMBERS = ("1", "1", "2", "3", "0", "-1", "01", "10", "99999999", "999999", "9" * 30, "", "x", "1.1", "N", "\u0661")
DEEP = (".1", ".entry.1", ".member.1", ".Value.1", ".", ".99999999.key", ".entry.99999999.key", ".a=1&Attributes")
TOPIC_RULES = (TopicRules(False, False), TopicRules(True, False), TopicRules(True, True))
BASE_URL = "http://localhost:9324"
SMALL_BYTES = 16 * 1024


# --- forms ---------------------------------------------------------------------------------------------------


def action(draws: Draws) -> str:
    """An action that is served, rarely one that is not."""
    return draws.one(NAMES) if draws.chance(96) else draws.one((*NOT_SERVED, "", draws.text()))


def make_form(draws: Draws) -> bytes:
    name = action(draws)
    pairs = [("Action", name)]
    if draws.chance(90):
        pairs.append(("Version", query.SNS_VERSION))
    for wire in WIRES.get(name, []):
        times = draws.one((0, 1, 2, 3)) if ".N" in wire and draws.chance(50) else draws.one((0, 1, 1, 1, 1))
        for place in range(1, times + 1):
            good = str(place) if draws.chance(85) else ""
            numbered = ".".join(good or draws.one(NUMBERS) if part == "N" else part for part in wire.split("."))
            if draws.chance(3):
                numbered = numbered[: draws.below(len(numbered) + 1)] + draws.one(DEEP)
            pairs.append((numbered, value(draws, wire)))
    body = "&".join(f"{quote_plus(key)}={quote_plus(text, errors='replace')}" for key, text in pairs).encode()
    return draws.broken(body) if draws.chance(10) else body


def value(draws: Draws, wire: str) -> str:
    """A value of a parameter, mostly one that fits it."""
    if draws.chance(15):
        return draws.text()
    if wire.endswith("Policy") or draws.chance(3):
        return policy_text(draws)
    for end, fitting in FITTING.items():
        if wire.endswith(end):
            return draws.one(fitting)
    return draws.one(GOOD)


def feed_form(body: bytes) -> bool:
    """Read a form as the endpoint does; True if it has the members of an action."""
    try:
        parameters = read_parameters(body)
        name = query.action_of(parameters)
        members = query.read_members(name, parameters)
    except SqsError as refusal:
        promise_refusal(refusal)
        return False
    promise(set(members) <= set(SNS_ACTIONS[name].input.members), "members that the model does not know")
    return True


def promise_refusal(refusal: SqsError) -> None:
    """Check that an error is a registered one of the client's, and can be written."""
    error = as_sns_error(refusal)
    promise(SNS_REGISTRY.get(error.kind.shape) is error.kind, f"{error.kind.shape} is no error of SNS")
    promise(400 <= error.kind.status < 500, f"{error.kind.shape} is no client error")
    promise(len(error.message) < 5_000, f"an error of {len(error.message)} characters")
    ET.fromstring(query.write_sns_error(error, "id"))


def large_form(draws: Draws, length: int) -> bytes:
    """A form of about this length: with many parameters, deep names, one large value, or holes in its numbers."""
    name = draws.one(("Publish", "PublishBatch", "CreateTopic", "Subscribe", draws.one(NAMES)))
    head = f"Action={name}&Version={query.SNS_VERSION}&TopicArn={quote_plus(TOPIC)}&".encode()
    kind = draws.below(4)
    if kind == 0:
        wire = draws.one(WIRES[name])
        count = min(draws.one((100, 1_190, 10_000)), max(1, length // 20))
        filling = b"x" * max(0, length // count - 20)
        step = draws.one((1, 7, 977))
        numbered = (wire.replace("N", str(number * step), 1).replace("N", "1") for number in range(count))
        return head + b"&".join(b"%b=%b" % (one.encode(), filling) for one in numbered)
    if kind == 1:
        stem = draws.one(("Attributes", "Tags", "MessageAttributes", "PublishBatchRequestEntries", "A"))
        return head + stem.encode() + large.repeated(draws.one(DEEP).encode(), length) + b"=1"
    wire = draws.one(WIRES[name]).replace("N", "1")
    unit = draws.one((*large.FORM_UNITS, b"QUFB", b"%7B%22a%22:", b"%5B"))
    return head + wire.encode() + b"=" + large.repeated(unit, length) + draws.one((b"", b"%F0%9F%98%80"))


# --- publications --------------------------------------------------------------------------------------------


def make_publication(draws: Draws) -> dict[str, Any]:
    """Members of Publish, or of an entry of PublishBatch."""
    members: dict[str, Any] = {"Message": draws.text()}
    if draws.chance(30):
        members["MessageStructure"] = "json" if draws.chance(90) else draws.text()
        entries = {draws.one(("default", "sqs", "http", draws.text())): draws.anything() for _ in range(3)}
        members["Message"] = json.dumps(entries if draws.chance(80) else draws.anything())
        if draws.chance(70):
            members["Message"] = json.dumps({"default": draws.text(), **entries})
    for name in ("Subject", "MessageGroupId", "MessageDeduplicationId"):
        if draws.chance(35):
            members[name] = draws.text()
    if draws.chance(50):
        members["MessageAttributes"] = {
            draws.one(("a", "a.b", draws.text())): message_attribute(draws) for _ in range(draws.below(4))
        }
    return members


def message_attribute(draws: Draws) -> dict[str, Any]:
    return {
        "DataType": draws.one(("String", "Number", "Binary", "String.Array", "Number.x", draws.text())),
        draws.one(("StringValue", "StringValue", "BinaryValue")): draws.one(
            (draws.text(), "1e5", "-.5", '["a",1,null]', "[[]]", "9" * 200)
        ),
    } | ({"BinaryValue": draws.one((b"", b"\xff\x00"))} if draws.chance(30) else {})


def feed_publication(members: Mapping[str, Any]) -> bool:
    """Read a publication for topics of each kind; what is accepted is rendered in each form."""
    taken = False
    for rules in TOPIC_RULES:
        try:
            published = read_publication(dict(members), rules)
            check_size(published.size)
        except SqsError as refusal:
            promise_refusal(refusal)
            continue
        promise(published.size <= MESSAGE_BYTES_MAX, "more than a publication may have")
        _check_rendered(published)
        taken = True
    return taken


def _check_rendered(published: PublishedMessage) -> None:
    content = PublicationContent(
        PUBLICATION_FORMAT,
        TOPIC,
        "id",
        1_800_000_000_000,
        published.message,
        published.subject,
        published.attributes,
        signature=b"signature",
        certificate="certificate",
        deduplication_id=published.deduplication,
    )
    promise(decode_publication(encode_publication(content)) == content, "what is stored is not what was published")
    promise(rendering.render_raw(content).body == published.message, "the raw message is another one")
    envelope = rendering.render_envelope(content, base_url=BASE_URL, subscription_arn=SUBSCRIPTION)
    rendering.signed_notification(content)
    if len(envelope.body) > SMALL_BYTES:
        return  # only the service is measured: parsing the envelope costs more
    read = json.loads(envelope.body)
    promise(read["Message"] == published.message, "the message of the envelope is another one")
    promise(read.get("Subject") == published.subject, "the subject of the envelope is another one")
    promise(set(read.get("MessageAttributes", ())) == {name for name, _, _ in published.attributes}, "other attributes")


def large_publication(draws: Draws, length: int) -> dict[str, Any]:
    """Members with one large part, up to the length of a request."""
    length = min(length, PARAMETERS_BYTES_MAX)
    unit = draws.one(("a", '"', "\\", "\t", "\u00e9", "\U0001f600", "[", "{", '{"a":', "1,", "[],", "9", "\x00"))
    long = unit * max(1, length // len(unit.encode()))
    fits = unit * max(1, min(length, MESSAGE_BYTES_MAX - 100) // len(unit.encode()))
    match draws.below(6):
        case 0:
            return {"Message": draws.one((long, fits))}
        case 1:
            return {"Message": "m", draws.one(("Subject", "MessageGroupId", "MessageDeduplicationId")): long}
        case 2:
            return {"Message": draws.one((long, "[" + long)), "MessageStructure": "json"}
        case 3:
            return {
                "Message": json.dumps({"default": "x", draws.one(("sqs", "http", long)): fits}),
                "MessageStructure": "json",
            }
        case 4:
            type_ = draws.one(("String", "Number", "String.Array", "Binary", long))
            given: Any = long.encode()[:length] if type_ == "Binary" else draws.one((long, "[" + long + "1]"))
            key = "BinaryValue" if type_ == "Binary" else "StringValue"
            return {"Message": "m", "MessageAttributes": {draws.one(("a", long)): {"DataType": type_, key: given}}}
    count = draws.one((300, 1_000, 5_000))
    one = {"DataType": "String", "StringValue": "x" * max(1, length // count - 10)}
    return {"Message": "m", "MessageAttributes": {str(number): one for number in range(count)}}


# --- attributes, policies, ARNs, tokens ------------------------------------------------------------------------


def policy_text(draws: Draws) -> str:
    """A policy of a topic, or another document."""
    return draws.policy_text().replace("sqs:", draws.one(("SNS:", "sns:", "sqs:"))).replace("SendMessage", "Publish")


def make_attributes(draws: Draws) -> dict[str, Any]:
    return {
        "topic": {draws.one((*TOPIC_READABLE, draws.text())): attribute_text(draws) for _ in range(draws.below(4))},
        "subscription": {
            draws.one((*SUBSCRIPTION_READABLE, draws.text())): attribute_text(draws) for _ in range(draws.below(4))
        },
        "text": draws.one((draws.text(), TOPIC, SUBSCRIPTION, draws.broken(SUBSCRIPTION.encode()).decode("latin-1"))),
    }


def attribute_text(draws: Draws) -> str:
    return draws.one(
        (
            draws.text(),
            policy_text(draws),
            json.dumps(draws.anything()),
            draws.one(("", "true", "FALSE", "2", "Active", "MessageBody", "MessageGroup", "{}", '{"a":["b"]}', "0")),
            json.dumps({"deadLetterTargetArn": draws.one((QUEUE, draws.text()))}),
        )
    )


def feed_attributes(given: Mapping[str, Any]) -> bool:
    """Read attributes of topics and subscriptions, and a text as an ARN and a token."""
    taken = feed_policy(given["topic"].get("Policy", ""))
    for read_topic in (partial(_read_topic, fifo=False), partial(_read_topic, fifo=True)):
        taken |= _reads_stably(read_topic, given["topic"])
    taken |= _reads_stably(
        lambda values: subscription_attributes.merged({}, subscription_attributes.canonical(values)),
        given["subscription"],
    )
    text = given["text"]
    for read in (topic_arn, subscription_arn):
        try:
            found = read(text)
            promise(read(str(found)) == found, f"the ARN {text!r} has another form")
            taken = True
        except SqsError as refusal:
            promise_refusal(refusal)
    position = position_of(text)
    promise(position is None or position_of(next_token(position)) == position, f"the token {text!r} has another form")
    return taken


def _read_topic(values: Mapping[str, str], *, fifo: bool) -> dict[str, str]:
    return attributes.merged({}, attributes.canonical(values, fifo=fifo, creating=True))


def _reads_stably(read: Callable[[Mapping[str, str]], dict[str, str]], values: Mapping[str, str]) -> bool:
    """Read attributes; what is stored has to be read as itself."""
    try:
        stored = read(values)
    except SqsError as refusal:
        promise_refusal(refusal)
        return False
    promise(read(stored) == stored, f"what is stored is not canonical: {stored}")
    return True


def feed_policy(text: str) -> bool:
    """Read a topic's policy, and change it as AddPermission and RemovePermission do."""
    try:
        canonical = policies.topic_policy(text)
        promise(policies.topic_policy(canonical) == canonical, "canonical form is not stable")
        policies.stored_policy.__wrapped__(canonical)
        policies.without_permission(canonical, TOPIC, "000000000000", "label")
        policies.with_permission(canonical, TOPIC, "000000000000", "label", ["111122223333"], ["Publish"])
    except SqsError as refusal:
        promise_refusal(refusal)
        return False
    return True


def large_attributes(draws: Draws, length: int) -> dict[str, Any]:
    """Attributes of which one is large, up to the length of a request."""
    length = min(length, PARAMETERS_BYTES_MAX)
    unit = draws.one(("a", "9", "[", "[],", '"', ":", "\u00e9", "\U0001f600", "\\", '{"a":', "arn:", "A"))
    long = draws.one(("", '{"deadLetterTargetArn":"', '{"a":[', "arn:aws:sns:us-east-1:000000000000:", "MT"))
    long += unit * (length // len(unit.encode()))
    names = [name for name in SUBSCRIPTION_READABLE if name != "FilterPolicy"]
    match draws.below(4):
        case 0:
            count = min(1_200, length // 10)
            return {"topic": {f"{number}{unit}": "1" for number in range(count)}, "subscription": {}, "text": ""}
        case 1:
            return {"topic": {draws.one(TOPIC_READABLE): long}, "subscription": {draws.one(names): long}, "text": ""}
        case 2:
            text = large.policy(draws, length).replace("sqs:", "SNS:")
            return {"topic": {"Policy": text}, "subscription": {}, "text": ""}
    return {"topic": {}, "subscription": {long: "x"}, "text": long}
