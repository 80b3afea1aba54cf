"""The AWS CLI as a new user uses it: start the service, paste the three lines that it prints, use every command."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from botocore import xform_name

from frontend.sns.protocol.model import SNS_ACTIONS
from tests.holdfast.command import CommandResult
from tests.holdfast.transcripts import Transcript, load, replay
from tests.runner.long import all_but
from tests.servers.server import Server, aws_client

COMMAND_SECONDS = 60
SQS_CASES, SNS_CASES = (load(Path(__file__).with_name(f"aws_cli_{service}.transcript")) for service in ("sqs", "sns"))
CASES = [("sqs", case) for case in SQS_CASES] + [("sns", case) for case in SNS_CASES]
SHORT = [("sqs", SQS_CASES[0]), ("sqs", SQS_CASES[-1]), ("sns", SNS_CASES[1]), ("sns", SNS_CASES[-1])]


class PastedLines:
    """A shell into which ``lines`` were pasted, in a home without any AWS configuration.

    ``aws`` is followed by a command of ``service``; ``sqs`` stands for ``aws sqs``.
    """

    def __init__(self, lines: list[str], home: Path, programs: Path, service: str) -> None:
        self._lines = [*lines, 'sqs() { aws sqs "$@"; }']
        self._service = service
        self._environment = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "HOME": str(home)}

    def run(self, command: str) -> CommandResult:
        script = "\n".join([*self._lines, command.replace("aws ", f"aws {self._service} ", 1)])
        done = subprocess.run(
            ["bash", "-c", script],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        return CommandResult(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def fresh_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Server at its first start, which creates its key itself."""
    with Server(tmp_path_factory.mktemp("first-start"), known_keys=False) as server:
        yield server


@pytest.fixture(scope="module")
def shell_of(
    fresh_server: Server, current_bin: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], PastedLines]:
    """Makes the shell for the commands of a service."""
    lines = re.findall(r"^\s*(export .*)$", fresh_server.log_text(), re.MULTILINE)
    assert len(lines) == 3, fresh_server.log_text()
    home = tmp_path_factory.mktemp("home")
    return lambda service: PastedLines(lines, home, current_bin, service)


@pytest.mark.parametrize(
    "case", all_but(SHORT, CASES), ids=[f"{service}-{case.name.replace(' ', '-')}" for service, case in CASES]
)
def test_transcript(shell_of: Callable[[str], PastedLines], case: tuple[str, Transcript]) -> None:
    service, transcript = case
    replay(transcript, shell_of(service))


def test_every_command_is_used() -> None:
    actions = aws_client("sqs", region_name="us-east-1").meta.service_model.operation_names
    assert used(SQS_CASES) == {xform_name(action, "-") for action in actions}
    assert used(SNS_CASES) >= {xform_name(action, "-") for action in SNS_ACTIONS}


def used(cases: list[Transcript]) -> set[str]:
    """Names of the commands of the transcripts' own service."""
    commands = [step.command.partition("aws ")[2] for case in cases for step in case.steps]
    return {command.split()[0] for command in commands if command}
