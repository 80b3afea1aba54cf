"""Commands that administer a running service: ``tenant``, ``queue`` and ``limits``, and those of credentials and
clusters.

Each makes one or a few calls of the REST interface (:mod:`holdfast.commandline.client`), which authorizes them.
Actions that cannot be undone need a confirmation, or ``--yes``.
"""

from __future__ import annotations

import argparse
import secrets
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.commandline.base import Group, Parsed, account_option, confirm, pages, print_result
from holdfast.commands.alarms import add_alarm_commands
from holdfast.commands.billing.availability import add_availability_command
from holdfast.commands.billing.invoices import add_invoice_commands
from holdfast.commands.billing.usage import add_usage_command
from holdfast.commands.clusters import add_cluster_commands
from holdfast.commands.keys import add_key_commands, add_role_commands, add_token_commands
from holdfast.commands.migrate import add_move_commands
from holdfast.commands.streams import add_stream_commands

if TYPE_CHECKING:
    from holdfast.commandline.client import RestClient

_RATES = ("calls", "send", "receive", "manage", "each_queue")
_QUOTAS = ("queues", "topics", "topic_partitions", "keys", "stored_bytes", "connections", "long_polls")
_PEEK_MAX = 100


# --- tenants -------------------------------------------------------------------------------------------------


def _create_tenant(client: RestClient, parsed: Parsed) -> None:
    made = client.call("POST", "tenants", body={"name": parsed.name, "account": parsed.account})
    print_result(parsed, made, lambda: _tenant_facts(made))


def _list_tenants(client: RestClient, parsed: Parsed) -> None:
    from holdfast.commandline.text_tables import moment, table

    tenants = list(pages(client, ("tenants",), "tenants", {}))
    print_result(
        parsed,
        {"tenants": tenants},
        lambda: table(
            ("ACCOUNT", "NAME", "STATE", "CREATED", "DELETED"),
            [(one["account"], one["name"], one["state"], _created(one), moment(one["deleted"])) for one in tenants],
            nothing="There are no tenants.",
        ),
    )


def _show_tenant(client: RestClient, parsed: Parsed) -> None:
    tenant = client.call("GET", "tenants", parsed.account)
    print_result(parsed, tenant, lambda: _tenant_facts(tenant))


def _suspend_tenant(client: RestClient, parsed: Parsed) -> None:
    tenant = client.call("POST", "tenants", parsed.account, "suspend")
    print_result(parsed, tenant, lambda: f"Tenant {parsed.account} is suspended: all its calls are refused.")


def _resume_tenant(client: RestClient, parsed: Parsed) -> None:
    tenant = client.call("POST", "tenants", parsed.account, "resume")
    print_result(parsed, tenant, lambda: f"Tenant {parsed.account} is active.")


def _delete_tenant(client: RestClient, parsed: Parsed) -> None:
    tenant = client.call("GET", "tenants", parsed.account)
    confirm(
        parsed,
        f"Delete tenant {parsed.account} ({tenant['name']}) with all its keys, queues and messages?  This "
        "cannot be undone.",
        parsed.account,
    )
    tenant = client.call("DELETE", "tenants", parsed.account)
    print_result(parsed, tenant, lambda: f"Tenant {parsed.account} is deleted.")


def _tenant_facts(tenant: dict[str, Any]) -> str:
    from holdfast.commandline.text_tables import facts, moment

    limits = {name: value for name, value in _limit_lines(tenant["limits"]).items() if value is not None}
    return facts(
        {
            "account": tenant["account"],
            "name": tenant["name"],
            "state": tenant["state"],
            "created": _created(tenant),
            "deleted": moment(tenant["deleted"]),
            "limits": ", ".join(f"{name}={value}" for name, value in limits.items()) or "none",
            "stored_bytes": tenant["stored_bytes"],
        }
    )


# --- limits --------------------------------------------------------------------------------------------------


def _show_limits(client: RestClient, parsed: Parsed) -> None:
    _print_limits(parsed, client.call("GET", "tenants", parsed.account, "limits"))


def _set_limits(client: RestClient, parsed: Parsed) -> None:
    changes = dict(parsed.limits)
    _print_limits(parsed, client.call("PATCH", "tenants", parsed.account, "limits", body=changes))


def _print_limits(parsed: Parsed, limits: dict[str, Any]) -> None:
    from holdfast.commandline.text_tables import facts

    print_result(parsed, limits, lambda: facts(_limit_lines(limits)))


def _limit_lines(limits: dict[str, Any]) -> dict[str, str | None]:
    lines: dict[str, str | None] = {}
    for name in (*_RATES, *_QUOTAS):
        limit = limits.get(name)  # None of a server that does not know it
        rate = isinstance(limit, dict)
        lines[name] = None if limit is None else f"{limit['per_second']:g}:{limit['burst']}" if rate else str(limit)
    return lines


def _limit(text: str) -> tuple[str, Any]:
    """Parse ``NAME=VALUE`` of the command line."""
    from auth.limits import parse_rate

    name, _, value = text.partition("=")
    name = name.replace("-", "_")
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not like calls=50:200, queues=100 or send=none")
    if name not in (*_RATES, *_QUOTAS):
        raise argparse.ArgumentTypeError(f"there is no limit {name!r}; there are {', '.join((*_RATES, *_QUOTAS))}")
    if value == "none":
        return name, None
    try:
        if name in _RATES:
            rate = parse_rate(value)
            return name, {"per_second": rate.per_second, "burst": rate.burst}
        return name, int(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{name}: {error}") from None


# --- queues --------------------------------------------------------------------------------------------------


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

    metrics = client.call("GET", "queues", parsed.name, "metrics", query={"account": parsed.account})

    def lines() -> str:
        rows = [
            (one["name"], f"{one['value']:.15g}", one["unit"], "since" if one["counter"] else "now")
            for one in metrics["metrics"]
        ]
        since = f"since: {moment(metrics['counted_since'])}; the counts restart at zero with each start of a backend"
        return table(("METRIC", "VALUE", "UNIT", ""), rows, nothing="") + f"\n\n{since}"

    print_result(parsed, metrics, lines)


def _peek_queue(client: RestClient, parsed: Parsed) -> None:
    from holdfast.commandline.text_tables import moment, table

    query = {"account": parsed.account, "limit": parsed.max}
    peeked = client.call("GET", "queues", parsed.name, "peek", query=query)
    print_result(
        parsed,
        peeked,
        lambda: table(
            ("SENT", "STATE", "UNTIL", "RECEIVES", "GROUP", "BODY"),
            [
                (
                    moment(message["sent"]),
                    message["state"],
                    moment(message["due"]),
                    message["receives"],
                    message["group"],
                    "(cannot be read)" if message["body"] is None else message["body"],
                )
                for message in peeked["messages"]
            ],
            nothing="The queue is empty.",
        ),
    )


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


def _delete_queue(client: RestClient, parsed: Parsed) -> None:
    confirm(parsed, f"Delete queue {parsed.name} with all its messages?  This cannot be undone.")
    client.call("DELETE", "queues", parsed.name, query={"account": parsed.account})
    print_result(parsed, {"deleted": parsed.name}, lambda: f"Queue {parsed.name} is deleted.")


def _created(tenant: dict[str, Any]) -> str | None:
    from holdfast.commandline.text_tables import moment

    return moment(tenant["created"] or None)


def _peeked(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= _PEEK_MAX:
        raise argparse.ArgumentTypeError(f"a number from 1 to {_PEEK_MAX}, not {text!r}")
    return int(text)


# --- parsers -------------------------------------------------------------------------------------------------


def add_tenant_commands(parser: argparse.ArgumentParser) -> None:
    group = Group(parser)
    create = group.add("create", _create_tenant, "create a tenant; it has no keys yet", "name")
    create.add_argument("--account", metavar="ACCOUNT", help="12 digits; default: a free one")
    group.add("list", _list_tenants, "list all tenants, including deleted ones")
    group.add("show", _show_tenant, "show a tenant", "account")
    group.add("suspend", _suspend_tenant, "refuse all calls of a tenant until it is resumed", "account")
    group.add("resume", _resume_tenant, "resume a suspended tenant", "account")
    group.add("delete", _delete_tenant, "delete a tenant with its keys, queues and messages", "account", asks=True)


def add_queue_commands(parser: argparse.ArgumentParser) -> None:
    group = Group(parser)
    listing = group.add("list", _list_queues, "list queues with their numbers of messages")
    listing.add_argument("--prefix", metavar="TEXT", help="only names with this prefix")
    show = group.add("show", _show_queue, "show a queue's attributes, tags, counters and move tasks", "name")
    metrics = group.add("metrics", _queue_metrics, "show a queue's metrics, under CloudWatch's names", "name")
    peek = group.add("peek", _peek_queue, "show the first messages without receiving them", "name")
    peek.add_argument("--max", metavar="N", type=_peeked, default=10, help="messages at most, up to 100 (default: 10)")
    secret = group.add("push-secret", _push_secret, "show the secret that signs pushed messages", "name")
    purge = group.add("purge", _purge_queue, "delete all messages of a queue", "name", asks=True)
    move = group.add("move", _move_queue, "move the messages of a dead-letter queue back, or to another queue", "name")
    move.add_argument("--to", metavar="NAME", help="queue of the same account; default: the source of each message")
    move.add_argument("--rate", metavar="N", type=int, help="messages a second; default: unlimited")
    group.add("check", _check, "send a message to a temporary queue, receive and delete it, and delete the queue")
    delete = group.add("delete", _delete_queue, "delete a queue with all its messages", "name", asks=True)
    account_option(listing, show, metrics, peek, secret, purge, move, delete)


def add_limits_commands(parser: argparse.ArgumentParser) -> None:
    group = Group(parser)
    group.add("show", _show_limits, "show the limits of a tenant", "account")
    change = group.add("set", _set_limits, "change limits of a tenant; the others stay", "account")
    change.add_argument(
        "limits",
        metavar="NAME=VALUE",
        nargs="+",
        type=_limit,
        help=f"{', '.join(_RATES)}: calls a second and burst, such as 50:200; {', '.join(_QUOTAS)}: a number; "
        "none: no limit",
    )


def add_commands(commands: Any, key: Group) -> None:
    """Add all of them to the command line; ``key`` already has other commands."""
    groups: Sequence[tuple[str, str, Callable[[argparse.ArgumentParser], None]]] = (
        ("tenant", "create, suspend and delete tenants (operators)", add_tenant_commands),
        ("queue", "show, purge, move and delete queues", add_queue_commands),
        ("stream", "create, read and write streams; positions of consumer groups", add_stream_commands),
        ("alarm", "alarms on queues and topics, which call a webhook", add_alarm_commands),
        ("limits", "limits and quotas of tenants (operators)", add_limits_commands),
        ("role", "create, list and delete roles, which sessions assume", add_role_commands),
        ("token", "create short-lived tokens with an API key", add_token_commands),
        ("cluster", "show backend clusters and nodes; drain, retire and split (operators)", add_cluster_commands),
        ("usage", "show usage by day, queue, tag or action", add_usage_command),
        ("availability", "availability of the service to a tenant in a month", add_availability_command),
        ("invoice", "list, show, save and close invoices", add_invoice_commands),
    )
    for name, about, add in groups:
        add(commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + "."))
    add_key_commands(key)
    add_move_commands(commands)
