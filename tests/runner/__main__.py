"""``python -m tests.runner``: pytest with the same options; tests that failed run once more, alone.

Many tests run real servers, several at a time and on busy machines.  A test that fails then and passes alone has a
race, or reveals one: it is listed at the end, to be fixed, and does not block an unrelated change.  More than
:data:`MOST` failures are not by chance, and nothing runs again; nor does it after an interrupted run.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Final

import pytest

MOST: Final = 3


class _Outcome:
    """Result of a pytest run that has this as a plugin."""

    def __init__(self) -> None:
        self.failed: dict[str, None] = {}
        """Ids of the tests that failed, or whose fixtures did, in their order."""
        self.cut_short = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = None

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.cut_short = bool(session.shouldfail or session.shouldstop)


def main(options: Sequence[str]) -> int:
    """Return pytest's exit code: 0 also if all failed tests passed alone."""
    outcome = _Outcome()
    code = int(pytest.main(list(options), plugins=[outcome]))
    failed = list(outcome.failed)
    if code != pytest.ExitCode.TESTS_FAILED or outcome.cut_short or not 0 < len(failed) <= MOST:
        return code
    print(f"\n{len(failed)} failed among others: once more, alone", flush=True)
    code = subprocess.run([sys.executable, "-m", "pytest", *failed], check=False).returncode
    if code == 0:
        print("\nPassed alone, but not among others, which is a race in the test or in what it tests:")
        for test in failed:
            print(f"  {test}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
