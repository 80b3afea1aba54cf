"""``holdfast report``: a page and a PDF from a lake."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime
from importlib import import_module
from pathlib import Path

import msgspec
import pytest
from pypdf import PdfReader

from billing.lake.lake import Lake
from billing.pricing.plans import book_of, customers_of
from billing.reports.analysis import encode, path_of
from holdfast.commandline.spark_jobs import Job
from holdfast.commands.main import main
from tests.billing.months import analysis_of
from tests.billing.pricing.test_invoices import BOOK
from tests.billing.published import calls, publish_calls
from tests.billing.rated_lines import Used, rate
from tests.billing.reports.test_report import _Page

A, B = "000000000001", "000000000002"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(str(tmp_path / "lake"))
    publish_calls(lake, date(2026, 10, 1), calls(A, "orders", "SendMessage", 30), calls(B, "mail", "SendMessage", 4))
    publish_calls(lake, date(2026, 10, 2), calls(A, "orders", "ReceiveMessage", 50))
    return lake


def rated_and_analysed(lake: Lake) -> None:
    book = book_of(BOOK, "prices.yaml")
    customers = customers_of("default: plain", "accounts.yaml", book)
    rate(lake, "2026-10", book, customers, Used(A, 10**7, tier=2), Used(B, 10**6, tier=2, queue="mail"))
    lake.write_bytes(path_of("2026-10"), encode(msgspec.structs.replace(analysis_of(A), month="2026-10")))


def test_a_page_is_written_from_a_lake(lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rated_and_analysed(lake)
    file = tmp_path / "october.html"
    assert main(["report", "--month", "2026-10", "--lake", lake.url, "--output", str(file), "--pdf"]) == 0
    told = capsys.readouterr()
    assert told.out.splitlines() == [str(file), str(tmp_path / "october.pdf")]
    assert "Reading the usage of 2026-10 …" in told.err
    tables = _Page(file.read_text()).tables
    assert [row[:2] for row in tables["Calls by day"][1:]] == [["1 Oct", "34"], ["2 Oct", "0"], ["Month", "34"]]
    assert tables["Calls by day"][2][2] == "50"
    assert tables["Top tenants"][1][:2] == [A, "80"]
    assert [row[-1] for row in tables["Cost by queue"][1:]] == ["4.00 EUR", "0.40 EUR"]
    assert "Receives that found nothing" in tables
    text = "".join(page.extract_text() for page in PdfReader(tmp_path / "october.pdf").pages)
    assert "Usage in October 2026" in text
    assert {path.name for path in tmp_path.iterdir()} == {"lake", "october.html", "october.pdf"}


def test_of_one_tenant(lake: Lake, tmp_path: Path) -> None:
    rated_and_analysed(lake)
    file = tmp_path / "b.html"
    assert main(["report", "--month", "2026-10", "--account", B, "--lake", lake.url, "--output", str(file)]) == 0
    html = file.read_text()
    assert A not in html
    assert _Page(html).tables["Cost by queue"][1][0] == "mail"


def test_what_was_not_worked_out_is_said(lake: Lake, tmp_path: Path) -> None:
    file = tmp_path / "r.html"
    assert main(["report", "--month", "2026-10", "--lake", lake.url, "--output", str(file)]) == 0
    assert "not rated yet" in file.read_text()
    assert "What they cost was not worked out yet" in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--month", "2026-09"], 1, "has no results of the batch for 2026-09"),
        (["--month", "2026-9"], 2, "is no month: it is written like 2026-11"),
        (["--account", "12"], 2, "12 digits"),
        (["--lake", "nosuch://user:secret@place"], 2, "is no place for a lake"),
        (["--output", "r.pdf", "--pdf"], 2, "--output names the page, such as report.html; with --pdf"),
        (["--output", "nowhere/r.html"], 1, "nowhere/r.html cannot be written: No such file or directory"),
    ],
)
def test_what_cannot_be_done_is_said(
    lake: Lake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", "--month", "2026-10", "--lake", lake.url, "--output", "r.html", *arguments]) == code
    told = capsys.readouterr()
    assert said in told.err
    assert "secret" not in told.err
    assert told.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["lake"]


def test_packages_that_are_missing_are_named(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("matplotlib", "mpl_toolkits")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["report", "--month", "2026-10", "--lake", lake.url]) == 1
    assert "pip install 'holdfast[billing]'" in capsys.readouterr().err


def test_spark_is_asked_for_what_the_page_shows(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs: list[list[list[str]]] = []

    def run(asked: Sequence[Job], url: str, about: str, progress: object) -> None:
        assert url == lake.url
        jobs.append([[job.name, *job.arguments] for job in asked])
        rated_and_analysed(lake)

    monkeypatch.setattr("holdfast.commands.billing.report.run_jobs", run)
    file = tmp_path / "r.html"
    asked = ["report", "--month", "2026-10", "--lake", lake.url, "--output", str(file), "--refresh"]
    (tmp_path / "prices.yaml").write_text(BOOK)
    prices = ["--plan", str(tmp_path / "prices.yaml")]
    assert main([*asked, *prices]) == 2
    assert "say in a file who has which (--accounts)" in capsys.readouterr().err
    (tmp_path / "accounts.yaml").write_text("default: plain")
    prices += ["--accounts", str(tmp_path / "accounts.yaml")]
    assert main([*asked, *prices, "--month", "2019-12"]) == 2
    assert main([*asked, *prices[:3], str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml cannot be read" in capsys.readouterr().err
    assert jobs == [], "what is wrong was said before Spark began"
    assert main([*asked, *prices]) == 0
    batch, rate, analyse = (
        ["batch", "--month", "2026-10", *prices],
        ["rate", "--period", "2026-10", *prices],
        ["analyse", "--month", "2026-10", *prices],
    )
    assert jobs.pop() == [batch, rate, analyse], "by one Spark"
    assert "Cost by queue" in _Page(file.read_text()).tables, "it was read after that"
    assert main(asked) == 0
    assert jobs.pop() == [batch[:-4], analyse[:-4]]
    assert main([*asked, *prices, "--check"]) == 0
    check = ["check", "--month", "2026-10"]
    assert jobs.pop() == [batch, rate, analyse, check]
    for made in (batch, rate, analyse, check):
        assert vars(understood(made))
    assert main(["report", "--check", "--lake", lake.url]) == 2
    assert "--check goes with --refresh" in capsys.readouterr().err
    assert main(["report", "--plan", "prices.yaml", "--lake", lake.url]) == 2
    assert "--plan goes with --refresh" in capsys.readouterr().err


def test_a_page_is_made_after_what_it_shows(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[datetime] = []
    made: list[datetime] = []
    monkeypatch.setattr("holdfast.commands.billing.report.run_jobs", lambda *_: ended.append(datetime.now(UTC)))

    def write(url: str, period: object, account: object, now: datetime, *_: object) -> int:
        made.append(now)
        return 0

    monkeypatch.setattr("holdfast.commands.billing.report._write", write)
    assert main(["report", "--month", "2026-10", "--lake", lake.url, "--refresh"]) == 0
    assert made[0] >= ended[-1]


def understood(job: list[str]) -> argparse.Namespace:
    """Options of a job, parsed by the job itself."""
    from spark_analytics.__main__ import JOBS

    name, *arguments = job
    parser = argparse.ArgumentParser()
    import_module(JOBS[name]).arguments(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize("missing", ["pyspark", "java"])
def test_spark_that_is_missing_is_named(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    if missing == "pyspark":
        monkeypatch.setattr("holdfast.commandline.spark_jobs.find_spec", lambda name: None)
    else:
        monkeypatch.setattr("holdfast.commandline.spark_jobs.which", lambda name: None)
        monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert main(["report", "--month", "2026-10", "--lake", lake.url, "--refresh"]) == 1
    said = capsys.readouterr().err
    assert ("holdfast[spark]" if missing == "pyspark" else "default-jre-headless") in said
