"""Spark's jobs as processes of a command."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.servers.waiting import wait_until

COMMAND = """
import sys
from holdfast.commandline import spark_jobs
from holdfast.commandline.progress import Progress

spark_jobs.python = lambda: [sys.argv[1]]
spark_jobs.find_spec = spark_jobs.which = lambda name: name
jobs = [spark_jobs.Job("batch", ["--month", "2026-10"]), spark_jobs.Job("rate", ["--period", "2026-10"])]
spark_jobs.run_jobs(jobs, "s3://key:secret@bucket/path", "Summing up", Progress())
"""
JOB = """
import os, sys, time
with open(sys.argv[0] + ".arguments.new", "w") as file:
    print(os.getpid(), os.environ["HOLDFAST_USAGE_LAKE"], *sys.argv[1:], file=file)
os.rename(sys.argv[0] + ".arguments.new", sys.argv[0] + ".arguments")
time.sleep(600)
"""


def ended(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_job_ends_with_its_command_and_the_lakes_keys_are_not_on_its_command_line(tmp_path: Path) -> None:
    job, arguments_file = tmp_path / "job", tmp_path / "job.arguments"
    job.write_text(f"#!{sys.executable}\n{JOB}")
    job.chmod(0o700)
    command = subprocess.Popen([sys.executable, "-c", COMMAND, str(job)])
    process = 0
    try:
        wait_until(arguments_file.exists, "the job has begun")
        process_id, lake, *arguments = arguments_file.read_text().split()
        process = int(process_id)
        assert lake == "s3://key:secret@bucket/path"
        jobs = ["batch", "--month", "2026-10", "then", "rate", "--period", "2026-10"]
        assert arguments == ["-m", "spark_analytics", *jobs]
        assert not ended(process)
        command.kill()
        command.wait()
        wait_until(lambda: ended(process), "the job has ended")
    finally:
        command.kill()
        command.wait()
        if process and not ended(process):
            os.kill(process, signal.SIGKILL)
