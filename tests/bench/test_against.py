"""The comparison with an earlier commit."""

from bench.against import CpuOfCalls, EarlierHoldfast, table
from bench.servers.servers import Asgi, Holdfast


def test_changes_are_those_of_slices_that_ran_side_by_side() -> None:
    cpu = CpuOfCalls()
    for before, now in ((100, 101), (200, 202), (150, 300)):  # a busy moment, and one that struck one server alone
        cpu.add(EarlierHoldfast.name, before)
        cpu.add(Holdfast.name, now)
    for raw in (50, 40, 60):
        cpu.add(Asgi.name, raw)
    assert table({"SendMessage": cpu}, "aaa", "bbb").splitlines()[2:] == [
        "| SendMessage | 150.0 | 202.0 | +1.0% | 3.00, 4.04 times |",
        "| raw ASGI call under uvicorn | 50.0 | 50.0 | | |",
    ]
