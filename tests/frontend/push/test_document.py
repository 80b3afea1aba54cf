"""The receiver in docs/push.md."""

import re
import time
from typing import Any

import pytest

from frontend.push.request import signature
from tests.servers.server import REPOSITORY

DOCUMENT = REPOSITORY / "docs" / "push.md"
BODY = "bödy".encode()


@pytest.fixture(scope="module")
def receiver() -> dict[str, Any]:
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    names: dict[str, Any] = {"__name__": "receiver"}
    exec(compile(code, str(DOCUMENT), "exec"), names)
    return names


def test_receiver_accepts_what_is_signed(receiver: dict[str, Any]) -> None:
    verify = receiver["is_from_holdfast"]
    now = int(time.time())
    header = signature([b"new", b"old"], BODY, now)
    assert verify(header, BODY, "new")
    assert verify(header, BODY, "old")
    assert not verify(header, BODY, "other")
    assert not verify(header, BODY + b"x", "new")
    assert not verify(signature([b"new"], BODY, now - 400), BODY, "new")
    assert not verify(signature([b"new"], BODY, now + 400), BODY, "new")


HEADERS = ["", "t=", "t=x,v1=y", "v1=y", "t,v1", "=,=", f"t={int(time.time())},v1=é", "t=1e9,v1=0", f"t={'9' * 100}"]


@pytest.mark.parametrize("header", HEADERS, ids=range(len(HEADERS)))
def test_receiver_refuses_malformed_headers(receiver: dict[str, Any], header: str) -> None:
    assert not receiver["is_from_holdfast"](header, BODY, "new")
