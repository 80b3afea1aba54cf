"""Lines of Python source, with the fixed fields that are read or written at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

LINE_LENGTH_MAX = 118


class SourceLines:
    """Lines of one function."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.formats: set[str] = set()
        """The formats of struct that the lines use."""
        self._depth = 0

    def add(self, line: str) -> None:
        """Add a line."""
        self.lines.append("    " * self._depth + line)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add a compound statement, whose body is added in the context."""
        self.add(head)
        self._depth += 1
        yield
        self._depth -= 1

    def call(self, head: str, arguments: list[str], end: str = ")") -> None:
        """Add a call, on several lines if it is long."""
        line = f"{head}({', '.join(arguments)}{end}"
        if len(line) + 4 * self._depth <= LINE_LENGTH_MAX:
            self.add(line)
            return
        self.add(f"{head}(")
        for argument in arguments:
            self.add(f"    {argument},")
        self.add(end)

    def unpacker(self, codes: str) -> str:
        """Return the name of the function that unpacks this format."""
        self.formats.add(codes)
        return f"_unpack_{_name(codes)}"

    def each_unpacker(self, codes: str) -> str:
        """Return the name of the function that unpacks repetitions of this format."""
        self.formats.add(codes)
        return f"_each_{_name(codes)}"

    def packer(self, codes: str) -> str:
        """Return the name of the function that packs this format."""
        self.formats.add(codes)
        return f"_pack_{_name(codes)}"


def _name(codes: str) -> str:
    """A format as a part of a name."""
    return codes.replace("?", "o").replace("16s", "u")


def declarations(lines: list[str], formats: set[str]) -> Iterator[str]:
    """The declarations of those unpackers and packers that the lines use."""
    text = "\n".join(lines)
    for codes in sorted(formats):
        for kind, function in (("unpack", "unpack_from"), ("each", "iter_unpack"), ("pack", "pack")):
            name = f"_{kind}_{_name(codes)}"
            if f"{name}(" in text:
                yield f'{name} = struct.Struct(">{codes}").{function}'
