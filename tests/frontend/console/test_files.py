"""The console's files as they are served: their headers, their sizes, and what switches them off."""

import gzip
import re
from pathlib import Path

import httpx
import pytest

from frontend.console import files
from frontend.console.files import Console
from frontend.settings import FrontendSettings
from tests.frontend.service import HOST, KEY, FrontendService, running

FIRST_VIEW_BYTES_MAX = 300_000
LATER = {"charts.js", "chart.js"}
"""Files that are loaded with the first chart."""
PAGE = Path(files.__file__).with_name("page")


async def get(service: FrontendService, path: str, **headers: str) -> httpx.Response:
    return await service.client.get(f"http://{HOST}{path}", headers=headers)


async def test_every_file_has_the_strict_headers(service: FrontendService) -> None:
    paths = sorted(Console("us-east-1").paths - {"/console/"})
    assert {"/console", "/console/app.js", "/console/console.css", "/console/vue.js", "/console/chart.js"} <= {*paths}
    for path in paths:
        answer = await get(service, path)
        assert answer.status_code == 200, path
        policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"
        assert policy["require-trusted-types-for"] == "'script'"
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-cache"
        assert "set-cookie" not in answer.headers


async def test_the_first_view_is_small(service: FrontendService) -> None:
    size = 0
    for path in sorted(Console("us-east-1").paths):
        if path.removeprefix("/console/") not in LATER and path not in ("/console/", "/console/index.html"):
            answer = await get(service, path, **{"accept-encoding": "gzip"})
            assert answer.headers["content-encoding"] == "gzip"
            size += int(answer.headers["content-length"])
    assert 50_000 < size < FIRST_VIEW_BYTES_MAX


async def test_compressed_unchanged_and_without_content(service: FrontendService) -> None:
    plain = await get(service, "/console/app.js", **{"accept-encoding": "identity"})
    assert plain.text == (PAGE / "app.js").read_text()
    assert "content-encoding" not in plain.headers
    assert (await get(service, "/console/app.js", **{"accept-encoding": "gzip"})).text == plain.text
    again = await get(service, "/console/app.js", **{"if-none-match": plain.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert (await get(service, "/console/app.js", **{"if-none-match": '"other"'})).status_code == 200
    head = await service.client.head(f"http://{HOST}/console/app.js", headers={"accept-encoding": "identity"})
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(plain.content))
    moved = await get(service, "/console/")
    assert (moved.status_code, moved.headers["location"]) == (308, "/console")


async def test_the_page_names_the_region_and_has_nothing_inline(tmp_path: Path) -> None:
    async with running(tmp_path, FrontendSettings(region='x"><b>')) as service:
        page = (await get(service, "/console")).text
    assert 'content="x&quot;&gt;&lt;b&gt;"' in page
    assert re.findall(r"<script[^>]*>(.*?)</script>", page) == ["", ""]
    assert "<style" not in page
    assert not re.search(r"\s(on\w+|style)=", page)
    assert not re.search(r"https?://", page)


def test_scripts_make_no_html_of_texts() -> None:
    imported = set()
    for script in PAGE.rglob("*.js"):
        text = script.read_text()
        assert not re.search(r"innerHTML|v-html|insertAdjacentHTML|document\.write|\beval\b|new Function", text), script
        assert not re.search(r"localStorage|indexedDB|\.cookie\b", text), script
        assert script.name == "returned.js" or "sessionStorage" not in text, script
        assert not re.search(r"https?://", text), script
        imported |= {(script.parent / one).resolve() for one in re.findall(r'(?:from|import\() ?"(\.[^"]+)"', text)}
    assert imported == {*PAGE.rglob("*.js")} - {PAGE / "app.js"}, "each script is there, and is used"


def test_libraries_come_compressed_the_same_each_time() -> None:
    first, second = (files._read("vue.js", {}) for _ in range(2))
    assert first == second
    assert gzip.decompress(first.compressed) == first.content


async def test_a_queue_called_console_is_reached_as_ever(service: FrontendService) -> None:
    url = await service.make_queue("console")
    for path in (f"/{KEY.account}/console", "/console"):
        answer = await service.query("SendMessage", {"QueueUrl": url, "MessageBody": "b"}, path=path)
        assert answer.status == 200, answer.content


@pytest.mark.parametrize("path", ["/console", "/console/app.js", "/console/vue.js"])
async def test_it_can_be_switched_off(tmp_path: Path, path: str) -> None:
    async with running(tmp_path, FrontendSettings(console=False)) as service:
        answer = await get(service, path)
    assert answer.status_code in (403, 404)
    assert "text/html" not in answer.headers["content-type"]
    assert "javascript" not in answer.headers["content-type"]
