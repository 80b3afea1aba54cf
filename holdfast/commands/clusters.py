"""Commands for backend clusters: ``cluster``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from holdfast.commandline.base import Group, Parsed, account_option, confirm, print_result

if TYPE_CHECKING:
    from holdfast.commandline.client import RestClient

_DECISIONS_SHOWN = 10
_STATUS_SECONDS = 2.0
"""Timeout of the status; a running service answers sooner, whichever nodes are down."""


def _list_clusters(client: RestClient, parsed: Parsed) -> None:
    from holdfast.commandline.text_tables import table

    listed = client.call("GET", "clusters")
    print_result(
        parsed,
        listed,
        lambda: table(
            ("CLUSTER", "STATE", "WEIGHT", "USED", "REPORTED", "NODES"),
            [
                (one["name"], one["state"], f"{one['weight']:g}", _part(one["utilisation"]), _ago(one), one["nodes"])
                for one in listed["clusters"]
            ],
            nothing="There are no clusters.",
        ),
    )


def _status(client: RestClient, parsed: Parsed) -> None:
    from holdfast.commandline.text_tables import shown

    status = client.call("GET", "cluster", seconds=_STATUS_SECONDS)

    def show() -> str:
        parts = [text for one in status["clusters"] for text in (_heading(one), _nodes(one))]
        missed = "\n".join(shown(f"NOT ASKED: {one}.") for one in status["not_asked"])
        manager = "" if status["manager"] is None and missed else _manager(status["manager"])
        return "\n\n".join(filter(None, [missed, *(parts or ["There are no clusters."]), manager]))

    print_result(parsed, status, show)


def _heading(cluster: dict[str, Any]) -> str:
    from holdfast.commandline.text_tables import shown

    facts = [f"Cluster {cluster['name']} is {cluster['state']}"]
    if cluster["reported_seconds"] is None:
        facts.append("it has never reported")
    else:
        facts += [f"used to {_part(cluster['utilisation'])}", f"reported {_ago(cluster)} by {cluster['manager']}"]
        facts.append(f"{cluster['moving']} shards in migration, {cluster['unassigned']} without a live node")
    return shown("; ".join(facts) + ".")


def _nodes(cluster: dict[str, Any]) -> str:
    from holdfast.commandline.text_tables import table

    return table(
        ("NODE", "STATE", "RELEASE", "HEARTBEAT", "SHARDS", "CPU", "STORAGE", "ADDRESS"),
        [
            (
                node["name"],
                _state(node),
                node.get("release"),
                f"{node['silent_seconds']:g} s ago",
                node["shards"],
                _part(node["cpu"]),
                _part(node["storage"]),
                node["address"] or None,
            )
            for node in cluster["nodes"]
        ],
        nothing="It has no known nodes.",
    )


def _state(node: dict[str, Any]) -> str:
    from holdfast.commandline.text_tables import moment

    since = moment(node["since"])
    if node["state"] == "suspect" and since:
        return f"suspect since {since}"
    if node["state"] == "gone":
        owners = f" by {', '.join(node['taken_over_by'])}" if node["taken_over_by"] else ""
        return f"gone, taken over at {since}{owners}" if since else "gone"
    return str(node["state"])


def _process(one: dict[str, Any]) -> str:
    from holdfast.commandline.text_tables import moment

    if one["state"] == "gone":
        return f"gone, {one['taken_over_by']} took its place at {moment(one['since'])}"
    return f"suspect since {moment(one['reported_at'])}" if one["state"] == "suspect" else str(one["state"])


def _manager(manager: dict[str, Any] | None) -> str:
    from holdfast.commandline.text_tables import moment, shown, table

    if manager is None:
        return "There is no out-cluster manager: queues are not split or moved off a cluster automatically."
    who = f"Manager: {manager['name'] or 'none at the moment'}, last report at {moment(manager['reported_at'])}."
    pins = [f"{pin['queue']} ({pin['account']}): {pin['partitions']} partitions" for pin in manager["pins"]]
    lines = [who, *(["Set by an operator: " + "; ".join(pins) + "."] if pins else [])]
    processes = [(one["name"], _process(one), moment(one["reported_at"])) for one in manager["processes"]]
    listed = table(("MANAGER", "STATE", "HEARD"), processes, nothing="") if processes else ""
    decided = [(moment(one["time"]), one["text"]) for one in manager["decisions"][-_DECISIONS_SHOWN:]]
    decisions = table(("DECIDED", "WHAT"), decided, nothing="No decisions yet.")
    return "\n\n".join(filter(None, ["\n".join(map(shown, lines)), listed, decisions]))


def _drain(client: RestClient, parsed: Parsed) -> None:
    cluster = _cluster_of(client, parsed)
    shown = client.call("POST", "clusters", cluster, "nodes", parsed.node, "drain")
    print_result(
        parsed, shown, lambda: f"Node {parsed.node} hands over its shards; holdfast cluster status shows the progress."
    )


def _undrain(client: RestClient, parsed: Parsed) -> None:
    cluster = _cluster_of(client, parsed)
    shown = client.call("POST", "clusters", cluster, "nodes", parsed.node, "undrain")
    print_result(parsed, shown, lambda: f"Node {parsed.node} can get shards again.")


def _cluster_of(client: RestClient, parsed: Parsed) -> str:
    """Return the named cluster, or the only one with such a node."""
    from holdfast.commandline.client import NOT_FOUND, USAGE, CommandFailed

    if parsed.cluster is not None:
        return str(parsed.cluster)
    clusters = client.call("GET", "cluster")["clusters"]
    having = [one["name"] for one in clusters if any(node["name"] == parsed.node for node in one["nodes"])]
    if len(having) > 1:
        raise CommandFailed(f"there is a node {parsed.node} in {', '.join(having)}: name one with --cluster", USAGE)
    if not having:
        raise CommandFailed(f"no cluster reports a node {parsed.node}; for one that is down, add --cluster", NOT_FOUND)
    return str(having[0])


def _retire(client: RestClient, parsed: Parsed) -> None:
    name = parsed.name
    confirm(
        parsed,
        f"Retire cluster {name}?  All its queues move to other clusters.  holdfast cluster serve {name} stops "
        "this; queues that have moved stay where they are.",
        undo=f"holdfast cluster serve {name} stops this, but does not move queues back",
    )
    shown = client.call("POST", "clusters", name, "retire")
    print_result(
        parsed,
        shown,
        lambda: (
            f"Cluster {name} is being retired: its queues move to others; turn it off when holdfast cluster "
            "status reports it as retired."
        ),
    )


def _serve(client: RestClient, parsed: Parsed) -> None:
    shown = client.call("POST", "clusters", parsed.name, "serve")
    print_result(parsed, shown, lambda: f"Cluster {parsed.name} takes queues again.")


def _weigh(client: RestClient, parsed: Parsed) -> None:
    shown = client.call("PUT", "clusters", parsed.name, "weight", body={"weight": parsed.weight})
    print_result(parsed, shown, lambda: f"Cluster {parsed.name} has the weight {parsed.weight:g} for new queues.")


def _show_queue(client: RestClient, parsed: Parsed) -> None:
    shown = client.call("GET", "queues", parsed.name, "partitions", query={"account": parsed.account})
    print_result(parsed, shown, lambda: _partitions(shown))


def _split(client: RestClient, parsed: Parsed) -> None:
    body = {"partitions": parsed.partitions}
    query = {"account": parsed.account}
    shown = client.call("PUT", "queues", parsed.name, "partitions", query=query, body=body)
    how = "as many partitions as its rate needs" if parsed.partitions is None else f"{parsed.partitions} partitions"
    print_result(
        parsed,
        shown,
        lambda: f"Queue {parsed.name} is to have {how}; holdfast cluster queue {parsed.name} shows the progress.",
    )


def _partitions(shown: dict[str, Any]) -> str:
    from holdfast.commandline.text_tables import table

    rows = [(str(one["id"]), one["cluster"], one["state"], one["slot"]) for one in shown["partitions"]]
    text = table(("PARTITION", "CLUSTER", "STATE", "SLOT"), rows, nothing="It has no partitions.")
    return text if shown["pinned"] is None else f"{text}\n\nAn operator has fixed the number at {shown['pinned']}."


def _part(value: float | None) -> str | None:
    return None if value is None else f"{value:.0%}"


def _ago(cluster: dict[str, Any]) -> str:
    seconds = cluster["reported_seconds"]
    return "never" if seconds is None else f"{seconds:.0f} s ago"


def _count(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= 64:
        raise argparse.ArgumentTypeError(f"a number from 1 to 64, or auto, not {text!r}")
    return int(text)


def add_cluster_commands(parser: argparse.ArgumentParser) -> None:
    group = Group(parser)
    group.add("list", _list_clusters, "list the backend clusters")
    group.add("status", _status, "show the clusters with their nodes, and the manager's recent decisions")
    drain = group.add("drain", _drain, "move all shards off a node, until it is undrained", "node")
    undrain = group.add("undrain", _undrain, "let a node own shards again", "node")
    for one in (drain, undrain):
        one.add_argument("--cluster", metavar="NAME", help="cluster of the node; default: the one that has such a node")
    group.add("retire", _retire, "move the queues of a cluster to the others", "name", asks=True)
    group.add("serve", _serve, "stop retiring a cluster: let it take queues again", "name")
    weigh = group.add("weight", _weigh, "set a cluster's share of new queues", "name")
    weigh.add_argument("weight", metavar="WEIGHT", type=float, help="relative to other clusters; the default is 1")
    queue = group.add("queue", _show_queue, "show the partitions of a queue, and where they are", "name")
    split = group.add("split", _split, "set the number of partitions of a standard queue", "name")
    split.add_argument("partitions", metavar="N", type=_count, help="1 to 64, or auto: as its rate needs")
    account_option(queue, split)
