"""The AWS CLI as a new user uses it: start the service, paste the three lines that it prints, use every command."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from botocore import xform_name

from tests.holdfast.command import CommandResult
from tests.holdfast.transcripts import Transcript, load, replay
from tests.runner.long import all_but
from tests.servers.server import Server

COMMAND_SECONDS = 60
CASES = load(Path(__file__).with_name("aws_cli.transcript"))
SHORT = (CASES[0], CASES[-1])


class PastedLines:
    """A shell into which ``lines`` were pasted, in a home without any AWS configuration."""

    def __init__(self, lines: list[str], home: Path, programs: Path) -> None:
        self._lines = lines
        self._environment = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "HOME": str(home)}

    def run(self, command: str) -> CommandResult:
        script = "\n".join([*self._lines, command.replace("aws ", "aws sqs ", 1)])
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
def shell(fresh_server: Server, current_bin: Path, tmp_path_factory: pytest.TempPathFactory) -> PastedLines:
    lines = re.findall(r"^\s*(export .*)$", fresh_server.log_text(), re.MULTILINE)
    assert len(lines) == 3, fresh_server.log_text()
    return PastedLines(lines, tmp_path_factory.mktemp("home"), current_bin)


@pytest.mark.parametrize("transcript", all_but(SHORT, CASES), ids=[case.name.replace(" ", "-") for case in CASES])
def test_transcript(shell: PastedLines, transcript: Transcript) -> None:
    replay(transcript, shell)


def test_every_command_is_used() -> None:
    used = {step.command.partition("aws ")[2].split()[0] for case in CASES for step in case.steps}
    actions = boto3.session.Session().client("sqs", "us-east-1").meta.service_model.operation_names
    assert used == {xform_name(action, "-") for action in actions}
