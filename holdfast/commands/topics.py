"""``holdfast topic``: topics of SNS's protocol, their subscriptions, and publications."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.commandline.base import Group, Parsed, account_option, confirm, pages, print_result
from holdfast.commands.queues.policy_check import add_policy_check

if TYPE_CHECKING:
    from holdfast.commandline.client import RestClient

_SCOPES = ("MessageAttributes", "MessageBody")
_FIFO_SUFFIX = ".fifo"


# --- topics --------------------------------------------------------------------------------------------------


def _create(client: RestClient, parsed: Parsed) -> None:
    fifo = {"FifoTopic": "true"} if parsed.name.endswith(_FIFO_SUFFIX) else {}
    body = {"name": parsed.name, "attributes": {**fifo, **dict(parsed.set)}, "tags": dict(parsed.tag)}
    made = client.call("POST", "topics", query={"account": parsed.account}, body=body)
    print_result(parsed, made, lambda: f"Topic {parsed.name} is created: {made['arn']}")


def _list(client: RestClient, parsed: Parsed) -> None:
    from holdfast.commandline.text_tables import moment, table

    found = list(pages(client, ("topics",), "topics", {"account": parsed.account, "prefix": parsed.prefix}))
    rows = [(one["name"], one["subscriptions"], moment(one["created"])) for one in found]
    print_result(
        parsed,
        {"topics": found},
        lambda: table(("TOPIC", "SUBSCRIPTIONS", "CREATED"), rows, nothing="There are no topics."),
    )


def _show(client: RestClient, parsed: Parsed) -> None:
    from holdfast.commandline.text_tables import facts, moment

    topic = client.call("GET", "topics", parsed.name, query={"account": parsed.account})

    def text() -> str:
        counts, deliveries = topic["subscriptions"], topic["deliveries"] or {}
        about = {
            "arn": topic["arn"],
            "created": moment(topic["created"]),
            "subscriptions": f"{counts['confirmed']} confirmed, {counts['pending']} pending",
            "pending_deliveries": deliveries.get("pending"),
            "dropped_deliveries": deliveries.get("dropped"),
            "tags": ", ".join(f"{key}={value}" for key, value in (topic["tags"] or {}).items()) or None,
        }
        return f"{facts(about)}\n\n{facts(dict(sorted(topic['attributes'].items())))}"

    print_result(parsed, topic, text)


def _change(client: RestClient, parsed: Parsed) -> None:
    tags: dict[str, str | None] = {**dict(parsed.tag), **dict.fromkeys(parsed.untag)}
    body = {"attributes": _changed_attributes(parsed), "tags": tags}
    client.call("PATCH", "topics", parsed.name, query={"account": parsed.account}, body=body)
    print_result(parsed, {"changed": parsed.name}, lambda: f"Topic {parsed.name} is changed.")


def _changed_attributes(parsed: Parsed) -> dict[str, str]:
    return {**dict(parsed.set), **dict.fromkeys(parsed.unset, "")}


def _delete(client: RestClient, parsed: Parsed) -> None:
    confirm(
        parsed,
        f"Delete topic {parsed.name} with its subscriptions and pending deliveries?  This cannot be undone.",
    )
    client.call("DELETE", "topics", parsed.name, query={"account": parsed.account})
    print_result(parsed, {"deleted": parsed.name}, lambda: f"Topic {parsed.name} is deleted.")


def _publish(client: RestClient, parsed: Parsed) -> None:
    body = {
        "body": _read_input() if parsed.message is None else parsed.message,
        "subject": parsed.subject,
        "group": parsed.group,
        "deduplication_id": parsed.deduplication_id,
        "attributes": dict(parsed.attribute),
    }
    given = {name: value for name, value in body.items() if value is not None}
    stored = client.call("POST", "topics", parsed.name, "messages", query={"account": parsed.account}, body=given)
    print_result(parsed, stored, lambda: f"Message {stored['id']} is published.")


def _read_input() -> str:
    """Standard input, whole.  Raises :class:`CommandFailed`."""
    from holdfast.commandline.client import USAGE, CommandFailed

    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        raise CommandFailed("a message is text in UTF-8, and standard input is not", USAGE) from None


def _test_filter(client: RestClient, parsed: Parsed) -> None:
    body = {
        "policy": parsed.policy,
        "scope": parsed.scope,
        "body": parsed.body,
        "attributes": dict(parsed.attribute),
    }
    tested = client.call("POST", "filter-policies", "test", body=body)
    print_result(parsed, tested, lambda: "The message matches." if tested["matches"] else "The message does not match.")


# --- subscriptions -------------------------------------------------------------------------------------------


def _subscribe(client: RestClient, parsed: Parsed) -> None:
    body = {"protocol": parsed.protocol, "endpoint": parsed.to, "attributes": dict(parsed.set)}
    if parsed.queue is not None:
        body = {"queue": parsed.queue, "attributes": dict(parsed.set)}
    made = client.call("POST", "topics", parsed.name, "subscriptions", query={"account": parsed.account}, body=body)
    state = "confirmed" if made["confirmed"] else "waiting for the confirmation of its endpoint"
    print_result(parsed, made, lambda: f"Subscription {made['id']} is {state}.")


def _confirm(client: RestClient, parsed: Parsed) -> None:
    made = client.call(
        "POST",
        *("topics", parsed.name, "subscriptions", "confirm"),
        query={"account": parsed.account},
        body={"token": parsed.token},
    )
    print_result(parsed, made, lambda: f"Subscription {made['id']} is confirmed.")


def _subscriptions(client: RestClient, parsed: Parsed) -> None:
    from holdfast.commandline.text_tables import facts, table

    if parsed.id is not None:
        one = client.call("GET", "topics", parsed.name, "subscriptions", parsed.id, query={"account": parsed.account})
        about = {name: value for name, value in one.items() if name not in ("attributes", "backlog")}
        if one["backlog"] is not None:
            about |= {"waiting_messages": one["backlog"]["pending"], "oldest_seconds": one["backlog"]["oldest_seconds"]}
        print_result(parsed, one, lambda: facts({**about, **one["attributes"]}))
        return
    path: tuple[str, ...] = ("subscriptions",) if parsed.name is None else ("topics", parsed.name, "subscriptions")
    found = list(pages(client, path, "subscriptions", {"account": parsed.account}))
    headings = ("SUBSCRIPTION", "TOPIC", "PROTOCOL", "ENDPOINT", "CONFIRMED", "FILTERED", "RAW")
    members = ("id", "topic", "protocol", "endpoint", "confirmed", "filtered", "raw")
    rows = [tuple(_word(one[member]) for member in members) for one in found]
    print_result(parsed, {"subscriptions": found}, lambda: table(headings, rows, nothing="There are no subscriptions."))


def _word(value: Any) -> Any:
    """A truth value as a word: as a number it would stand at the right."""
    return ("no", "yes")[value] if isinstance(value, bool) else value


def _change_subscription(client: RestClient, parsed: Parsed) -> None:
    path = ("topics", parsed.name, "subscriptions", parsed.id)
    body = {"attributes": _changed_attributes(parsed)}
    client.call("PATCH", *path, query={"account": parsed.account}, body=body)
    print_result(parsed, {"changed": parsed.id}, lambda: f"Subscription {parsed.id} is changed.")


def _unsubscribe(client: RestClient, parsed: Parsed) -> None:
    client.call("DELETE", "topics", parsed.name, "subscriptions", parsed.id, query={"account": parsed.account})
    print_result(parsed, {"deleted": parsed.id}, lambda: f"Subscription {parsed.id} is deleted.")


# --- files ---------------------------------------------------------------------------------------------------


def _export(client: RestClient, parsed: Parsed) -> None:
    from holdfast.migrate.topic_files import export_topics

    export_topics(client, parsed)


def _import(client: RestClient, parsed: Parsed) -> None:
    from holdfast.migrate.topic_files import import_topics

    import_topics(client, parsed)


# --- parsers -------------------------------------------------------------------------------------------------


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not like NAME=VALUE")
    return name, value


def _attribute(text: str) -> tuple[str, dict[str, str]]:
    """Parse a message attribute: its name, a type other than String after a colon, and its value."""
    name, value = _pair(text)
    name, _, type_ = name.partition(":")
    return name, {"type": type_ or "String", "value": value}


def _add_attributes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--attribute",
        metavar="NAME[:TYPE]=VALUE",
        type=_attribute,
        action="append",
        default=[],
        help="repeat; attribute of the message; types: String (default), Number, String.Array, Binary (in base64)",
    )


def _add_settings(*parsers: argparse.ArgumentParser) -> None:
    for parser in parsers:
        parser.add_argument(
            "--set", metavar="NAME=VALUE", type=_pair, action="append", default=[], help="repeat; by SNS's names"
        )


def _add_removals(*parsers: argparse.ArgumentParser) -> None:
    for parser in parsers:
        parser.add_argument("--unset", metavar="NAME", action="append", default=[], help="repeat; back to the default")


def _add_tags(*parsers: argparse.ArgumentParser) -> None:
    for parser in parsers:
        parser.add_argument("--tag", metavar="KEY=VALUE", type=_pair, action="append", default=[], help="repeat")


def add_topic_commands(parser: argparse.ArgumentParser) -> None:
    group = Group(parser)
    create = group.add("create", _create, "create a topic; one whose name ends with .fifo is a FIFO topic", "name")
    listing = group.add("list", _list, "list topics")
    listing.add_argument("--prefix", metavar="TEXT", help="only names with this prefix")
    show = group.add("show", _show, "show a topic's attributes, tags, and pending deliveries", "name")
    change = group.add("change", _change, "change attributes and tags of a topic", "name")
    change.add_argument("--untag", metavar="KEY", action="append", default=[], help="repeat; remove the tag")
    delete = group.add("delete", _delete, "delete a topic with its subscriptions", "name", asks=True)
    policy = add_policy_check(group, "topic", "Publish")
    publish = group.add("publish", _publish, "publish a message to a topic", "name")
    publish.add_argument("message", metavar="MESSAGE", nargs="?", help="default: standard input")
    publish.add_argument("--subject", metavar="TEXT", help="subject in SNS's envelope")
    publish.add_argument("--group", metavar="GROUP", help="message group")
    publish.add_argument("--deduplication-id", metavar="ID", help="FIFO: messages with the same id are delivered once")
    subscribe = group.add("subscribe", _subscribe, "subscribe a queue, or another endpoint, to a topic", "name")
    endpoint = subscribe.add_mutually_exclusive_group(required=True)
    endpoint.add_argument("--queue", metavar="NAME", help="queue of the account")
    endpoint.add_argument("--to", metavar="ENDPOINT", help="for the protocol sqs the ARN of a queue")
    subscribe.add_argument("--protocol", metavar="PROTOCOL", default="sqs", help="protocol of --to; default: sqs")
    confirming = group.add("confirm", _confirm, "confirm a subscription by the token sent to it", "name", "token")
    listed = group.add("subscriptions", _subscriptions, "list subscriptions of a topic, or show one")
    listed.add_argument("name", metavar="NAME", nargs="?", help="topic; default: all subscriptions of the account")
    listed.add_argument("id", metavar="ID", nargs="?", help="show this subscription")
    changing = group.add(
        "change-subscription", _change_subscription, "change attributes of a subscription", "name", "id"
    )
    unsubscribe = group.add("unsubscribe", _unsubscribe, "delete a subscription", "name", "id")
    test = group.add("test-filter", _test_filter, "test if a message passes a filter policy", "policy")
    test.add_argument("--scope", choices=_SCOPES, default=_SCOPES[0], help=f"default: {_SCOPES[0]}")
    test.add_argument("--body", metavar="TEXT", default="", help="body of the message")
    export = group.add("export", _export, "write topics with their subscriptions as JSON lines")
    export.add_argument("names", metavar="NAME", nargs="*", help="default: all topics of the account")
    export.add_argument("--file", metavar="FILE", type=Path, help="default: standard output")
    importing = group.add("import", _import, "create topics and subscriptions from a file of holdfast topic export")
    importing.add_argument("file", metavar="FILE", type=Path)
    importing.add_argument("--dry-run", action="store_true", help="check everything, print the plan, and stop")
    _add_settings(create, change, subscribe, changing)
    _add_removals(change, changing)
    _add_tags(create, change)
    _add_attributes(publish)
    _add_attributes(test)
    account_option(create, listing, show, change, delete, policy, publish)
    account_option(subscribe, confirming, listed, changing, unsubscribe, export, importing)
