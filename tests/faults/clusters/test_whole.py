"""Tests of the harness for faults on whole clusters: it detects broken promises."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.faults.campaign import whole
from tests.faults.campaign.forms import STARTUP, OneMachine
from tests.faults.campaign.whole import Fault, FaultResults
from tests.faults.tools.wrong import Wrong, make_library


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


def test_syncs_take_longer_while_configured(tmp_path: Path) -> None:
    program = """
import os, sys, time
with open(sys.executable) as file:
    began = time.monotonic()
    os.fdatasync(file.fileno())
    print(time.monotonic() - began)
"""
    (tmp_path / "slow.disk").write_text("2")
    assert float(python(tmp_path, program, FAULTS_NAME="slow")) >= 2
    (tmp_path / "slow.disk").unlink()
    assert float(python(tmp_path, program, FAULTS_NAME="slow")) < 2


def test_processes_that_are_not_python_have_wrong_clocks_and_slow_disks(tmp_path: Path) -> None:
    program = "import os, sys, time; began = time.monotonic(); os.fdatasync(os.open(sys.executable, os.O_RDONLY)); " + (
        "print(time.time(), time.monotonic() - began)"
    )
    wrong = Wrong(make_library(tmp_path), "it")

    def seen() -> tuple[float, float]:
        clock, took = python(tmp_path, program, **wrong.environment).split()
        return float(clock) - time.time(), float(took)

    off, took = seen()
    assert abs(off) < 30
    assert took < 2
    wrong.set(clock_seconds=-3600.5, sync_seconds=2)
    off, took = seen()
    assert off == pytest.approx(-3600, abs=60)
    assert took >= 2


@pytest.mark.long
async def test_a_fault_has_a_row_and_after_one_that_cannot_be_done_others_follow(tmp_path: Path) -> None:
    reported: list[FaultResults] = []

    def cannot(form: OneMachine) -> None:
        raise LookupError("there is nothing to kill")

    faults = [
        Fault[OneMachine]("kill -9", lambda form: form.kill("frontend-1")),
        Fault[OneMachine]("impossible", cannot),
        Fault[OneMachine]("unchosen", cannot),
        Fault[OneMachine]("kill -9 again", lambda form: form.kill("frontend-2")),
    ]
    made: list[OneMachine] = []
    amid: list[OneMachine] = []

    def make(number: int) -> OneMachine:
        (folder := tmp_path / str(number)).mkdir()
        made.append(OneMachine(folder))
        return made[-1]

    rows = await whole.campaign(make, lambda _: faults, 1, on_result=reported.append, amid=amid.append, only="i")
    assert rows == reported
    assert [row.fault for row in rows] == ["kill -9", "impossible", "kill -9 again"]
    assert len(made) == 2
    assert amid == [made[0], made[0], made[1]]
    assert (rows[2].lost, rows[2].broken) == (0, [])
    assert (rows[0].lost, rows[0].broken) == (0, [])
    assert rows[0].calls > whole.CALLS_BEFORE + whole.CALLS_AFTER
    assert rows[0].stall_seconds > 0
    assert "there is nothing to kill" in rows[1].broken[0]
    table = whole.table(rows).splitlines()
    assert table[2].startswith("| --frontends 2 --backends 1 | kill -9 |")
    assert "impossible **BROKEN**" in table[3]


@pytest.mark.long
async def test_a_fault_that_takes_too_long_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "FAULT_SECONDS", 5.0)
    monkeypatch.setattr(whole, "STARTS_MAX", 1)
    ended = threading.Event()
    faults = [
        Fault[OneMachine]("endless", lambda _: ended.wait(60)),
        Fault[OneMachine]("never done", lambda form: form.kill("frontend-1")),
    ]
    try:
        rows = await whole.campaign(lambda _: OneMachine(tmp_path), lambda _: faults, 1, on_result=lambda _: None)
    finally:
        ended.set()
    assert [row.fault for row in rows] == ["endless", "never done"]
    assert "TimeoutError" in rows[0].broken[0]
    assert rows[1].broken == ["not done: too much was broken before"]
