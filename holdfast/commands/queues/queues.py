"""``holdfast queue``: create, show, change, watch, purge, move and delete queues."""

from __future__ import annotations

import argparse
import secrets
import time
from typing import TYPE_CHECKING, Any

from holdfast.commandline.base import Group, Parsed, account_option, confirm, pages, print_result
from holdfast.commands.queues.policy_check import add_policy_check
from holdfast.commands.queues.watch import add_watch_command

if TYPE_CHECKING:
    from holdfast.commandline.client import RestClient


def _create_queue(client: RestClient, parsed: Parsed) -> None:
    body = {"name": parsed.name, "attributes": dict(parsed.set), "tags": dict(parsed.tag)}
    made = client.call("POST", "queues", query={"account": parsed.account}, body=body)
    print_result(parsed, made, lambda: f"Queue {parsed.name} is created: {made['url']}")


def _change_queue(client: RestClient, parsed: Parsed) -> None:
    from holdfast.commandline.client import USAGE, CommandFailed

    tags: dict[str, str | None] = {**dict(parsed.tag), **dict.fromkeys(parsed.untag)}
    if not parsed.set and not tags:
        raise CommandFailed("nothing to change: name it with --set, --tag or --untag", USAGE)
    body = {"attributes": dict(parsed.set), "tags": tags}
    client.call("PATCH", "queues", parsed.name, query={"account": parsed.account}, body=body)
    print_result(parsed, {"changed": parsed.name}, lambda: f"Queue {parsed.name} is changed.")


def _list_attributes(client: RestClient, parsed: Parsed) -> None:
    from holdfast.commandline.text_tables import table

    found = client.call("GET", "queue-attributes")
    rows = [(one["name"], _values(one), one["default"] or None, _remarks(one)) for one in found["attributes"]]
    print_result(parsed, found, lambda: table(("ATTRIBUTE", "VALUES", "DEFAULT", ""), rows, nothing=""))


def _values(attribute: dict[str, Any]) -> str:
    if attribute["choices"]:
        return ", ".join(attribute["choices"])
    if attribute["minimum"] is None:
        return "a text"
    return f"{attribute['minimum']} to {attribute['maximum']}"


def _remarks(attribute: dict[str, Any]) -> str:
    remarks = {"fifo_only": "FIFO queues only", "fixed": "set at creation", "removable": "an empty value removes it"}
    return "; ".join(text for name, text in remarks.items() if attribute[name])


def _check(client: RestClient, parsed: Parsed) -> None:
    """Run a client's calls by SQS's own protocol, on a queue with a unique name that is always deleted."""
    from holdfast.commandline.client import CommandFailed

    name = f"holdfast-check-{secrets.token_hex(8)}"
    started_at = time.monotonic()
    url = client.sqs("CreateQueue", QueueName=name)["QueueUrl"]
    try:
        sent = client.sqs("SendMessage", QueueUrl=url, MessageBody=name)
        messages = client.sqs("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20).get("Messages", [])
        if [(one["MessageId"], one["Body"]) for one in messages] != [(sent["MessageId"], name)]:
            raise CommandFailed(f"message {sent['MessageId']} was sent, but not received within 20 s")
        client.sqs("DeleteMessage", QueueUrl=url, ReceiptHandle=messages[0]["ReceiptHandle"])
    finally:
        client.sqs("DeleteQueue", QueueUrl=url)
    took = time.monotonic() - started_at
    print_result(
        parsed,
        {"queue": name, "message_id": sent["MessageId"], "seconds": round(took, 3)},
        lambda: f"Message {sent['MessageId']} was sent, received and deleted, with its queue, in {took:.2f} s.",
    )


def _list_queues(client: RestClient, parsed: Parsed) -> None:
    from holdfast.commandline.text_tables import table

    query = {"account": parsed.account, "prefix": parsed.prefix, "counters": "true"}
    queues = list(pages(client, ("queues",), "queues", query))
    unknown = {"visible": None, "in_flight": None, "delayed": None, "stored_bytes": None}
    rows = [(queue["name"], *(queue["messages"] or unknown).values()) for queue in queues]
    print_result(
        parsed,
        {"queues": queues},
        lambda: table(("QUEUE", "VISIBLE", "IN FLIGHT", "DELAYED", "BYTES"), rows, nothing="There are no queues."),
    )


def _show_queue(client: RestClient, parsed: Parsed) -> None:
    from holdfast.commandline.text_tables import facts, moment, table

    queue = client.call("GET", "queues", parsed.name, query={"account": parsed.account})

    def show() -> str:
        tags = ", ".join(f"{key}={value}" for key, value in queue["tags"].items())
        own = {"arn": queue["arn"], "url": queue["url"], **queue["messages"], "tags": tags or None}
        text = facts(own) + "\n\n" + facts(dict(sorted(queue["attributes"].items())))
        if queue["move_tasks"]:
            rows = [
                (task["status"], task["destination_arn"], task["moved"], task["to_move"], moment(task["started"]))
                for task in queue["move_tasks"]
            ]
            text += "\n\n" + table(("MOVE TASK", "DESTINATION", "MOVED", "TO MOVE", "STARTED"), rows, nothing="")
        return text

    print_result(parsed, queue, show)


def _queue_metrics(client: RestClient, parsed: Parsed) -> None:
    from holdfast.commandline.text_tables import moment, table

    kind = "topics" if parsed.topic else "queues"
    metrics = client.call("GET", kind, parsed.name, "metrics", query={"account": parsed.account})

    def lines() -> str:
        rows = [
            (one["name"], f"{one['value']:.15g}", one["unit"], "since" if one["counter"] else "now")
            for one in metrics["metrics"]
        ]
        since = f"since: {moment(metrics['counted_since'])}; the counts restart at zero with each start of a backend"
        return table(("METRIC", "VALUE", "UNIT", ""), rows, nothing="") + f"\n\n{since}"

    print_result(parsed, metrics, lines)


def _push_secret(client: RestClient, parsed: Parsed) -> None:
    shown = client.call("GET", "queues", parsed.name, "push-secret", query={"account": parsed.account})
    print_result(parsed, shown, lambda: shown["secret"])


def _purge_queue(client: RestClient, parsed: Parsed) -> None:
    confirm(parsed, f"Delete all messages of queue {parsed.name}?  This cannot be undone.")
    client.call("POST", "queues", parsed.name, "purge", query={"account": parsed.account})
    print_result(parsed, {"purged": parsed.name}, lambda: f"Queue {parsed.name} is purged.")


def _move_queue(client: RestClient, parsed: Parsed) -> None:
    body = {"destination": parsed.to, "rate_per_second": parsed.rate}
    started = client.call("POST", "queues", parsed.name, "move", query={"account": parsed.account}, body=body)
    where = f"to {parsed.to}" if parsed.to else "back to where they came from"
    text = (
        f"The messages of {parsed.name} are being moved {where}; holdfast queue show {parsed.name} shows the progress."
    )
    print_result(parsed, started, lambda: text)


def _cancel_move(client: RestClient, parsed: Parsed) -> None:
    from holdfast.commandline.client import NOT_FOUND, CommandFailed

    query, handle = {"account": parsed.account}, parsed.handle
    if handle is None:
        tasks = client.call("GET", "queues", parsed.name, query=query)["move_tasks"]
        running = [task["task_handle"] for task in tasks if task["task_handle"] is not None]
        if not running:
            raise CommandFailed(f"no move task of queue {parsed.name} is running", NOT_FOUND)
        handle = running[0]
    stopped = client.call("POST", "queues", parsed.name, "move", "cancel", query=query, body={"task_handle": handle})
    text = f"The move of the messages of {parsed.name} is cancelled; {stopped['moved']} were moved."
    print_result(parsed, stopped, lambda: text)


def _delete_queue(client: RestClient, parsed: Parsed) -> None:
    confirm(parsed, f"Delete queue {parsed.name} with all its messages?  This cannot be undone.")
    client.call("DELETE", "queues", parsed.name, query={"account": parsed.account})
    print_result(parsed, {"deleted": parsed.name}, lambda: f"Queue {parsed.name} is deleted.")


# --- parsers -------------------------------------------------------------------------------------------------


def _assignment(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not like NAME=VALUE")
    return name, value


def add_queue_commands(parser: argparse.ArgumentParser) -> None:
    group = Group(parser)
    create = group.add("create", _create_queue, "create a queue", "name")
    listing = group.add("list", _list_queues, "list queues with their numbers of messages")
    listing.add_argument("--prefix", metavar="TEXT", help="only names with this prefix")
    show = group.add("show", _show_queue, "show a queue's attributes, tags, counters and move tasks", "name")
    change = group.add("change", _change_queue, "change a queue's attributes and tags; the others stay", "name")
    change.add_argument("--untag", metavar="KEY", action="append", default=[], help="repeat; tag to remove")
    for one in (create, change):
        one.add_argument(
            "--set",
            metavar="ATTRIBUTE=VALUE",
            type=_assignment,
            action="append",
            default=[],
            help="repeat; holdfast queue attributes lists them",
        )
        one.add_argument("--tag", metavar="KEY=VALUE", type=_assignment, action="append", default=[], help="repeat")
    group.add("attributes", _list_attributes, "list the attributes that queues can have, with their limits")
    watch = add_watch_command(group)
    metrics = group.add(
        "metrics", _queue_metrics, "show a queue's or topic's metrics, under CloudWatch's names", "name"
    )
    metrics.add_argument("--topic", action="store_true", help="the name is a topic's")
    secret = group.add("push-secret", _push_secret, "show the secret that signs pushed messages", "name")
    purge = group.add("purge", _purge_queue, "delete all messages of a queue", "name", asks=True)
    move = group.add("move", _move_queue, "move the messages of a dead-letter queue back, or to another queue", "name")
    move.add_argument("--to", metavar="NAME", help="queue of the same account; default: the source of each message")
    move.add_argument("--rate", metavar="N", type=int, help="messages a second; default: unlimited")
    cancel = group.add("cancel-move", _cancel_move, "stop the move of a queue's messages", "name")
    cancel.add_argument("handle", metavar="HANDLE", nargs="?", help="of the move task; default: the running one")
    policy = add_policy_check(group, "queue", "SendMessage")
    group.add("check", _check, "send a message to a temporary queue, receive and delete it, and delete the queue")
    delete = group.add("delete", _delete_queue, "delete a queue with all its messages", "name", asks=True)
    account_option(create, listing, show, change, watch, metrics, secret, purge, move, cancel, policy, delete)
