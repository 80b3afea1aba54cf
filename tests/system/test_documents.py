"""Documents of invoices from a real service of two frontends, with a renderer that the test holds back."""

import http.client
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from billing.lake.lake import Lake
from billing.pricing.invoices import Invoices
from billing.pricing.plans import book_of, customers_of
from tests.billing.books import BOOK
from tests.billing.rated_lines import Used, rate
from tests.holdfast.command import CommandResult, holdfast, process
from tests.servers.server import ACCOUNT
from tests.servers.several import Several
from tests.servers.waiting import wait_until

pytestmark = pytest.mark.long

PERIODS = ("2026-09", "2026-10", "2026-11")
"""Months with an invoice, one for each test."""
WAIT_SECONDS = 240.0
"""Timeout: a job is taken over after 30 s, on a machine that is busy with other work."""

WEASYPRINT = """
import os, time
from pathlib import Path

here = Path(__file__).parents[1]

class HTML:
    def __init__(self, string, url_fetcher):
        self.period = next(month for month in ("2026-09", "2026-10", "2026-11") if month in string)

    def write_pdf(self):
        (here / f"started-{self.period}-{os.getpid()}").touch()
        while not (here / f"let-{self.period}").exists():
            time.sleep(0.05)
        return b"%PDF-1.7 of " + self.period.encode()
"""
"""Substitute for the real package: it makes a document once the test allows it."""


class HeldService(NamedTuple):
    """The service, and its held renderers."""

    server: Several
    folder: Path

    def renderers(self, period: str) -> list[int]:
        """Return the processes that make a document of this month, or did."""
        return [int(path.name.rpartition("-")[2]) for path in self.folder.glob(f"started-{period}-*")]

    def let(self, period: str) -> None:
        (self.folder / f"let-{period}").touch()


class PinnedConnection:
    """A connection to one frontend that is kept open."""

    def __init__(self, server: Several) -> None:
        self._server = server
        self._http = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        self.call("GET", "/v1/invoices/2026-11/documents/none")
        assert self._http.sock is not None
        self.frontend = server.served_by(self._http.sock.getsockname()[1])

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, str], bytes]:
        data = b"" if body is None else json.dumps(body).encode()
        headers = self._server.signed_headers(method, path, data, {"Content-Type": "application/json"})
        self._http.request(method, path, data, headers)
        answer = self._http.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()

    def json(self, path: str) -> Any:
        return json.loads(self.call("GET", path)[2])

    def close(self) -> None:
        self._http.close()


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeldService]:
    folder = tmp_path_factory.mktemp("documents")
    lake = Lake(str(folder / "lake"))
    book = book_of(BOOK, "prices.yaml")
    for period in PERIODS:
        rate(lake, period, book, customers_of("default: plain", "accounts.yaml", book), Used(ACCOUNT, 10**7, tier=2))
        Invoices(lake).close(period, datetime(2026, 12, 1, tzinfo=UTC))
    fakes = folder / "fakes"
    (fakes / "weasyprint").mkdir(parents=True)
    (fakes / "weasyprint" / "__init__.py").write_text(WEASYPRINT)
    (fakes / "weasyprint" / "urls.py").write_text("class URLFetcher:\n    def __init__(self, **_): pass\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.fspath(fakes))
        server = Several(folder, {"USAGE": "on", "USAGE_LAKE": lake.url})
        made = HeldService(server, fakes)
        try:
            with server:
                yield made
        finally:
            for period in PERIODS:
                made.let(period)


def two_frontends(server: Several) -> dict[str, PinnedConnection]:
    """Open a connection to each frontend."""
    found: dict[str, PinnedConnection] = {}
    for _ in range(50):
        one = PinnedConnection(server)
        if found.setdefault(one.frontend, one) is not one:
            one.close()
        if len(found) == 2:
            return found
    raise AssertionError(f"all connections came to {list(found)}")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.timeout(600)
def test_a_busy_machine_answers_at_both_addresses(held: HeldService) -> None:
    one, two = two_frontends(held.server).values()
    with closing(one), closing(two):
        status, headers, content = one.call("POST", "/v1/invoices/2026-09/documents", {"kind": "email"})
        job = json.loads(content)
        assert (status, job["state"]) == (202, "queued")
        path = headers["location"]
        wait_until(lambda: two.json(path)["state"] == "running", "the job runs", WAIT_SECONDS)
        wait_until(lambda: held.renderers("2026-09"), "the renderer is held", WAIT_SECONDS)
        for asked in (one, two):
            assert asked.call("GET", f"{path}/content")[0] == 409
            assert (
                json.loads(asked.call("POST", "/v1/invoices/2026-09/documents", {"kind": "email"})[2])["id"]
                == job["id"]
            )
        held.let("2026-09")
        wait_until(lambda: two.json(path)["state"] not in ("queued", "running"), "the job ends", WAIT_SECONDS)
        done = one.json(path)
        assert (done["state"], done["attempts"], done["error"]) == ("done", 1, None)
        for asked in (one, two):
            headers, content = wait_until(partial(fetch, asked, f"{path}/content"), "it is read", WAIT_SECONDS)
            assert headers["content-type"] == "message/rfc822"
            assert (len(content), content[:8]) == (done["bytes"], b"Subject:")
    assert len(held.renderers("2026-09")) == 1


@pytest.mark.timeout(600)
def test_the_document_of_a_killed_frontend_is_made_by_the_other(held: HeldService) -> None:
    both = two_frontends(held.server)
    with closing(both["frontend-1"]), closing(both["frontend-2"]):
        _, headers, _ = both["frontend-1"].call("POST", "/v1/invoices/2026-10/documents", {"kind": "pdf"})
        path = headers["location"]
        (renderer,) = wait_until(lambda: held.renderers("2026-10"), "the renderer is held", WAIT_SECONDS)
        killed = next(name for name, pid in held.server.children().items() if pid == parent_of(renderer))
        (other,) = both.keys() - {killed}
        before = both[other].json(path)
        assert (before["state"], before["attempts"]) == ("running", 1)
        os.kill(held.server.children()[killed], signal.SIGKILL)
        wait_until(lambda: both[other].json(path)["attempts"] == 2, "the other takes the job", WAIT_SECONDS)
        held.let("2026-10")
        wait_until(lambda: both[other].json(path)["state"] == "done", "the job is done", WAIT_SECONDS)
        _, content = wait_until(lambda: fetch(both[other], f"{path}/content"), "the content is read", WAIT_SECONDS)
        assert content == b"%PDF-1.7 of 2026-10"


def fetch(asked: PinnedConnection, path: str) -> tuple[dict[str, str], bytes] | None:
    """Return headers and content; None if the machine is too busy to read it in time."""
    status, headers, content = asked.call("GET", path)
    return (headers, content) if status == 200 else None


@pytest.mark.timeout(600)
def test_a_command_waits_for_its_document(held: HeldService, tmp_path: Path) -> None:
    results: list[CommandResult] = []
    file = tmp_path / "november.pdf"
    command = ("invoice", "export", "2026-11", "--output", os.fspath(file))
    waiting = threading.Thread(target=lambda: results.append(process(held.server, *command)))
    waiting.start()
    try:
        wait_until(lambda: held.renderers("2026-11"), "the renderer is held", WAIT_SECONDS)
        assert (results, file.exists()) == ([], False)
    finally:
        held.let("2026-11")
        waiting.join()
    (result,) = results
    assert (result.code, result.out) == (0, f"{file}\n"), result.err
    assert result.err == "the service makes the PDF of 2026-11 …\n"
    assert file.read_bytes() == b"%PDF-1.7 of 2026-11"
    missing = holdfast(held.server, "invoice", "export", "2026-08", "--output", os.fspath(tmp_path / "none.pdf"))
    assert missing.code == 3
    assert "2026-08 is not closed yet" in missing.err
