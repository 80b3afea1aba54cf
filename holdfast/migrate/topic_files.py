"""Files of topics: ``holdfast topic export`` and ``holdfast topic import``.

The format is JSON lines: first where the topics were exported, then the topics, then their subscriptions, and at last
the end; a file without it is incomplete.  Unknown members are refused.

Subscriptions of other accounts are left out, because only these can make them again, and so are the tokens of pending
ones: a subscription of an own queue is confirmed when it is made, and another's is asked for its confirmation again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from frontend.sns.topics.attributes import TOPIC_SETTABLE
from frontend.sns.topics.policies import default_policy
from holdfast.commandline.base import Parsed, pages, print_result
from holdfast.commandline.client import NOT_FOUND, CommandFailed, persistently
from holdfast.commandline.files import complete_file
from holdfast.migrate.definition import ArnMapping
from holdfast.migrate.file_format import opened
from metadata_service.arn import QueueArn

if TYPE_CHECKING:
    from holdfast.commandline.client import RestClient

VERSION: Final = 1
LINE_BYTES_MAX: Final = 2 << 20
"""Maximum length of a line: a filter policy of 256 KiB with each character escaped, and more."""


class TopicsLine(msgspec.Struct, tag="topics", tag_field="type", forbid_unknown_fields=True):
    """The first line."""

    version: int
    region: str
    account: str
    exported: str
    """Time of the export."""


class TopicDefinitionLine(msgspec.Struct, tag="topic", tag_field="type", forbid_unknown_fields=True):
    """A topic."""

    name: str
    attributes: dict[str, str]
    """Attributes that were set, by SNS's names."""
    tags: dict[str, str]


class SubscriptionDefinitionLine(msgspec.Struct, tag="subscription", tag_field="type", forbid_unknown_fields=True):
    """A subscription of a topic of the file."""

    topic: str
    protocol: str
    endpoint: str
    attributes: dict[str, str]
    """Attributes that were set, by SNS's names."""


class TopicsEndLine(msgspec.Struct, tag="end", tag_field="type", forbid_unknown_fields=True):
    """The last line."""

    topics: int
    subscriptions: int


TopicFileLine = TopicsLine | TopicDefinitionLine | SubscriptionDefinitionLine | TopicsEndLine
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(TopicFileLine).decode


# --- export --------------------------------------------------------------------------------------------------


def export_topics(client: RestClient, parsed: Parsed) -> None:
    """Run the command.  Raises :class:`CommandFailed`."""
    account, region = _place(client, parsed)
    query = {"account": parsed.account}
    names = parsed.names or [one["name"] for one in pages(client, ("topics",), "topics", query)]
    definitions = [_definition(_topic(client, name, query)) for name in names]
    subscriptions: list[SubscriptionDefinitionLine] = []
    of_others = 0
    for name in names:
        for line in pages(client, ("topics", name, "subscriptions"), "subscriptions", query):
            if line["owner"] == account:
                subscriptions.append(_subscription(client, name, line["id"], query))
            else:
                of_others += 1
    heading = TopicsLine(VERSION, region, account, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
    end = TopicsEndLine(len(definitions), len(subscriptions))
    with complete_file(parsed.file) as output:
        for written in (heading, *definitions, *subscriptions, end):
            output.write(_encode(written) + b"\n")
    counts = {"topics": len(definitions), "subscriptions": len(subscriptions), "of_others": of_others}
    text = f"Written: {_counted(len(definitions), 'topic')}, {_counted(len(subscriptions), 'subscription')}."
    if of_others:
        text += f"  Left out: {_counted(of_others, 'subscription')} of other accounts, which only these can make again."
    print(_encode(counts).decode() if parsed.json else text, file=sys.stderr)


def _place(client: RestClient, parsed: Parsed) -> tuple[str, str]:
    """Account and region of the topics."""
    caller = client.call("GET", "caller")
    return parsed.account or caller["account"], caller["region"]


def _topic(client: RestClient, name: str, query: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = persistently(lambda: client.call("GET", "topics", name, query=query))
    return found


def _definition(shown: dict[str, Any]) -> TopicDefinitionLine:
    """Definition of a topic, from the properties that the service shows."""
    given: dict[str, str] = shown["attributes"]
    attributes = {name: given[name] for name in TOPIC_SETTABLE if given.get(name)}
    if attributes.get("Policy") == default_policy(shown["arn"], shown["account"]):
        del attributes["Policy"]
    return TopicDefinitionLine(shown["name"], attributes, shown["tags"])


def _subscription(client: RestClient, topic: str, id_: str, query: dict[str, Any]) -> SubscriptionDefinitionLine:
    shown = persistently(lambda: client.call("GET", "topics", topic, "subscriptions", id_, query=query))
    return SubscriptionDefinitionLine(topic, shown["protocol"], shown["endpoint"], shown["attributes"])


# --- import --------------------------------------------------------------------------------------------------


def import_topics(client: RestClient, parsed: Parsed) -> None:
    """Run the command.  The file, and the topics that exist, are checked before anything is changed.

    Raises :class:`CommandFailed`.
    """
    heading, topics, subscriptions = read_topics(parsed.file)
    account, region = _place(client, parsed)
    mapping = ArnMapping(QueueArn(heading.region, heading.account, ""), QueueArn(region, account, ""))
    topics = [msgspec.structs.replace(one, attributes=mapping.mapped_values(one.attributes)) for one in topics]
    subscriptions = [
        msgspec.structs.replace(
            one, endpoint=mapping.mapped_text(one.endpoint), attributes=mapping.mapped_values(one.attributes)
        )
        for one in subscriptions
    ]
    query = {"account": parsed.account}
    actions = {one.name: _action(client, one, query) for one in topics}
    if not parsed.dry_run:
        for topic in topics:
            body = {"name": topic.name, "attributes": topic.attributes, "tags": topic.tags}
            client.call("POST", "topics", query=query, body=body)
        for one in subscriptions:
            body = {"protocol": one.protocol, "endpoint": one.endpoint, "attributes": one.attributes}
            client.call("POST", "topics", one.topic, "subscriptions", query=query, body=body)
    document = {"topics": actions, "subscriptions": len(subscriptions), "done": not parsed.dry_run}
    print_result(parsed, document, lambda: _summary(actions, subscriptions, dry_run=parsed.dry_run))


def _summary(actions: dict[str, str], subscriptions: Sequence[SubscriptionDefinitionLine], *, dry_run: bool) -> str:
    created = sum(action == "create" for action in actions.values())
    return (
        f"{'To be created' if dry_run else 'Created'}: {_counted(created, 'topic')}, and "
        f"{_counted(len(subscriptions), 'subscription')} unless they exist; "
        f"{_counted(len(actions) - created, 'topic')} existed."
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _action(client: RestClient, wanted: TopicDefinitionLine, query: dict[str, Any]) -> str:
    """``create`` or ``use``.  Raises :class:`CommandFailed` if there is another topic of this name."""
    try:
        there = _definition(_topic(client, wanted.name, query))
    except CommandFailed as error:
        if error.code != NOT_FOUND:
            raise
        return "create"
    if there != wanted:
        raise CommandFailed(
            f"topic {wanted.name} exists with other attributes or tags: change it, or delete it; nothing was imported"
        )
    return "use"


def read_topics(path: Path) -> tuple[TopicsLine, list[TopicDefinitionLine], list[SubscriptionDefinitionLine]]:
    """Read and check a file.  Raises :class:`CommandFailed`."""
    lines = list(_lines(path))
    heading, end = lines[0] if lines else None, lines[-1] if lines else None
    if not isinstance(heading, TopicsLine):
        raise CommandFailed(f"{path}, line 1: it has to be that of topics, as holdfast topic export writes it")
    if heading.version != VERSION:
        raise CommandFailed(f"{path} has format version {heading.version}, and this program reads {VERSION}")
    if not isinstance(end, TopicsEndLine):
        raise CommandFailed(f"{path} is incomplete: the end line is missing; export the topics again")
    topics = [one for one in lines if isinstance(one, TopicDefinitionLine)]
    subscriptions = [one for one in lines if isinstance(one, SubscriptionDefinitionLine)]
    if (end.topics, end.subscriptions) != (len(topics), len(subscriptions)) or len(lines) != 2 + len(topics) + len(
        subscriptions
    ):
        raise CommandFailed(
            f"{path}: the end line counts {end.topics} topics and {end.subscriptions} subscriptions, and the file has "
            f"{len(topics)} and {len(subscriptions)}"
        )
    names = {one.name for one in topics}
    for one in subscriptions:
        if one.topic not in names:
            raise CommandFailed(f"{path}: a subscription is of the topic {one.topic}, which is not in the file")
    return heading, topics, subscriptions


def _lines(path: Path) -> Iterator[TopicFileLine]:
    with opened(path) as file:
        number = 0
        while text := file.readline(LINE_BYTES_MAX + 1):
            number += 1
            if len(text) > LINE_BYTES_MAX:
                raise CommandFailed(f"{path}, line {number}: it is longer than {LINE_BYTES_MAX >> 20} MiB")
            try:
                line: TopicFileLine = _decode(text)
            except (msgspec.DecodeError, RecursionError) as error:
                raise CommandFailed(f"{path}, line {number}: {error}") from None
            yield line
