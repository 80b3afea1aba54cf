"""``holdfast doctor``: report problems in words, with advice."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from holdfast.settings import Settings, SettingsError, is_distributed

if TYPE_CHECKING:
    from holdfast.doctor.findings import Finding

WARNED: Final = 3
WRONG: Final = 4
_EXIT_CODES: Final = f"""exit codes:
  0  nothing is wrong, or everything was repaired
  2  wrong arguments or settings
  {WARNED}  there are warnings
  {WRONG}  something is wrong
"""
_HEADS: Final = {"wrong": "WRONG", "warning": "WARNING", "note": "NOTE"}


def _doctor(parsed: argparse.Namespace, settings: Settings) -> int:
    if parsed.mend and not parsed.yes and not sys.stdin.isatty():
        raise SettingsError("--mend asks before it changes anything, and standard input is no terminal: add --yes")
    logging.disable(logging.CRITICAL)  # what a start would log is printed by the command
    shown: list[dict[str, Any]] = []
    left: list[str] = []
    try:
        for found in _findings(settings):
            mended = _mended(parsed, found)
            shown.append(
                {
                    "level": found.level,
                    "what": found.what,
                    "todo": found.todo or None,
                    "can_be_mended": found.mend is not None,
                    "mended": mended,
                }
            )
            if not mended:
                left.append(found.level)
            if not parsed.json:
                _print_finding(found, mended)
    finally:
        logging.disable(logging.NOTSET)
    if parsed.json:
        print(json.dumps({"findings": shown}, indent=2))
    elif not {"wrong", "warning"} & set(left):
        print("Nothing is wrong.")
    return WRONG if "wrong" in left else WARNED if "warning" in left else 0


def _findings(settings: Settings) -> Iterator[Finding]:
    if is_distributed(settings):
        from holdfast.doctor import cluster

        return cluster.check(settings)
    from holdfast.doctor import folder

    return folder.check(settings)


def _print_finding(found: Finding, mended: bool) -> None:
    print(f"{_HEADS[found.level]}: {_sentence(found.what)}")
    if mended:
        print("    Mended.")
    elif found.todo:
        print(f"    {_sentence(found.todo[0].upper() + found.todo[1:])}")
    if found.mend is not None and not mended:
        print("    To repair it: holdfast doctor --mend.")


def _mended(parsed: argparse.Namespace, found: Finding) -> bool:
    from metadata_service.store import StoreError

    if found.mend is None or not parsed.mend:
        return False
    if not parsed.yes:
        print(f"{found.what}.\n{found.mend.question}  Type yes to do it: ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip() != "yes":
            return False
    try:
        found.mend.act()
    except (OSError, StoreError) as error:
        print(f"holdfast: it could not be repaired: {error}", file=sys.stderr)
        return False
    return True


def add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Examine a data folder, or with --cassandra a service on many machines, and report what is wrong and what to "
        "do.  Nothing is changed, unless --mend is given and confirmed.  While the service runs, the journal of its "
        "data folder is not examined."
    )
    parser.epilog = _EXIT_CODES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--mend", action="store_true", help="repair what can be repaired; asks for each")
    parser.add_argument("--yes", action="store_true", help="with --mend: do not ask")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text for people")
    parser.set_defaults(part=_doctor)


def _sentence(text: str) -> str:
    """Return the text with a full stop, unless it ends a sentence already."""
    return text if text.endswith((".", "?", "!")) else f"{text}."
