"""Tables for terminals, as wide as the terminal."""

import os
import re
import sys

import pytest

from holdfast.commandline.text_tables import table


def test_numbers_are_not_broken_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda **_: os.terminal_size((32, 24)))
    rows = [["Requests to standard queues, above 2,000,000", "1,000,000", "0.686110815"]]
    text = re.sub(r"\x1b\[[0-9;]*m", "", table(("CHARGE", "QUANTITY", "EUR"), rows, nothing="", unbroken=(1, 2)))
    heading, first, *others = text.splitlines()
    assert heading.split() == ["CHARGE", "QUANTITY", "EUR"]
    assert first.split()[-2:] == ["1,000,000", "0.686110815"]
    assert others, "the text is on several lines"
    assert all(len(line) <= 32 for line in text.splitlines())
    broken = re.sub(r"\x1b\[[0-9;]*m", "", table(("CHARGE", "QUANTITY", "EUR"), rows, nothing=""))
    assert "0.686110815" not in broken, "that is so because they were named"
