"""Transcripts: commands with what they print, as in a terminal.

::

    == a case, with a name that is unique in its file
    $ sqs CreateQueue {"QueueName": "work"}
    $ holdfast queue list --prefix wo
    QUEUE  VISIBLE  IN FLIGHT  DELAYED  BYTES
    work   0        0          0        0
    $ no | holdfast queue delete work
    ! Delete ...?  Type yes to continue: holdfast: nothing was done
    [1]

``! `` begins a line of standard error, ``[1]`` is the exit code (0 if there is none), ``#`` begins a comment.  ``...``
stands for any text in a line; as a line of its own, for any lines.  ``{name}`` is a variable: given by the test, or
taken where it stands first in an output.  Blank lines do not count, and columns may be further apart or nearer.

``holdfast`` alone is authenticated by the data folder of the service, ``NAME=value ... holdfast`` by the environment,
``env - holdfast`` by nothing; ``TEXT | holdfast`` types the text at a terminal.  ``sqs`` makes a call with an SDK, and
prints the bodies of messages, the attributes and the tags that it received; ``count QUEUE`` prints how many messages
there are, in any state.  Where there are two services, ``there`` and ``here`` say at which of them a command runs.
"""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import pytest

from holdfast.runtime.data_folder import FolderLock, FolderUnusable
from tests.holdfast.command import CommandResult, holdfast, plainly, process
from tests.holdfast.queues import STATES, count, url_of
from tests.servers.server import Server

VARIABLE = re.compile(r"\{(\w+)\}")
ASSIGNMENT = re.compile(r"\w+=")


@dataclass
class TranscriptStep:
    """A command with its expected outputs and exit code."""

    command: str
    out: list[str] = field(default_factory=list)
    err: list[str] = field(default_factory=list)
    code: int = 0


@dataclass
class Transcript:
    """A case of a file."""

    name: str
    steps: list[TranscriptStep] = field(default_factory=list)


class TranscriptShell(Protocol):
    """A world in which transcripts run."""

    def run(self, command: str) -> CommandResult:
        """Run the command of a step, without variables."""


def load(path: Path) -> list[Transcript]:
    """Load the cases of a file."""
    cases: list[Transcript] = []
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("== "):
            cases.append(Transcript(line.removeprefix("== ")))
        elif line.startswith("$ "):
            cases[-1].steps.append(TranscriptStep(line.removeprefix("$ ")))
        elif line.startswith("! "):
            cases[-1].steps[-1].err.append(line.removeprefix("! "))
        elif code := re.fullmatch(r"\[(\d+)\]", line):
            cases[-1].steps[-1].code = int(code[1])
        elif line and not line.startswith("#"):
            cases[-1].steps[-1].out.append(line)
    names = [case.name for case in cases]
    assert len(set(names)) == len(names), f"{path.name}: two cases have one name"
    return cases


def cases_of(test_file: str) -> pytest.MarkDecorator:
    """Parametrize a test with the cases of the transcript beside its file."""
    path = Path(test_file)
    cases = load(path.with_name(path.stem.removeprefix("test_") + ".transcript"))
    return pytest.mark.parametrize("transcript", cases, ids=[case.name.replace(" ", "-") for case in cases])


def replay(transcript: Transcript, shell: TranscriptShell, **variables: str) -> None:
    """Run the commands of a case one by one; AssertionError at the first that prints something else."""
    for step in transcript.steps:
        command = _substitute(step.command, variables)
        done = shell.run(command)
        for expected, printed in ((step.out, done.out), (step.err, done.err)):
            lines = "".join(f"{line}\n" for line in printed.splitlines() if line)
            matched = re.fullmatch(_pattern(expected, variables), lines)
            assert matched, f"$ {command}\n{printed}\nexpected:\n" + "\n".join(expected)
            variables |= matched.groupdict()
        assert done.code == step.code, f"$ {command}\n{done.out}{done.err}[{done.code}]"


def _substitute(text: str, variables: dict[str, str]) -> str:
    return VARIABLE.sub(lambda name: variables.get(name[1], name[0]), text)


def _pattern(lines: list[str], variables: dict[str, str]) -> str:
    """Return the pattern of an output, in which every line ends with a line break."""
    known = dict(variables)
    return "".join("(?:.*\n)*" if line == "..." else f"{_of_line(line, known)} *\n" for line in lines)


def _of_line(line: str, known: dict[str, str]) -> str:
    parts = []
    for part in re.split(r"(\{\w+\}|\.\.\.| {2,})", line.rstrip()):
        if part == "...":
            parts.append(".*")
        elif part.startswith("  "):
            parts.append(" +")
        elif (name := VARIABLE.fullmatch(part)) and name[1] not in known:
            known[name[1]] = ""
            parts.append(rf"(?P<{name[1]}>[^\s\",]+)")
        elif name:
            parts.append(re.escape(known[name[1]]) or f"(?P={name[1]})")
        else:
            parts.append(re.escape(part))
    return "".join(parts)


def _parsed(command: str) -> tuple[dict[str, str], list[str]]:
    """Split a command into its variables and its words."""
    words = shlex.split(command)
    environment = {}
    while ASSIGNMENT.match(words[0]):
        name, _, environment[name] = words.pop(0).partition("=")
    return environment, words


class SqsShell:
    """Calls of a server of SQS's protocol."""

    def __init__(self, client: Callable[[], Any]) -> None:
        self._client = client

    def run(self, command: str) -> CommandResult:
        program, name, *members = command.split(" ", 2)
        if program == "count":
            return CommandResult(0, str(count(self._client(), name, *STATES)), "")
        assert program == "sqs", command
        given: dict[str, Any] = json.loads(members[0])
        if "QueueUrl" in given:
            given["QueueUrl"] = url_of(self._client(), given["QueueUrl"])
        answer = self._client()._make_api_call(name, given)
        found = [one["Body"] for one in answer.get("Messages", ())]
        found += [
            f"{key}  {value}" for part in ("Attributes", "Tags") for key, value in sorted(answer.get(part, {}).items())
        ]
        return CommandResult(0, "".join(f"{line}\n" for line in found), "")


class ServiceShell:
    """Commands against a running service; all of them have the environment."""

    def __init__(self, server: Server, environment: Mapping[str, str] | None = None) -> None:
        self._server = server
        self._environment = environment or {}

    def run(self, command: str) -> CommandResult:
        if command.startswith(("sqs ", "count ")):
            return SqsShell(self._server.client).run(command)
        typed, piped, rest = command.rpartition(" | ")
        environment, words = _parsed(rest)
        unauthenticated = words[:2] == ["env", "-"]
        program, *arguments = words[2 * unauthenticated :]
        assert program == "holdfast", command
        if piped:
            return process(self._server, *arguments, typed=f"{typed}\n")
        data = not environment and not unauthenticated
        return holdfast(self._server, *arguments, data=data, environment={**self._environment, **environment})


class FolderShell:
    """Commands in this process, with the environment and the working directory of the test.

    ``lock FOLDER`` locks a data folder as a service does, until ``unlock``.  Other programs are run by a shell.
    """

    def __init__(self) -> None:
        self._lock: FolderLock

    def run(self, command: str) -> CommandResult:
        environment, (program, *arguments) = _parsed(command)
        match program, *arguments:
            case "holdfast", *_:
                with mock.patch.dict(os.environ, environment):
                    return plainly(*arguments)
            case "lock", folder:
                try:
                    self._lock = FolderLock(Path(folder))
                except FolderUnusable as error:
                    return CommandResult(1, "", str(error))
            case ["unlock"]:
                self._lock.release()
            case _:
                done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
                return CommandResult(done.returncode, done.stdout, done.stderr)
        return CommandResult(0, "", "")


class TwoShells:
    """Commands at a source and at a target; what names neither is run by a shell."""

    def __init__(self, there: TranscriptShell, here: TranscriptShell) -> None:
        self._shells = {"there": there, "here": here}

    def run(self, command: str) -> CommandResult:
        where, _, rest = command.partition(" ")
        return self._shells[where].run(rest) if where in self._shells else FolderShell().run(command)
