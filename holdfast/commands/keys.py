"""Commands for credentials: ``key``, ``role`` and ``token``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from holdfast.commandline.base import Group, Parsed, account_option, confirm, duration, print_result, scope_options

if TYPE_CHECKING:
    from holdfast.commandline.client import RestClient

# --- keys ----------------------------------------------------------------------------------------------------


def _create_key(client: RestClient, parsed: Parsed) -> None:
    body: dict[str, Any] = {"name": parsed.name, "kind": parsed.kind, "role": parsed.role, "prefixes": parsed.prefix}
    if parsed.scope:
        body["scopes"] = parsed.scope
    if parsed.expires_in is not None:
        body["expires_in_seconds"] = parsed.expires_in
    _print_new_key(parsed, client.call("POST", "keys", query={"account": parsed.account}, body=body))


def _rotate_key(client: RestClient, parsed: Parsed) -> None:
    query = {"account": parsed.account}
    made = client.call("POST", "keys", parsed.id, "rotate", query=query, body={"keep_seconds": parsed.keep})
    _print_new_key(parsed, made)


def _print_new_key(parsed: Parsed, made: dict[str, Any]) -> None:
    from holdfast.commandline.text_tables import facts, moment

    secret = "API key" if made["kind"] == "api" else "secret access key"
    named = {"id": made["id"], secret: made["secret"]}
    about = {
        "account": made["account"],
        "user": made["name"],
        "role": made["role"],
        "scopes": made["scopes"],
        "expires": moment(made["expires"]),
    }
    print_result(parsed, made, lambda: facts(named | about) + "\n\nKeep it now: the secret is not shown again.")


def _revoke_key(client: RestClient, parsed: Parsed) -> None:
    confirm(parsed, f"Revoke key {parsed.id}?  It can never be used again.")
    revoked = client.call("DELETE", "keys", parsed.id, query={"account": parsed.account})
    print_result(parsed, revoked, lambda: f"Key {parsed.id} is revoked.")


def _list_keys(client: RestClient, parsed: Parsed) -> None:
    from holdfast.commandline.text_tables import moment, table

    listed = client.call("GET", "keys", query={"account": parsed.account})
    print_result(
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


# --- roles and tokens ----------------------------------------------------------------------------------------


def _set_role(client: RestClient, parsed: Parsed) -> None:
    body: dict[str, Any] = {
        "prefixes": parsed.prefix,
        "trusted_accounts": parsed.trust_account,
        "trusted_subjects": parsed.trust_subject,
        "session_seconds_max": parsed.session_max,
    }
    if parsed.scope:
        body["scopes"] = parsed.scope
    role = client.call("PUT", "roles", parsed.name, query={"account": parsed.account}, body=body)

    def show() -> str:
        from holdfast.commandline.text_tables import facts

        return facts(
            {
                "arn": role["arn"],
                "scopes": role["scopes"],
                "prefixes": role["prefixes"],
                "trusted accounts": role["trusted_accounts"],
                "trusted subjects": role["trusted_subjects"],
                "session at most": f"{role['session_seconds_max']} s",
            }
        )

    print_result(parsed, role, show)


def _list_roles(client: RestClient, parsed: Parsed) -> None:
    from holdfast.commandline.text_tables import table

    listed = client.call("GET", "roles", query={"account": parsed.account})
    members = ("arn", "scopes", "prefixes", "trusted_accounts", "trusted_subjects", "session_seconds_max")
    print_result(
        parsed,
        listed,
        lambda: table(
            ("ROLE", "SCOPES", "PREFIXES", "TRUSTED ACCOUNTS", "TRUSTED SUBJECTS", "SESSION SECONDS"),
            [[role[member] for member in members] for role in listed["roles"]],
            nothing="There are no roles.",
        ),
    )


def _delete_role(client: RestClient, parsed: Parsed) -> None:
    confirm(parsed, f"Delete role {parsed.name}?  All its sessions end, even if a role of that name is created again.")
    client.call("DELETE", "roles", parsed.name, query={"account": parsed.account})
    print_result(parsed, {"deleted": parsed.name}, lambda: f"Role {parsed.name} is deleted.")


def _buy_token(client: RestClient, parsed: Parsed) -> None:
    from holdfast.commandline.text_tables import facts, moment

    body: dict[str, Any] = {"seconds": parsed.lasts, "prefixes": parsed.prefix}
    if parsed.scope:
        body["scopes"] = parsed.scope
    made = client.call("POST", "token", body=body)
    print_result(parsed, made, lambda: facts({"token": made["token"], "expires": moment(made["expires"])}))


# --- parsers -------------------------------------------------------------------------------------------------


def _show_caller(client: RestClient, parsed: Parsed) -> None:
    from holdfast.commandline.text_tables import facts, moment

    caller = client.call("GET", "caller")
    print_result(parsed, caller, lambda: facts({**caller, "expires": moment(caller["expires"])}))


def add_key_commands(group: Group) -> None:
    create = group.add("create", _create_key, "create a key; its secret is shown once", "name")
    create.add_argument("--kind", choices=("access", "api"), default="access", help="access: signs; api: bearer key")
    create.add_argument("--role", choices=("operator", "admin", "user"), default="user")
    scope_options(create)
    create.add_argument("--expires-in", metavar="TIME", type=duration, help="such as 12h or 30d; default: never")
    rotate = group.add("rotate", _rotate_key, "create a key like another one, which then expires", "id")
    rotate.add_argument(
        "--keep", metavar="TIME", type=duration, default=86_400, help="validity of the old key (default: 1d)"
    )
    revoke = group.add("revoke", _revoke_key, "revoke a key", "id", asks=True)
    listing = group.add("list", _list_keys, "list keys, including revoked ones")
    group.add("caller", _show_caller, "show the credential with which commands sign in, and its rights")
    account_option(create, rotate, revoke, listing)


def add_role_commands(parser: argparse.ArgumentParser) -> None:
    group = Group(parser)
    change = group.add("set", _set_role, "create or replace a role; omitted options get their defaults", "name")
    scope_options(change)
    change.add_argument(
        "--trust-account",
        metavar="ACCOUNT",
        action="append",
        default=[],
        help="repeat; account whose keys may also assume it",
    )
    change.add_argument(
        "--trust-subject",
        metavar="TEXT",
        action="append",
        default=[],
        help="repeat; subject of the trusted OIDC issuer whose tokens may assume it",
    )
    change.add_argument("--session-max", metavar="TIME", type=duration, default=3600, help="15m to 12h (default: 1h)")
    listing = group.add("list", _list_roles, "list roles")
    delete = group.add("delete", _delete_role, "delete a role and end its sessions", "name", asks=True)
    account_option(change, listing, delete)


def add_token_commands(parser: argparse.ArgumentParser) -> None:
    group = Group(parser)
    buy = group.add("buy", _buy_token, "create a token with the API key in use; it is shown once")
    scope_options(buy)
    buy.add_argument("--lasts", metavar="TIME", type=duration, default=3600, help="1m to 1h (default: 1h)")
