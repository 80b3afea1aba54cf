"""``check-policy`` of queues and topics: the decision of a policy on a call that is not made."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.commandline.base import Group, Parsed, print_result

if TYPE_CHECKING:
    from holdfast.commandline.client import RestClient


def add_policy_check(group: Group, kind: str, example: str) -> argparse.ArgumentParser:
    """Add the command for ``queue`` or ``topic``; ``example``: an action."""
    check = group.add(
        "check-policy",
        _check_of(f"{kind}s"),
        f"check if the {kind}'s policy permits a call, and by which statement",
        "name",
        "action",
    )
    check.add_argument(
        "--as",
        metavar="CALLER",
        dest="principal",
        help=f"account, ARN or name of a service that calls, say, {example}; default: an unsigned call",
    )
    check.add_argument(
        "--condition",
        metavar="KEY=VALUE",
        type=_condition,
        action="append",
        default=[],
        help="repeat; value of a condition key, such as aws:SourceArn",
    )
    check.add_argument("--policy-file", metavar="FILE", type=Path, help="try this policy instead; -: standard input")
    return check


def _check_of(collection: str) -> Callable[[RestClient, Parsed], None]:
    def check(client: RestClient, parsed: Parsed) -> None:
        question: dict[str, Any] = {"action": parsed.action, "conditions": dict(parsed.condition)}
        if parsed.principal is not None:
            question["principal"] = parsed.principal
        if parsed.policy_file is not None:
            question["policy"] = _read_policy(parsed.policy_file)
        path = (collection, parsed.name, "policy-check")
        answer = client.call("POST", *path, query={"account": parsed.account}, body=question)
        print_result(parsed, answer, lambda: _text(answer))

    return check


def _text(answer: dict[str, Any]) -> str:
    from holdfast.commandline.text_tables import shown

    decision = "Allowed" if answer["allowed"] else "Denied"
    statement = answer["statement"]
    if statement is None:
        by = "no statement decides"
    else:
        sid = "" if statement["sid"] is None else f" ({shown(statement['sid'])})"
        by = f"statement {statement['number']}{sid}, {statement['effect']}"
    return f"{decision}, {by}: {shown(answer['reason'])}"


def _read_policy(path: Path) -> str:
    """Read a file, or standard input for ``-``.  Raises :class:`CommandFailed`."""
    from holdfast.commandline.client import CommandFailed

    try:
        content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        return content.decode()
    except OSError as error:
        raise CommandFailed(f"the file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CommandFailed("a policy is JSON in UTF-8, and this is not UTF-8") from None


def _condition(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not like KEY=VALUE")
    return name, value
