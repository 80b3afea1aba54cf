"""Commands that administer a running service: ``tenant`` and ``limits``, and those of other files together.

Each makes one or a few calls of the REST interface (:mod:`holdfast.commandline.client`), which authorizes them.
Actions that cannot be undone need a confirmation, or ``--yes``.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.commandline.base import Group, Parsed, confirm, pages, print_result

if TYPE_CHECKING:
    from holdfast.commandline.client import RestClient

_RATES = ("calls", "send", "receive", "manage", "each_queue")
_QUOTAS = ("queues", "topics", "topic_partitions", "keys", "stored_bytes", "connections", "long_polls")


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
    if parsed.use:
        used = client.call("GET", "tenants", parsed.account, "limits", "use")
        print_result(parsed, used, lambda: _use_table(used["limits"]))
        return
    _print_limits(parsed, client.call("GET", "tenants", parsed.account, "limits"))


def _set_limits(client: RestClient, parsed: Parsed) -> None:
    changes = dict(parsed.limits)
    _print_limits(parsed, client.call("PATCH", "tenants", parsed.account, "limits", body=changes))


def _print_limits(parsed: Parsed, limits: dict[str, Any]) -> None:
    from holdfast.commandline.text_tables import facts

    print_result(parsed, limits, lambda: facts(_limit_lines(limits)))


def _use_table(limits: list[dict[str, Any]]) -> str:
    from holdfast.commandline.text_tables import table

    rows = [
        (
            one["name"],
            _number(one["used"]),
            _number(one["limit"]),
            _number(one["per_second"]),
            None if one["share"] is None else f"{one['share']:.1%}",
            "this process" if one["local"] else "service",
        )
        for one in limits
    ]
    headings = ("LIMIT", "USED", "OF", "A SECOND", "SHARE", "COUNTED BY")
    return table(headings, rows, nothing="", right=(1, 2, 3, 4))


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.15g}"


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


def _created(tenant: dict[str, Any]) -> str | None:
    from holdfast.commandline.text_tables import moment

    return moment(tenant["created"] or None)


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


def add_limits_commands(parser: argparse.ArgumentParser) -> None:
    group = Group(parser)
    show = group.add("show", _show_limits, "show the limits of a tenant, or how far they are used", "account")
    show.add_argument("--use", action="store_true", help="how far they are used now")
    change = group.add("set", _set_limits, "change limits of a tenant; the others stay", "account")
    change.add_argument(
        "limits",
        metavar="NAME=VALUE",
        nargs="+",
        type=_limit,
        help=f"{', '.join(_RATES)}: calls a second and burst, such as 50:200; {', '.join(_QUOTAS)}: a number; "
        "none: no limit",
    )


def add_commands(commands: Any) -> None:
    """Add all of them to the command line."""
    for name, about in (
        ("tenant", "create, suspend and delete tenants (operators)"),
        ("queue", "create, show, change, watch, purge, move and delete queues"),
        ("message", "send and receive messages; look at them without receiving them"),
        ("topic", "create topics, publish to them, and subscribe to them"),
        ("stream", "create, read and write streams; positions of consumer groups"),
        ("alarm", "alarms on queues and topics, which call a webhook"),
        ("limits", "limits and quotas of tenants (operators)"),
        ("audit", "list administrative acts and refused sign-ins"),
        ("role", "create, list and delete roles, which sessions assume"),
        ("token", "create short-lived tokens with an API key"),
        ("cluster", "show backend clusters and nodes; drain, retire and split (operators)"),
        ("usage", "show usage by day, queue, tag or action"),
        ("costs", "show costs of a month by queue, and a forecast of the bill"),
        ("availability", "availability of the service to a tenant in a month"),
        ("invoice", "list, show, save and close invoices"),
        ("export", "write a queue with its messages as JSON lines"),
        ("import", "import queues from files, or from another SQS service"),
    ):
        parser = commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")
        parser.defer(partial(_add_arguments, name))


def _add_arguments(command: str, parser: argparse.ArgumentParser) -> None:
    match command:  # the modules of the other commands are not imported
        case "tenant":
            add = add_tenant_commands
        case "limits":
            add = add_limits_commands
        case "queue":
            from holdfast.commands.queues.queues import add_queue_commands as add
        case "message":
            from holdfast.commands.queues.messages import add_message_commands as add
        case "topic":
            from holdfast.commands.topics import add_topic_commands as add
        case "stream":
            from holdfast.commands.streams import add_stream_commands as add
        case "alarm":
            from holdfast.commands.alarms import add_alarm_commands as add
        case "audit":
            from holdfast.commands.audit import add_audit_commands as add
        case "role":
            from holdfast.commands.keys import add_role_commands as add
        case "token":
            from holdfast.commands.keys import add_token_commands as add
        case "cluster":
            from holdfast.commands.clusters import add_cluster_commands as add
        case "usage":
            from holdfast.commands.billing.usage import add_usage_command as add
        case "costs":
            from holdfast.commands.billing.costs import add_costs_command as add
        case "availability":
            from holdfast.commands.billing.availability import add_availability_command as add
        case "invoice":
            from holdfast.commands.billing.invoices import add_invoice_commands as add
        case "export":
            from holdfast.commands.migrate import add_export_command as add
        case "import":
            from holdfast.commands.migrate import add_import_commands as add
        case _:
            raise AssertionError(command)
    add(parser)
