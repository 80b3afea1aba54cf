"""The harness of the faults on whole clusters: what it sees, and that it sees it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults import whole
from tests.faults.forms import STARTUP, OneMachine
from tests.faults.whole import Fault, Row


def python(folder: Path, program: str, **more: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(STARTUP), "FAULTS_AT_START": str(folder), **more}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_a_clock_is_off_for_the_process_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "late.clock").write_text("-3600")
    both = "import time; print(time.time(), time.time_ns() / 1e9)"
    late = [float(each) - time.time() for each in python(tmp_path, both, FAULTS_NAME="late").split()]
    assert late == [pytest.approx(-3600, abs=60)] * 2
    right = [float(each) - time.time() for each in python(tmp_path, both, FAULTS_NAME="right").split()]
    assert right == [pytest.approx(0, abs=60)] * 2


def test_syncs_take_longer_while_it_is_said(tmp_path: Path) -> None:
    program = """
import os, sys, time
with open(sys.executable) as file:
    began = time.monotonic()
    os.fdatasync(file.fileno())
    print(time.monotonic() - began)
"""
    (tmp_path / "slow.disk").write_text("0.5")
    assert float(python(tmp_path, program, FAULTS_NAME="slow")) >= 0.5
    (tmp_path / "slow.disk").unlink()
    assert float(python(tmp_path, program, FAULTS_NAME="slow")) < 0.5


async def test_a_fault_has_a_row_and_one_that_cannot_be_done_is_the_last(tmp_path: Path) -> None:
    told: list[Row] = []

    def cannot(form: OneMachine) -> None:
        raise LookupError("there is nothing to kill")

    faults = [
        Fault[OneMachine]("kill -9", lambda form: form.kill("frontend-1")),
        Fault[OneMachine]("impossible", cannot),
        Fault[OneMachine]("never done", cannot),
    ]
    rows = await whole.run(OneMachine(tmp_path), faults, 1, told=told.append)
    assert rows == told
    assert [row.fault for row in rows] == ["kill -9", "impossible"]
    assert (rows[0].lost, rows[0].broken) == (0, [])
    assert rows[0].calls > whole.CALLS_BEFORE + whole.CALLS_AFTER
    assert rows[0].stall_seconds > 0
    assert "there is nothing to kill" in rows[1].broken[0]
    table = whole.table(rows).splitlines()
    assert table[2].startswith("| --frontends 2 --backends 1 | kill -9 |")
    assert "impossible **BROKEN**" in table[3]
