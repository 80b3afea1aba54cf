"""Definition of a queue without its messages, and its conversion for another service.

ARNs are mapped by one rule.  References to a queue or topic of the source account and region become references to
that of the same name in the destination account and region.  Principals of the source account (its number,
``arn:aws:iam::...`` and ``arn:aws:sts::...``) become those of the new account.  Everything else stays
unchanged, and is reported: other accounts, and ARNs of other services.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from auth.encryption.named_keys import MANAGED_NAME
from frontend.queues import attributes, policies
from frontend.sqs.protocol.errors import SqsError
from frontend.sqs.protocol.validation import check_new_queue_name
from metadata_service import arn
from metadata_service.arn import QueueArn
from metadata_service.queue_settings import MAXIMUM_DELAY, is_fifo, number

BOUND = ("RedrivePolicy", "RedriveAllowPolicy", "Policy")
"""Attributes that name other queues or accounts, in the order in which they are set: RedriveAllowPolicy comes
after the RedrivePolicies of sources that it might not allow."""
_ENCRYPTION = ("SqsManagedSseEnabled", "KmsDataKeyReusePeriodSeconds")
"""Attributes that a service may have disabled for all queues: differences are ignored."""
_OWN = ("sqs", "sns")
"""Services in ARNs of this service's queues and topics."""
_ARN = re.compile(r"arn:(aws[a-z-]*):([a-z0-9-]+):([a-z0-9-]*):([0-9]{12}):(.+)\Z", re.DOTALL)
_ACCOUNT = re.compile(r"[0-9]{12}\Z")


@dataclass(frozen=True, slots=True)
class Definition:
    """A queue without its messages."""

    name: str
    arn: QueueArn
    """ARN at its current or former location."""
    attributes: Mapping[str, str]
    """Attributes that can be set."""
    tags: Mapping[str, str]

    @property
    def fifo(self) -> bool:
        return is_fifo(self.attributes)

    @property
    def dead_letter_queue(self) -> QueueArn | None:
        """ARN of its dead-letter queue."""
        text = self.attributes.get("RedrivePolicy")
        if not text:
            return None
        try:
            return arn.parse(_plain(policies.redrive_policy(text)[1].dead_letter_arn))
        except SqsError:
            return None

    @property
    def bytes_max(self) -> int:
        return number(self.attributes, "MaximumMessageSize")

    @property
    def delay_max(self) -> int:
        return number(self.attributes, MAXIMUM_DELAY)


@dataclass(frozen=True, slots=True)
class Portable:
    """The portable part of a definition, with the rest described."""

    definition: Definition
    left: tuple[str, ...]
    """Sentences about properties that are left out."""


def portable(definition: Definition) -> Portable:
    """Reduce a definition to what this service accepts.  Its ARNs are still those of the source."""
    values: dict[str, str] = {}
    left: list[str] = []
    try:
        check_new_queue_name(definition.name, definition.fifo)
    except SqsError as error:
        left.append(f"the queue cannot be created: {error.message}")
    given = dict(definition.attributes)
    if given.get("KmsMasterKeyId", MANAGED_NAME) != MANAGED_NAME:
        left.append(f"the KMS key {given['KmsMasterKeyId']}: only its name is imported, for a data key of this service")
    dead = definition.dead_letter_queue
    if dead is not None and dead[:2] != definition.arn[:2]:
        del given["RedrivePolicy"]
        left.append(f"its dead-letter queue {dead}: it is of another account or region")
    for name, value in given.items():
        if value == "" or (name == "FifoQueue" and value == "false"):
            continue
        try:
            _take(values, name, value, fifo=definition.fifo)
        except SqsError as error:
            left.append(f"{name}: {error.message.rstrip('.')}")
    defaults = attributes.effective({"FifoQueue": "true"} if definition.fifo else {})
    kept = {name: value for name, value in values.items() if name == "FifoQueue" or defaults.get(name) != value}
    left += [f"the tag {key}: tags beginning with aws: are the service's own" for key in _own_tags(definition.tags)]
    tags = {key: value for key, value in definition.tags.items() if not key.startswith("aws:")}
    return Portable(Definition(definition.name, definition.arn, kept, tags), tuple(left))


def _take(values: dict[str, str], name: str, value: str, *, fifo: bool) -> None:
    """Add an attribute in canonical form.  Raises :class:`SqsError` if this service does not accept it."""
    plain = _mapped_text(name, value, _plain)
    values |= attributes.canonical({name: plain}, fifo=fifo)


def _own_tags(tags: Mapping[str, str]) -> Iterator[str]:
    return (key for key in tags if key.startswith("aws:"))


def _plain(text: str) -> str:
    """Rewrite a queue ARN of any AWS partition (``aws-cn`` ...) to this service's partition."""
    found = _ARN.match(text)
    if found is None or found[2] != "sqs":
        return text
    return f"arn:aws:sqs:{found[3]}:{found[4]}:{found[5]}"


# --- mapping to another account ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ArnMapping:
    """Mapping from one account and region to another."""

    source: QueueArn
    destination: QueueArn
    """Any queue ARN at the destination; only its region and account are used."""

    def mapped(self, definition: Definition) -> Definition:
        values = self.mapped_values(definition.attributes)
        where = QueueArn(self.destination.region, self.destination.account, definition.name)
        return Definition(definition.name, where, values, definition.tags)

    def mapped_values(self, values: Mapping[str, str]) -> dict[str, str]:
        """Map the attributes that name other queues, topics or accounts."""
        return {name: _mapped_text(name, value, self.mapped_text) for name, value in values.items()}

    def mapped_text(self, text: str) -> str:
        """Map an account or ARN; other texts stay as they are."""
        if text == self.source.account:
            return self.destination.account
        found = _ARN.match(text)
        if found is None:
            return text
        _, service, region, account, rest = found.groups()
        if account != self.source.account:
            return text
        if service in _OWN and region == self.source.region:
            return f"arn:aws:{service}:{self.destination.region}:{self.destination.account}:{rest}"
        if service in ("iam", "sts"):
            return f"arn:aws:{service}::{self.destination.account}:{rest}"
        return text


def foreign_references(definition: Definition) -> list[str]:
    """References in a queue's policy that stay unchanged: other accounts, other services, other regions."""
    text = definition.attributes.get("Policy")
    if not text:
        return []
    found: dict[str, None] = {}
    for value in _strings(json.loads(text)):
        match = _ARN.match(value)
        if match is not None:
            own = match[4] == definition.arn.account
            if not own or not (match[2] in ("iam", "sts") or (match[2] in _OWN and match[3] == definition.arn.region)):
                found[value] = None
        elif _ACCOUNT.match(value) and value != definition.arn.account:
            found[value] = None
    return list(found)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _strings(one)


def _mapped_text(name: str, text: str, change: Any) -> str:
    """Map the strings in an attribute, if it is JSON that contains ARNs."""
    if name not in BOUND:
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return json.dumps(_changed(value, change), separators=(",", ":"), ensure_ascii=False)


def _changed(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_changed(one, change) for one in value]
    if isinstance(value, dict):
        return {key: _changed(one, change) for key, one in value.items()}
    return value


# --- comparison ---------------------------------------------------------------------------------------------


def differences(wanted: Definition, there: Definition) -> list[str]:
    """Differences of an existing queue, as sentences."""
    asked, found = attributes.effective(wanted.attributes), attributes.effective(there.attributes)
    names = [name for name in attributes.SETTABLE if name not in _ENCRYPTION]
    texts = [
        f"{name} is {_shown(found.get(name))}, not {_shown(asked.get(name))}"
        for name in names
        if _value(name, asked.get(name)) != _value(name, found.get(name))
    ]
    texts += [
        f"the tag {key} is {_shown(there.tags.get(key))}, not {_shown(wanted.tags.get(key))}"
        for key in sorted({*wanted.tags, *there.tags})
        if wanted.tags.get(key) != there.tags.get(key)
    ]
    return texts


def _value(name: str, text: str | None) -> Any:
    if text is None:
        return attributes.OWN.get(name)
    return json.loads(text) if name in BOUND else text


def _shown(text: str | None) -> str:
    return "not set" if text is None else text
