"""``holdfast alarm``: alarms of a tenant on its queues and topics."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from holdfast.commandline.base import Group, Parsed, account_option, print_result

if TYPE_CHECKING:
    from holdfast.commandline.client import RestClient

_COMPARISONS: Final = {
    "above": ("GreaterThanThreshold", ">"),
    "at-least": ("GreaterThanOrEqualToThreshold", ">="),
    "below": ("LessThanThreshold", "<"),
    "at-most": ("LessThanOrEqualToThreshold", "<="),
}
_SIGNS: Final = dict(_COMPARISONS.values())


def _create(client: RestClient, parsed: Parsed) -> None:
    body = {
        "queue": parsed.queue,
        "topic": parsed.topic,
        "metric": parsed.metric
        or ("NumberOfNotificationsFailed" if parsed.topic else "ApproximateNumberOfMessagesVisible"),
        "comparison": parsed.threshold[0],
        "threshold": parsed.threshold[1],
        "minutes": parsed.minutes,
        "webhook": parsed.webhook,
    }
    made = client.call("PUT", "alarms", parsed.name, query={"account": parsed.account}, body=body)

    def lines() -> str:
        secret = "The secret signs the calls of the webhook; it is not shown again."
        return f"{_facts(made)}\nsecret: {made['secret']}\n\n{secret}"

    print_result(parsed, made, lines)


def _list(client: RestClient, parsed: Parsed) -> None:
    from holdfast.commandline.text_tables import moment, table

    found = client.call(
        "GET", "alarms", query={"account": parsed.account, "queue": parsed.queue, "topic": parsed.topic}
    )
    rows = [
        (one["name"], one["state"], moment(one["since"]), _watched(one), _condition(one), one["webhook_host"])
        for one in found["alarms"]
    ]
    print_result(
        parsed,
        found,
        lambda: table(("ALARM", "STATE", "SINCE", "OF", "RINGS", "WEBHOOK"), rows, nothing="There are no alarms."),
    )


def _show(client: RestClient, parsed: Parsed) -> None:
    alarm = client.call("GET", "alarms", parsed.name, query={"account": parsed.account})
    print_result(parsed, alarm, lambda: _facts(alarm))


def _delete(client: RestClient, parsed: Parsed) -> None:
    client.call("DELETE", "alarms", parsed.name, query={"account": parsed.account})
    print_result(parsed, {"deleted": parsed.name}, lambda: f"Alarm {parsed.name} is deleted.")


def _test(client: RestClient, parsed: Parsed) -> None:
    from holdfast.commandline.client import CommandFailed

    tested = client.call("POST", "alarms", parsed.name, "test", query={"account": parsed.account})
    if not tested["delivered"]:
        raise CommandFailed(tested["detail"])
    print_result(parsed, tested, lambda: str(tested["detail"]))


def _watched(alarm: dict[str, Any]) -> str:
    return f"topic {alarm['topic']}" if alarm["topic"] else str(alarm["queue"])


def _condition(alarm: dict[str, Any]) -> str:
    return f"{alarm['metric']} {_SIGNS[alarm['comparison']]} {alarm['threshold']:.15g} for {alarm['minutes']} min"


def _facts(alarm: dict[str, Any]) -> str:
    from holdfast.commandline.text_tables import facts, moment

    return facts(
        {
            "alarm": alarm["name"],
            "queue": alarm["queue"],
            "topic": alarm["topic"],
            "rings": _condition(alarm),
            "webhook": alarm["webhook_host"],
            "state": alarm["state"],
            "since": moment(alarm["since"]),
            "value": None if alarm["value"] is None else f"{alarm['value']:.15g}",
            "delivered_at": moment(alarm["delivered_at"]),
            "waiting": alarm["waiting"] or None,
            "trouble": alarm["trouble"],
            "lost": alarm["lost"] or None,
        }
    )


class _Threshold(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Parsed, values: Any, option_string: str | None = None
    ) -> None:
        comparison, _ = _COMPARISONS[str(option_string).removeprefix("--")]
        namespace.threshold = comparison, values


def add_alarm_commands(parser: argparse.ArgumentParser) -> None:
    group = Group(parser)
    create = group.add("create", _create, "create an alarm on a queue or topic, replacing one of the same name", "name")
    watched = create.add_mutually_exclusive_group(required=True)
    watched.add_argument("--queue", metavar="NAME", help="the queue")
    watched.add_argument("--topic", metavar="NAME", help="the topic")
    create.add_argument(
        "--metric",
        metavar="METRIC",
        help="a name in the metrics of queues or topics (docs/queue-metrics.md); default: "
        "ApproximateNumberOfMessagesVisible, and of topics NumberOfNotificationsFailed",
    )
    threshold = create.add_mutually_exclusive_group(required=True)
    for name, (_, sign) in _COMPARISONS.items():
        threshold.add_argument(
            f"--{name}",
            metavar="N",
            type=float,
            action=_Threshold,
            dest="threshold",
            help=f"fire when the metric is {sign} N; for a counter, its increase in a minute",
        )
    create.add_argument("--minutes", metavar="N", type=int, default=1, help="duration of the condition (default: 1)")
    create.add_argument("--webhook", metavar="URL", required=True, help="URL to POST each change of state to")
    listing = group.add("list", _list, "list alarms with their states")
    listing.add_argument("--queue", metavar="NAME", help="only alarms on this queue")
    listing.add_argument("--topic", metavar="NAME", help="only alarms on this topic")
    show = group.add("show", _show, "show an alarm, and the delivery to its webhook", "name")
    delete = group.add("delete", _delete, "delete an alarm", "name")
    test = group.add("test", _test, "call the webhook once, as if the alarm fired", "name")
    account_option(create, listing, show, delete, test)
