"""Commands in the documentation exist."""

import re
import shlex
from pathlib import Path

import pytest

from holdfast.commands import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    *(
        "docs/backup.md",
        "docs/billing.md",
        "docs/console.md",
        "docs/moving.md",
        "docs/queue-metrics.md",
        "docs/sns-coverage.md",
        "docs/streams.md",
        "docs/upgrading.md",
    ),
    "README.md",
)


def commands() -> list[str]:
    found = []
    for page in PAGES:
        for block in re.findall(r"^```\w*\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL):
            found += [line for line in block.splitlines() if line.startswith("holdfast ")]
    return found


@pytest.mark.parametrize("line", commands())
def test_a_command_is_understood(line: str) -> None:
    _, *arguments = shlex.split(line.partition(" | ")[0], comments=True)  # its output may be piped to another program
    assert vars(main._parser().parse_args(arguments))


def test_there_are_commands() -> None:
    words = {line.split()[1] for line in commands()}
    assert {"usage", "invoice", "report"} <= words
