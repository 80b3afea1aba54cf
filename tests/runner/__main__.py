"""``python -m tests.runner [--all] [--record] ...``: pytest with the other options.

Cases with the marker ``long`` run only with ``--all``.  ``--record`` writes the seconds of files and of long tests to
tracked files (:mod:`tests.runner.durations`), by which the files are ordered and long tests are marked.

Many tests run real servers, several at a time and on busy machines.  Up to :data:`REPEATED_MAX` failed tests run once
more, alone, as a diagnosis: what passes then has a race, or reveals one, and fails the run nevertheless, unless it is
one of :data:`~tests.runner.known_races.KNOWN_RACES`.  After an interrupted run, nothing is repeated.
"""

import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import pytest

from tests.runner import durations
from tests.runner.known_races import KNOWN_RACES

REPEATED_MAX: Final = 3
SHORT: Final = ("-m", "not long")


class _Outcome:
    """Result of a pytest run that has this as a plugin."""

    def __init__(self) -> None:
        self.failed: dict[str, None] = {}
        """Ids of the tests that failed, or whose fixtures did, in their order."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Seconds by file."""
        self.seconds_of_tests: defaultdict[str, float] = defaultdict(float)
        """Seconds by test, without the setup of a file's first one, which may have started a server for others too."""
        self.cut_short = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        if report.when != "setup" or file in self.seconds:
            self.seconds_of_tests[report.nodeid] += report.duration
        self.seconds[file] += report.duration
        if report.failed:
            self.failed[report.nodeid] = None

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.cut_short = bool(session.shouldfail or session.shouldstop)


def main(arguments: Sequence[str], known_races: Mapping[str, str] = KNOWN_RACES) -> int:
    """Return pytest's exit code: 0 also if only known races failed, and passed alone."""
    options = [argument for argument in arguments if argument not in ("--all", "--record")]
    outcome = _Outcome()
    code = int(pytest.main([*(() if "--all" in arguments else SHORT), *options], plugins=[outcome]))
    if "--record" in arguments and not outcome.cut_short:
        durations.write(outcome.seconds)
        durations.write_long_tests(outcome.seconds_of_tests)
    failed = list(outcome.failed)
    if code != pytest.ExitCode.TESTS_FAILED or outcome.cut_short or len(failed) > REPEATED_MAX:
        return code
    print(f"\n{len(failed)} failed among others: once more, alone", flush=True)
    alone = subprocess.run([sys.executable, "-m", "pytest", *failed], check=False).returncode
    if alone != 0:
        return alone
    print("\nPassed alone, but not among others, which is a race in the test or in what it tests:")
    for test in failed:
        print(f"  {test}{': known, ' + known_races[test] if test in known_races else ''}")
    return 0 if known_races.keys() >= outcome.failed.keys() else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
