"""``holdfast report``: a page and a PDF from a lake."""

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
from tests.billing.books import BOOK
from tests.billing.months import analysis_of
from tests.billing.parsed_page import ParsedPage
from tests.billing.published import calls, publish_calls
from tests.billing.rated_lines import Used, rate
from tests.holdfast.command import CommandResult, checked
from tests.holdfast.transcripts import FolderShell, Transcript, cases_of, replay

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


def report(lake: Lake, *arguments: str | Path, code: int = 0) -> CommandResult:
    return checked("report", "--month", "2026-10", "--lake", lake.url, *arguments, code=code)


def test_a_page_is_written_from_a_lake(lake: Lake, tmp_path: Path) -> None:
    rated_and_analysed(lake)
    file = tmp_path / "october.html"
    told = report(lake, "--output", file, "--pdf")
    assert told.out.splitlines() == [str(file), str(tmp_path / "october.pdf")]
    assert "Reading the usage of 2026-10 …" in told.err
    table = ParsedPage(file.read_text()).table
    assert [row[:2] for row in table("Calls by day")[1:]] == [["1 Oct", "34"], ["2 Oct", "0"], ["Month", "34"]]
    assert table("Calls by day")[2][2] == "50"
    assert table("Top tenants")[1][:2] == [A, "80"]
    assert [row[-1] for row in table("Cost by queue")[1:]] == ["4.00 EUR", "0.40 EUR"]
    assert table("Receives that found nothing")
    text = "".join(page.extract_text() for page in PdfReader(tmp_path / "october.pdf").pages)
    assert "Usage in October 2026" in text
    assert {path.name for path in tmp_path.iterdir()} == {"lake", "october.html", "october.pdf"}


def test_of_one_tenant(lake: Lake, tmp_path: Path) -> None:
    rated_and_analysed(lake)
    file = tmp_path / "b.html"
    report(lake, "--account", B, "--output", file)
    html = file.read_text()
    assert A not in html
    assert ParsedPage(html).table("Cost by queue")[1][0] == "mail"


def test_missing_results_are_reported(lake: Lake, tmp_path: Path) -> None:
    file = tmp_path / "r.html"
    report(lake, "--output", file)
    assert "not been rated yet" in file.read_text()
    assert "Their cost is not known yet" in file.read_text()


@cases_of(__file__)
def test_transcript(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transcript: Transcript) -> None:
    monkeypatch.chdir(tmp_path)
    replay(transcript, FolderShell(), lake=lake.url)
    assert [path.name for path in tmp_path.iterdir()] == ["lake"]


def test_packages_that_are_missing_are_named(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("matplotlib", "mpl_toolkits")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'holdfast[billing]'" in report(lake, code=1).err


def test_spark_computes_the_content_of_the_page(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[list[list[str]]] = []

    def run(asked: Sequence[Job], url: str, about: str, progress: object) -> None:
        assert url == lake.url
        jobs.append([[job.name, *job.arguments] for job in asked])
        rated_and_analysed(lake)

    monkeypatch.setattr("holdfast.commands.billing.report.run_jobs", run)
    file = tmp_path / "r.html"
    asked = ["--output", str(file), "--refresh"]
    (tmp_path / "prices.yaml").write_text(BOOK)
    prices = ["--plan", str(tmp_path / "prices.yaml")]
    assert "assign them in a file (--accounts)" in report(lake, *asked, *prices, code=2).err
    (tmp_path / "accounts.yaml").write_text("default: plain")
    prices += ["--accounts", str(tmp_path / "accounts.yaml")]
    report(lake, *asked, *prices, "--month", "2019-12", code=2)
    assert "none.yaml cannot be read" in report(lake, *asked, *prices[:3], tmp_path / "none.yaml", code=2).err
    assert jobs == [], "what is wrong was said before Spark began"
    report(lake, *asked, *prices)
    batch, rate, analyse = (
        ["batch", "--month", "2026-10", *prices],
        ["rate", "--period", "2026-10", *prices],
        ["analyse", "--month", "2026-10", *prices],
    )
    assert jobs.pop() == [batch, rate, analyse], "by one Spark"
    assert "Cost by queue" in ParsedPage(file.read_text()).captions, "it was read after that"
    report(lake, *asked)
    assert jobs.pop() == [batch[:-4], analyse[:-4]]
    report(lake, *asked, *prices, "--check")
    check = ["check", "--month", "2026-10"]
    assert jobs.pop() == [batch, rate, analyse, check]
    for made in (batch, rate, analyse, check):
        assert vars(understood(made))


def test_a_page_is_made_after_what_it_shows(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[datetime] = []
    made: list[datetime] = []
    monkeypatch.setattr("holdfast.commands.billing.report.run_jobs", lambda *_: ended.append(datetime.now(UTC)))

    def write(url: str, period: object, account: object, now: datetime, *_: object) -> int:
        made.append(now)
        return 0

    monkeypatch.setattr("holdfast.commands.billing.report._write", write)
    report(lake, "--refresh")
    assert made[0] >= ended[-1]


def understood(job: list[str]) -> argparse.Namespace:
    """Options of a job, parsed by the job itself."""
    from spark_analytics.__main__ import JOBS

    name, *arguments = job
    parser = argparse.ArgumentParser()
    import_module(JOBS[name]).arguments(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize("missing", ["pyspark", "java"])
def test_spark_that_is_missing_is_named(lake: Lake, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    if missing == "pyspark":
        monkeypatch.setattr("holdfast.commandline.spark_jobs.find_spec", lambda name: None)
    else:
        monkeypatch.setattr("holdfast.commandline.spark_jobs.which", lambda name: None)
        monkeypatch.setenv("JAVA_HOME", "/nowhere")
    said = report(lake, "--refresh", code=1).err
    assert ("holdfast[spark]" if missing == "pyspark" else "default-jre-headless") in said
