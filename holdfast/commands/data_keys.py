"""``holdfast keyring list``, ``rotate-key`` and ``destroy``: named data keys of a tenant, by a running service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.commandline.base import Group, Parsed, account_option, confirm, print_result

if TYPE_CHECKING:
    from holdfast.commandline.client import RestClient


def _list(client: RestClient, parsed: Parsed) -> None:
    from holdfast.commandline.text_tables import moment, table

    found = client.call("GET", "data-keys", query={"account": parsed.account})
    rows = [
        (
            key["name"],
            key["state"],
            key["versions"],
            moment(key["created"]),
            moment(key["rotated"]),
            moment(key["destroyed"]),
        )
        for key in found["data_keys"]
    ]
    print_result(
        parsed,
        found,
        lambda: table(
            ("DATA KEY", "STATE", "VERSIONS", "CREATED", "ROTATED", "DESTROYED"),
            rows,
            nothing="There are no named data keys: the first message to a queue with a KmsMasterKeyId creates one.",
        ),
    )


def _rotate(client: RestClient, parsed: Parsed) -> None:
    key = _call(client, parsed, "rotate", {"name": parsed.name})
    print_result(parsed, key, lambda: f"Version {key['versions']} of the data key {key['name']} encrypts from now on.")


def _destroy(client: RestClient, parsed: Parsed) -> None:
    question = f"Destroy the data key {parsed.name}?  The messages that it has encrypted can never be read again."
    confirm(parsed, question, parsed.name)
    key = _call(client, parsed, "destroy", {"name": parsed.name, "confirm": parsed.name})
    print_result(parsed, key, lambda: f"The data key {key['name']} is destroyed.")


def _call(client: RestClient, parsed: Parsed, act: str, body: dict[str, Any]) -> dict[str, Any]:
    called: dict[str, Any] = client.call("POST", "data-keys", act, query={"account": parsed.account}, body=body)
    return called


def add_data_key_commands(group: Group) -> None:
    """Add the commands to ``holdfast keyring``."""
    listing = group.add("list", _list, "list the named data keys of a tenant (KmsMasterKeyId of queues)")
    rotate = group.add(
        "rotate-key", _rotate, "create a new version of a named data key, which encrypts new messages", "name"
    )
    destroy = group.add(
        "destroy", _destroy, "destroy a named data key, which makes its messages unreadable", "name", asks=True
    )
    account_option(listing, rotate, destroy)
