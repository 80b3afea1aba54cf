"""Runs a module of this project as root in namespaces of its own, like a machine within the machine.

It has its own mounts, its own network (initially only a loopback) and its own process ids.  Its mounts,
interfaces, rules and processes are gone when it ends, however it ends, or when the process that called
:func:`run_apart` is gone.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Final

from helm.trials.programs import ROOT
from holdfast.process.parent_death import die_with_parent
from tests.servers.waiting import wait_until

CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")
GROUP: Final = "HOLDFAST_TRIAL_GROUP"
"""Environment variable with the name of control groups that the module may create, because they have no
namespace here."""
END_SECONDS_MAX: Final = 30.0


def run_apart(module: str, *arguments: str) -> int:
    """Run ``python -m MODULE`` with a temporary folder that is removed afterwards; returns its exit code."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-node-"))
    process = subprocess.Popen(
        [
            *("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"),
            *(sys.executable, "-m", __name__, module, *arguments),
        ],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder), GROUP: folder.name},
        preexec_fn=die_with_parent,
    )
    try:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                pass  # the module got the signal, too, and is about to end
    finally:
        process.kill()  # no effect if it has ended
        process.wait()
        for top in {*CONTROL_GROUPS.glob(f"*/{folder.name}"), *CONTROL_GROUPS.glob(folder.name)}:
            wait_until(partial(_remove_group, top), f"{top} is empty", END_SECONDS_MAX)
        shutil.rmtree(folder, ignore_errors=True)


def _remove_group(top: Path) -> bool:
    """Remove a control group with all below it; False while a process is in it."""
    for folder, _, _ in os.walk(top, topdown=False):
        try:
            os.rmdir(folder)
        except OSError:
            return False
    return True


def main() -> int:
    """Act as the first process: run the module, and reap orphaned processes."""
    child = subprocess.Popen([sys.executable, "-m", *sys.argv[1:]])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # left to the child
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            return abs(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    sys.exit(main())
