"""Runs a module of this project as root in namespaces of its own, as a machine in the machine.

It has its own mounts, its own network (with nothing but a loopback to begin with) and its own process ids.  What it
mounts, which interfaces and rules it makes and whatever it starts is gone when it ends, however it ends, or when the
process that called :func:`run_apart` is gone.
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

from holdfast.parent import die_with_parent
from tests.kube.programs import ROOT
from tests.system.waiting import wait_until

CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")
GROUP: Final = "HOLDFAST_TRIAL_GROUP"
"""Variable of what is run: the name of control groups that it may make, for they have no namespace here."""
END_SECONDS_MOST: Final = 30.0


def run_apart(module: str, *arguments: str) -> int:
    """Run ``python -m MODULE``; its exit code.

    Its temporary folder is one that is removed afterwards.
    """
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
                pass  # what runs got it, too, and is about to end
    finally:
        process.kill()  # nothing, if it has ended
        process.wait()
        for top in {*CONTROL_GROUPS.glob(f"*/{folder.name}"), *CONTROL_GROUPS.glob(folder.name)}:
            wait_until(partial(_remove_group, top), f"{top} is empty", END_SECONDS_MOST)
        shutil.rmtree(folder, ignore_errors=True)


def _remove_group(top: Path) -> bool:
    """Whether it is gone, with all below it; it is not while a process is in it."""
    for folder, _, _ in os.walk(top, topdown=False):
        try:
            os.rmdir(folder)
        except OSError:
            return False
    return True


def main() -> int:
    """As the first process: run the module, and take leave of each process that has nobody else."""
    child = subprocess.Popen([sys.executable, "-m", *sys.argv[1:]])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child decides
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            return abs(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    sys.exit(main())
