"""Percent-decoding: equal to the standard library's for valid escapes, in texts of any length."""

from random import Random
from urllib.parse import unquote_to_bytes

import pytest

from auth.signatures import percent
from tests.tables import beside

TEXTS = beside(__file__, "percent.yaml")


def texts(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("text", [text.encode("latin-1") for text in TEXTS[kind]])


@texts("whole")
def test_whole_escapes(text: bytes) -> None:
    assert percent.decode(text) == unquote_to_bytes(text)
    assert percent.decode(text, plus=True) == unquote_to_bytes(text.replace(b"+", b" "))


@texts("broken")
def test_broken_escapes(text: bytes) -> None:
    with pytest.raises(percent.MalformedEscape):
        percent.decode(text)
    with pytest.raises(percent.MalformedEscape):
        percent.decode(b"x" * 200_000 + text)


def test_escapes_at_the_edges_of_chunks() -> None:
    for shift in range(4):
        text = b"x" * shift + b"%41%42=" * 60_000
        assert percent.decode(text) == unquote_to_bytes(text)


def test_random_texts() -> None:
    random = Random(7)
    for _ in range(3_000):
        text = b"".join(
            random.choice((b"%41", b"%", b"=", b"+", b"z", b"\n", b"\r", b"4", b"F", b"%e9")) for _ in range(8)
        )
        whole = all(_is_hex(text[at + 1 : at + 3]) for at, byte in enumerate(text) if byte == ord("%"))
        try:
            decoded = percent.decode(text)
        except percent.MalformedEscape:
            assert not whole, text
        else:
            assert whole, text
            assert decoded == unquote_to_bytes(text), text


def _is_hex(digits: bytes) -> bool:
    return len(digits) == 2 and all(digit in b"0123456789abcdefABCDEF" for digit in digits)
