"""The commands that administer a running service: ``tenant``, ``key``, ``queue`` and ``limits``.

Each is one or a few calls of the REST interface (:mod:`holdfast.client`), so what they may do is decided there.  What
cannot be undone is done after a confirmation, or with ``--yes``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.client import Client

EXIT_CODES = """exit codes:
  0  done
  1  refused, or failed
  2  wrong arguments
  3  there is no such tenant, key or queue
  4  not signed in, or not permitted
  5  the service cannot be reached, or asks to try again later
"""

_SIGNING_IN = """signing in (the first of these that is given):
  --api-key-file FILE   an API key of a tenant's administrator or of an operator
  --data DIR            on the machine of the service: the operator's access key in its data folder
  HOLDFAST_API_KEY      an API key
  AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY

"""
_DURATION = re.compile(r"(\d{1,9})([smhd]?)\Z", re.ASCII)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_RATES = ("calls", "send", "receive", "manage", "each_queue")
_QUOTAS = ("queues", "connections", "long_polls")
_PAGE = 500
_PEEK_MOST = 100

Parsed = argparse.Namespace
Action = Callable[["Client", Parsed], None]


def run(parsed: Parsed) -> int:
    """Carry out a command and return its exit code."""
    from holdfast.client import CommandFailed, from_arguments

    try:
        client = from_arguments(parsed.endpoint, parsed.api_key_file, parsed.data, parsed.ca_file, parsed.config)
        try:
            parsed.act(client, parsed)
        finally:
            client.close()
        sys.stdout.flush()
    except CommandFailed as error:
        from holdfast.tables import shown

        print(f"holdfast: {shown(str(error))}", file=sys.stderr)
        return error.code
    except BrokenPipeError:  # whoever reads the output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


# --- tenants -------------------------------------------------------------------------------------------------


def _create_tenant(client: Client, parsed: Parsed) -> None:
    made = client.call("POST", "tenants", body={"name": parsed.name, "account": parsed.account})
    _tell(parsed, made, lambda: _tenant_facts(made))


def _list_tenants(client: Client, parsed: Parsed) -> None:
    from holdfast.tables import moment, table

    tenants = list(_pages(client, ("tenants",), "tenants", {}))
    _tell(
        parsed,
        {"tenants": tenants},
        lambda: table(
            ("ACCOUNT", "NAME", "STATE", "CREATED", "DELETED"),
            [(one["account"], one["name"], one["state"], _created(one), moment(one["deleted"])) for one in tenants],
            nothing="There are no tenants.",
        ),
    )


def _show_tenant(client: Client, parsed: Parsed) -> None:
    tenant = client.call("GET", "tenants", parsed.account)
    _tell(parsed, tenant, lambda: _tenant_facts(tenant))


def _suspend_tenant(client: Client, parsed: Parsed) -> None:
    tenant = client.call("POST", "tenants", parsed.account, "suspend")
    _tell(parsed, tenant, lambda: f"Tenant {parsed.account} is suspended: all its calls are refused.")


def _resume_tenant(client: Client, parsed: Parsed) -> None:
    tenant = client.call("POST", "tenants", parsed.account, "resume")
    _tell(parsed, tenant, lambda: f"Tenant {parsed.account} is active.")


def _delete_tenant(client: Client, parsed: Parsed) -> None:
    tenant = client.call("GET", "tenants", parsed.account)
    _confirm(
        parsed,
        f"Delete tenant {parsed.account} ({tenant['name']}) with all its keys, queues and messages?  "
        "Nothing of it can be had back.",
        parsed.account,
    )
    tenant = client.call("DELETE", "tenants", parsed.account)
    _tell(parsed, tenant, lambda: f"Tenant {parsed.account} is deleted.")


def _tenant_facts(tenant: dict[str, Any]) -> str:
    from holdfast.tables import facts, moment

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


def _show_limits(client: Client, parsed: Parsed) -> None:
    _tell_limits(parsed, client.call("GET", "tenants", parsed.account, "limits"))


def _set_limits(client: Client, parsed: Parsed) -> None:
    changes = dict(parsed.limits)
    _tell_limits(parsed, client.call("PATCH", "tenants", parsed.account, "limits", body=changes))


def _tell_limits(parsed: Parsed, limits: dict[str, Any]) -> None:
    from holdfast.tables import facts

    _tell(parsed, limits, lambda: facts(_limit_lines(limits)))


def _limit_lines(limits: dict[str, Any]) -> dict[str, str | None]:
    lines: dict[str, str | None] = {}
    for name in (*_RATES, *_QUOTAS):
        limit = limits[name]
        rate = isinstance(limit, dict)
        lines[name] = None if limit is None else f"{limit['per_second']:g}:{limit['burst']}" if rate else str(limit)
    return lines


def _limit(text: str) -> tuple[str, Any]:
    """``NAME=VALUE`` of the command line."""
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


# --- keys ----------------------------------------------------------------------------------------------------


def _create_key(client: Client, parsed: Parsed) -> None:
    body: dict[str, Any] = {"name": parsed.name, "kind": parsed.kind, "role": parsed.role, "prefixes": parsed.prefix}
    if parsed.scope:
        body["scopes"] = parsed.scope
    if parsed.expires_in is not None:
        body["expires_in_seconds"] = parsed.expires_in
    _tell_new_key(parsed, client.call("POST", "keys", query={"account": parsed.account}, body=body))


def _rotate_key(client: Client, parsed: Parsed) -> None:
    query = {"account": parsed.account}
    made = client.call("POST", "keys", parsed.id, "rotate", query=query, body={"keep_seconds": parsed.keep})
    _tell_new_key(parsed, made)


def _tell_new_key(parsed: Parsed, made: dict[str, Any]) -> None:
    from holdfast.tables import facts, moment

    secret = "API key" if made["kind"] == "api" else "secret access key"
    named = {"id": made["id"], secret: made["secret"]}
    about = {
        "account": made["account"],
        "user": made["name"],
        "role": made["role"],
        "scopes": made["scopes"],
        "expires": moment(made["expires"]),
    }
    _tell(parsed, made, lambda: facts(named | about) + "\n\nKeep it now: the secret is not shown again.")


def _revoke_key(client: Client, parsed: Parsed) -> None:
    _confirm(parsed, f"Revoke key {parsed.id}?  It can never be used again.")
    revoked = client.call("DELETE", "keys", parsed.id, query={"account": parsed.account})
    _tell(parsed, revoked, lambda: f"Key {parsed.id} is revoked.")


def _list_keys(client: Client, parsed: Parsed) -> None:
    from holdfast.tables import moment, table

    listed = client.call("GET", "keys", query={"account": parsed.account})
    _tell(
        parsed,
        listed,
        lambda: table(
            ("ID", "KIND", "USER", "ROLE", "SCOPES", "PREFIXES", "STATE", "EXPIRES", "LAST USED"),
            [
                (
                    key["id"],
                    key["kind"],
                    key["name"],
                    key["role"],
                    key["scopes"],
                    key["prefixes"],
                    key["state"],
                    moment(key["expires"]),
                    moment(key["last_used"]),
                )
                for key in listed["keys"]
            ],
            nothing="There are no keys.",
        ),
    )


# --- queues --------------------------------------------------------------------------------------------------


def _list_queues(client: Client, parsed: Parsed) -> None:
    from holdfast.tables import table

    query = {"account": parsed.account, "prefix": parsed.prefix, "counters": "true"}
    queues = list(_pages(client, ("queues",), "queues", query))
    unknown = {"visible": None, "in_flight": None, "delayed": None, "stored_bytes": None}
    rows = [(queue["name"], *(queue["messages"] or unknown).values()) for queue in queues]
    _tell(
        parsed,
        {"queues": queues},
        lambda: table(("QUEUE", "VISIBLE", "IN FLIGHT", "DELAYED", "BYTES"), rows, nothing="There are no queues."),
    )


def _show_queue(client: Client, parsed: Parsed) -> None:
    from holdfast.tables import facts, moment, table

    queue = client.call("GET", "queues", parsed.name, query={"account": parsed.account})

    def told() -> str:
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

    _tell(parsed, queue, told)


def _peek_queue(client: Client, parsed: Parsed) -> None:
    from holdfast.tables import moment, table

    query = {"account": parsed.account, "limit": parsed.max}
    peeked = client.call("GET", "queues", parsed.name, "peek", query=query)
    _tell(
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


def _purge_queue(client: Client, parsed: Parsed) -> None:
    _confirm(parsed, f"Delete all messages of queue {parsed.name}?  They cannot be had back.")
    client.call("POST", "queues", parsed.name, "purge", query={"account": parsed.account})
    _tell(parsed, {"purged": parsed.name}, lambda: f"Queue {parsed.name} is purged.")


def _move_queue(client: Client, parsed: Parsed) -> None:
    body = {"destination": parsed.to, "rate_per_second": parsed.rate}
    started = client.call("POST", "queues", parsed.name, "move", query={"account": parsed.account}, body=body)
    where = f"to {parsed.to}" if parsed.to else "back to where they came from"
    told = f"The messages of {parsed.name} are being moved {where}; holdfast queue show {parsed.name} tells how far."
    _tell(parsed, started, lambda: told)


def _delete_queue(client: Client, parsed: Parsed) -> None:
    _confirm(parsed, f"Delete queue {parsed.name} with all its messages?  They cannot be had back.")
    client.call("DELETE", "queues", parsed.name, query={"account": parsed.account})
    _tell(parsed, {"deleted": parsed.name}, lambda: f"Queue {parsed.name} is deleted.")


# --- what they have in common --------------------------------------------------------------------------------


def _pages(client: Client, path: tuple[str, ...], member: str, query: dict[str, Any]) -> Iterator[Any]:
    after: str | None = None
    while True:
        page = client.call("GET", *path, query={**query, "after": after, "limit": _PAGE})
        yield from page[member]
        after = page["next"]
        if after is None:
            return


def _tell(parsed: Parsed, document: Any, text: Callable[[], str]) -> None:
    print(json.dumps(document, indent=2) if parsed.json else text())


def _confirm(parsed: Parsed, question: str, word: str = "yes") -> None:
    """Raises :class:`CommandFailed` unless somebody says yes: with the ``word``, or by ``--yes``."""
    from holdfast.client import USAGE, CommandFailed
    from holdfast.tables import shown

    if parsed.yes:
        return
    if not sys.stdin.isatty():
        raise CommandFailed("this cannot be undone, and there is nobody to ask: add --yes", USAGE)
    print(f"{shown(question)}  Type {word} to go on: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != word:
        raise CommandFailed("nothing was done")


def _created(tenant: dict[str, Any]) -> str | None:
    from holdfast.tables import moment

    return moment(tenant["created"] or None)


def _duration(text: str) -> int:
    match = _DURATION.match(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: seconds, or such as 90s, 15m, 12h, 30d")
    return int(match[1]) * _UNITS[match[2]]


def _peeked(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= _PEEK_MOST:
        raise argparse.ArgumentTypeError(f"a number from 1 to {_PEEK_MOST}, not {text!r}")
    return int(text)


# --- parsers -------------------------------------------------------------------------------------------------


class Group:
    """A word of the command line with commands under it, such as ``queue``."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        self, name: str, action: Action, about: str, *arguments: str, asks: bool = False
    ) -> argparse.ArgumentParser:
        """A command with these positional arguments, and the options that all have."""
        parser = self.commands.add_parser(
            name,
            help=about,
            description=about[0].upper() + about[1:] + ".",
            epilog=_SIGNING_IN + EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for argument in arguments:
            parser.add_argument(argument, metavar=argument.upper())
        parser.add_argument("--json", action="store_true", help="print JSON instead of text for people")
        if asks:
            parser.add_argument("--yes", action="store_true", help="do not ask: this cannot be undone")
        service = parser.add_argument_group("which service, and as whom")
        service.add_argument(
            "--endpoint", metavar="URL", help="default: HOLDFAST_ENDPOINT, then that of --data, then port 9324 here"
        )
        service.add_argument("--api-key-file", metavar="FILE", type=Path, help="file that holds an API key")
        service.add_argument("--data", metavar="DIR", type=Path, help="data folder of the service on this machine")
        service.add_argument("--config", metavar="FILE", type=Path, help="with --data: the service's TOML file")
        service.add_argument("--ca-file", metavar="FILE", type=Path, help="certificates (PEM) to trust instead")
        parser.set_defaults(act=action)
        return parser


def _account(*parsers: argparse.ArgumentParser) -> None:
    for parser in parsers:
        parser.add_argument("--account", metavar="ACCOUNT", help="another account than that of the key (operators)")


def add_tenant_commands(parser: argparse.ArgumentParser) -> None:
    group = Group(parser)
    create = group.add("create", _create_tenant, "make a tenant; it has no keys yet", "name")
    create.add_argument("--account", metavar="ACCOUNT", help="12 digits; without it a free one is chosen")
    group.add("list", _list_tenants, "list all tenants, deleted ones too")
    group.add("show", _show_tenant, "show a tenant", "account")
    group.add("suspend", _suspend_tenant, "refuse all calls of a tenant until it is resumed", "account")
    group.add("resume", _resume_tenant, "let a suspended tenant in again", "account")
    group.add("delete", _delete_tenant, "delete a tenant with its keys, queues and messages", "account", asks=True)


def add_key_commands(group: Group) -> None:
    create = group.add("create", _create_key, "make a key; its secret is shown once", "name")
    create.add_argument("--kind", choices=("access", "api"), default="access", help="access: signs; api: bearer key")
    create.add_argument("--role", choices=("operator", "admin", "user"), default="user")
    create.add_argument("--scope", choices=("send", "receive", "manage"), action="append", help="repeat; default: all")
    create.add_argument(
        "--prefix", metavar="TEXT", action="append", default=[], help="repeat; of queue names; default: all queues"
    )
    create.add_argument("--expires-in", metavar="TIME", type=_duration, help="such as 12h or 30d; default: never")
    rotate = group.add("rotate", _rotate_key, "make a key like another one, which then ends", "id")
    rotate.add_argument(
        "--keep", metavar="TIME", type=_duration, default=86_400, help="how long the old key stays good (default: 1d)"
    )
    revoke = group.add("revoke", _revoke_key, "refuse a key from now on", "id", asks=True)
    listing = group.add("list", _list_keys, "list keys, revoked ones too")
    _account(create, rotate, revoke, listing)


def add_queue_commands(parser: argparse.ArgumentParser) -> None:
    group = Group(parser)
    listing = group.add("list", _list_queues, "list queues with their messages counted")
    listing.add_argument("--prefix", metavar="TEXT", help="only names that begin so")
    show = group.add("show", _show_queue, "show a queue's attributes, tags, counters and move tasks", "name")
    peek = group.add("peek", _peek_queue, "look at the first messages without receiving them", "name")
    peek.add_argument("--max", metavar="N", type=_peeked, default=10, help="messages at most, up to 100 (default: 10)")
    purge = group.add("purge", _purge_queue, "delete all messages of a queue", "name", asks=True)
    move = group.add("move", _move_queue, "move the messages of a dead-letter queue back, or elsewhere", "name")
    move.add_argument("--to", metavar="NAME", help="queue of the same account; default: back to where each was")
    move.add_argument("--rate", metavar="N", type=int, help="messages a second; default: as fast as it goes")
    delete = group.add("delete", _delete_queue, "delete a queue with all its messages", "name", asks=True)
    _account(listing, show, peek, purge, move, delete)


def add_limits_commands(parser: argparse.ArgumentParser) -> None:
    group = Group(parser)
    group.add("show", _show_limits, "show what a tenant may do at most", "account")
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
    """Add all of them to the command line; ``key`` has other commands already."""
    groups: Sequence[tuple[str, str, Callable[[argparse.ArgumentParser], None]]] = (
        ("tenant", "create, suspend and delete tenants (operators)", add_tenant_commands),
        ("queue", "look at queues, purge, move and delete them", add_queue_commands),
        ("limits", "what a tenant may do at most (operators)", add_limits_commands),
    )
    for name, about, add in groups:
        add(commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + "."))
    add_key_commands(key)
