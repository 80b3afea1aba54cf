"""Parameters of a Query request: those of its query string and of its form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from auth.signatures import percent
from telemetry.texts import shown

PARAMETERS_MAX = 1_200
"""Maximum number of parameters of a request [own]: a batch of 10 with all its attributes needs fewer than 500."""
NAME_LENGTH_MAX = 512
"""Maximum length of a parameter's name [own]: the longest in the models has fewer than 100 characters."""

Malformed = Callable[[str], Exception]
"""Function that makes the protocol's error for a request that cannot be read, from its text."""


class _Place(NamedTuple):
    """A slice of a source."""

    source: bytes
    start: int
    end: int


_Value = str | bytes | _Place
"""A parameter's value: decoded, as it was sent, or as a slice."""
_NAME_BYTES_MAX = 3 * NAME_LENGTH_MAX
_COPIED_BYTES = 32 * 1024
"""Maximum length of a source in ASCII whose values are copied out of it."""


class Parameters:
    """The parameters of one request, each decoded on demand, so that unused ones cost nothing.

    Values are kept as slices of the sources, so that a long one is not copied before it is decoded.
    """

    __slots__ = ("_found", "_malformed", "source_bytes")

    def __init__(self, found: dict[str, _Value], source_bytes: int, malformed: Malformed) -> None:
        self._found = found
        self._malformed = malformed
        self.source_bytes = source_bytes
        """Length of query string and form together, as they were sent."""

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._found)

    def decoded_bytes(self, name: str) -> int:
        """Length of a parameter's value without its escapes, in bytes of UTF-8."""
        value = self._found[name]
        if isinstance(value, str):
            return len(value.encode())
        source, start, end = (value, 0, len(value)) if isinstance(value, bytes) else value
        return end - start - 2 * source.count(b"%", start, end)

    def get(self, name: str, default: str = "") -> str:
        """Value of a parameter, or ``default`` if it was not given.  Raises the error of a malformed request."""
        value = self._found.get(name)
        if type(value) is str:
            return value
        if value is None:
            return default
        if type(value) is bytes:
            text = self._found[name] = _decoded(value, self._malformed)
            return text
        return _text_of(value, self._malformed)  # a long text is not stored twice


def read_parameters(sources: tuple[bytes, ...], malformed: Malformed) -> Parameters:
    """Parse the parameters of query string and form.  Raises the error of a malformed request.

    A signature does not bind the order of parameters with the same name, so none may be repeated with another
    value.
    """
    found: dict[str, _Value] = {}
    for source in sources:
        if not source:
            continue
        if source.count(b"&") >= PARAMETERS_MAX:
            raise malformed(f"A request can have at most {PARAMETERS_MAX} parameters.")
        is_plain = len(source) <= _COPIED_BYTES and source.isascii()
        for name, value in _plain_pairs(source, malformed) if is_plain else _pairs(source, malformed):
            earlier = found.setdefault(name, value)
            if earlier is not value and _text_of(earlier, malformed) != _text_of(value, malformed):
                raise malformed(f"The parameter {shown(name)} was given more than once.")
    return Parameters(found, sum(map(len, sources)), malformed)


def _plain_pairs(source: bytes, malformed: Malformed) -> Iterable[tuple[str, _Value]]:
    """Names and values of a short source in ASCII.  Values without escapes are decoded with it, which is cheaper."""
    pairs: list[tuple[str, _Value]] = []
    for pair in source.decode("ascii").split("&"):
        name, _, value = pair.partition("=")
        if name:
            if not name.isalnum() or len(name) > _NAME_BYTES_MAX:
                name = _name_of(name.encode(), malformed)
            pairs.append((name, value.encode() if "%" in value or "+" in value else value))
    return pairs


def _pairs(source: bytes, malformed: Malformed) -> Iterator[tuple[str, _Value]]:
    """Names of any source, with slices of it for their values."""
    length = len(source)
    start = 0
    while start < length:
        end = source.find(b"&", start)
        if end < 0:
            end = length
        equals = source.find(b"=", start, end)
        name_end = end if equals < 0 else equals
        if name_end > start:
            # a name that is too long is refused by its length, and may be truncated
            name = source[start : min(name_end, start + _NAME_BYTES_MAX + 1)]
            yield _name_of(name, malformed), _Place(source, min(name_end + 1, end), end)
        start = end + 1


def _name_of(sent: bytes, malformed: Malformed) -> str:
    """Decode a parameter's name.  Raises the error of a malformed request, also for a name that is too long."""
    if len(sent) > _NAME_BYTES_MAX:
        raise malformed("The name of a parameter is too long.")
    return _decoded(sent, malformed)


def _text_of(value: _Value, malformed: Malformed) -> str:
    if isinstance(value, str):
        return value
    return _decoded(value, malformed) if isinstance(value, bytes) else _value_at(value, malformed)


def _value_at(place: _Place, malformed: Malformed) -> str:
    source, start, end = place
    if source.find(b"%", start, end) >= 0 or source.find(b"+", start, end) >= 0:
        return _decoded(source[start:end], malformed)
    try:
        return str(memoryview(source)[start:end], "utf-8")  # without copying the bytes
    except UnicodeDecodeError:
        raise malformed("A parameter is not valid UTF-8.") from None


def _decoded(part: bytes, malformed: Malformed) -> str:
    try:
        if part.find(b"%") >= 0 or part.find(b"+") >= 0:  # not `in`: see auth.signatures.percent
            part = percent.decode(part, plus=True)  # releases the encoded bytes
        return part.decode()
    except UnicodeDecodeError:
        raise malformed("A parameter is not valid UTF-8.") from None
    except percent.MalformedEscape:
        raise malformed("A parameter has a percent sign that two hexadecimal digits do not follow.") from None
