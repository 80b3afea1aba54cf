"""``python -m tests.image.jobs REF``: test an image of the jobs, as Kubernetes runs them, with docker or podman.

A month's usage is generated and summed up, in a lake at ``s3://`` that moto serves.  The jobs run as nobody, without
capabilities, and can write only to /tmp; Spark cannot download packages, so they have to be in the image.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.billing.s3 import S3
from tests.image.engine import NoEngine, engine

RECORDS = 2000
DAY = "2026-01-31"


def run(program: str, image: str, lake: str, *job: str) -> str:
    """Run a job, which has to succeed; returns its output.  Raises :class:`AssertionError`."""
    done = subprocess.run(
        [
            *(program, "run", "--rm", "--pull", "never", "--read-only", "--tmpfs", "/tmp", "--network", "host"),
            *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--env", "HOLDFAST_USAGE_LAKE", image),
            *(*job, "--memory", "1g"),
        ],
        env={**os.environ, "HOLDFAST_USAGE_LAKE": lake},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(job)} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.image.jobs", description="Try an image of the jobs.")
    parser.add_argument("image", metavar="REF")
    options = parser.parse_args()
    try:
        program = engine()
        with tempfile.TemporaryDirectory() as folder, S3(Path(folder)) as s3:
            lake = s3.lake("lake")
            started_at = time.monotonic()
            made = run(program, options.image, lake, "generate", "--day", DAY, "--records", str(RECORDS))
            assert s3.objects("lake/"), made
            print(f"passed  usage is written to s3:// after {time.monotonic() - started_at:.0f} s", flush=True)
            started_at = time.monotonic()
            summed_up = run(program, options.image, lake, "batch", "--day", DAY)
            assert re.search(rf"\b{RECORDS:,}\b", summed_up), summed_up
            print(f"passed  the batch finds it there, after {time.monotonic() - started_at:.0f} s")
    except (AssertionError, NoEngine) as error:
        print(f"FAILED  {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
