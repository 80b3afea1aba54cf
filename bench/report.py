"""Measurements, the targets for them, the table and the JSON file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.load import Window, quantile
from bench.machine import MachineInfo

FORMAT = 1
"""Format version of the JSON files; raised when a meaning changes."""


class LoadMeasurement(msgspec.Struct):
    """One load on one server."""

    scenario: str
    server: str
    connections: int
    seconds: float
    calls: int
    messages: int
    calls_per_s: float
    messages_per_s: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    server_cpu_s: float
    cpu_us_per_call: float
    cpu_us_per_message: float
    rss_mib: float
    generator_busy: float
    """Fraction of one core that the load generator used: near 1 means that it was the bottleneck."""
    errors: int
    first_error: str


class Figure(msgspec.Struct):
    """One number that is not a load."""

    scenario: str
    server: str
    name: str
    value: float
    unit: str


def row_of(
    scenario: str, server: str, connections: int, windows: list[Window], cpu_s: float, rss_mib: float
) -> LoadMeasurement:
    """Summarize windows of the same load."""
    seconds = sum(window.seconds for window in windows)
    calls = sum(window.calls for window in windows)
    messages = sum(window.messages for window in windows)
    ordered = windows[0].latencies()
    for window in windows[1:]:
        ordered.extend(window.latencies())
    if len(windows) > 1:
        ordered = type(ordered)("d", sorted(ordered))
    return LoadMeasurement(
        scenario=scenario,
        server=server,
        connections=connections,
        seconds=round(seconds, 3),
        calls=calls,
        messages=messages,
        calls_per_s=round(calls / seconds, 1),
        messages_per_s=round(messages / seconds, 1),
        p50_ms=round(quantile(ordered, 0.50) * 1000, 3),
        p99_ms=round(quantile(ordered, 0.99) * 1000, 3),
        max_ms=round(quantile(ordered, 1) * 1000, 3),
        server_cpu_s=round(cpu_s, 3),
        cpu_us_per_call=round(cpu_s / max(calls, 1) * 1e6, 2),
        cpu_us_per_message=round(cpu_s / max(messages, 1) * 1e6, 2) if messages else 0.0,
        rss_mib=round(rss_mib, 1),
        generator_busy=round(sum(window.generator_cpu_s for window in windows) / seconds, 3),
        errors=sum(window.errors for window in windows),
        first_error=next((window.first_error for window in windows if window.first_error), ""),
    )


class Book:
    """All measurements of a run so far."""

    def __init__(self) -> None:
        self.rows: list[LoadMeasurement] = []
        self.figures: list[Figure] = []
        self.notes: list[str] = []

    def row(self, scenario: str, server: str = "holdfast") -> LoadMeasurement | None:
        return next((row for row in self.rows if (row.scenario, row.server) == (scenario, server)), None)

    def figure(self, scenario: str, name: str, server: str = "holdfast") -> float | None:
        wanted = (scenario, server, name)
        return next((f.value for f in self.figures if (f.scenario, f.server, f.name) == wanted), None)


class PerformanceTarget(NamedTuple):
    """One target of Holdfast, and the function that takes its figure from the measurements."""

    text: str
    bound: float
    at_least: bool
    unit: str
    take: Callable[[Book], float | None]


class TargetVerdict(msgspec.Struct):
    """A target with its measurement; ``met`` is None if it was not measured."""

    target: str
    bound: float
    unit: str
    measured: float | None
    met: bool | None


def verdicts(book: Book, targets: list[PerformanceTarget]) -> list[TargetVerdict]:
    found = []
    for target in targets:
        value = target.take(book)
        met = None if value is None else (value >= target.bound if target.at_least else value <= target.bound)
        text = f"{target.text}: at {'least' if target.at_least else 'most'} {target.bound:g} {target.unit}".rstrip()
        found.append(TargetVerdict(text, target.bound, target.unit, None if value is None else round(value, 3), met))
    return found


class BenchReport(msgspec.Struct):
    """One JSON file."""

    format: int
    plan: str
    machine: MachineInfo
    servers: dict[str, str]
    rows: list[LoadMeasurement]
    figures: list[Figure]
    targets: list[TargetVerdict]
    notes: list[str]


def write(report: BenchReport, folder: Path) -> Path:
    """Write the report to a file named after its date and plan."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = report.machine.date.replace("-", "").replace(":", "").partition("+")[0]
    path = folder / f"{stamp}Z-{report.plan}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    return path


_COLUMNS: list[tuple[str, int, Callable[[LoadMeasurement], str]]] = [
    ("scenario", -30, lambda row: row.scenario),
    ("server", -9, lambda row: row.server),
    ("calls/s", 8, lambda row: f"{row.calls_per_s:.0f}"),
    ("msgs/s", 8, lambda row: f"{row.messages_per_s:.0f}"),
    ("p50 ms", 8, lambda row: f"{row.p50_ms:.2f}"),
    ("p99 ms", 8, lambda row: f"{row.p99_ms:.2f}"),
    ("CPU µs/call", 11, lambda row: f"{row.cpu_us_per_call:.1f}"),
    ("CPU µs/msg", 10, lambda row: f"{row.cpu_us_per_message:.1f}" if row.messages else "-"),
    ("RSS MiB", 8, lambda row: f"{row.rss_mib:.0f}"),
    ("errors", 6, lambda row: str(row.errors)),
]


def _cell(text: str, width: int) -> str:
    return text.ljust(-width) if width < 0 else text.rjust(width)


def table(report: BenchReport) -> str:
    """Return the report as text."""
    machine = report.machine
    changed = " with changes" if machine.uncommitted else ""
    lines = [
        f"{report.plan} run of {machine.date}, commit {machine.commit[:12]}{changed}, {machine.build}",
        f"{machine.cores} cores of {machine.cpu}, {machine.memory_gib} GiB, Linux {machine.kernel}, "
        f"load before the run {machine.load_average}, fdatasync {machine.fdatasync_ms} ms, "
        f"Python {machine.python}, {machine.java or 'no java'}",
        "",
        "  ".join(_cell(title, width) for title, width, _ in _COLUMNS),
    ]
    lines += ["  ".join(_cell(of(row), width) for _, width, of in _COLUMNS) for row in report.rows]
    lines += [f"  {row.scenario} {row.server}: {row.first_error}" for row in report.rows if row.errors]
    if report.figures:
        lines.append("")
        lines += [f"{f.scenario:<30}  {f.server:<9}  {f.name}: {f.value:g} {f.unit}" for f in report.figures]
    lines.append("")
    for verdict in report.targets:
        word = {None: "not measured", True: "met", False: "missed"}[verdict.met]
        measured = "" if verdict.measured is None else f", measured {verdict.measured:g}"
        lines.append(f"{word:>12}  {verdict.target}{measured}")
    lines += ["", *report.notes] if report.notes else []
    return "\n".join(lines)
