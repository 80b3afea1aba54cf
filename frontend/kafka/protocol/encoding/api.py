"""A served API: its number, its versions, and the functions that decode its requests and encode its responses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import Struct

from frontend.kafka.protocol.encoding.writing import Write


class ServedApi(NamedTuple):
    """An API in the versions that are served."""

    name: str
    key: int
    version_min: int
    version_max: int
    flexible_min: int | None
    """The first version with compact lengths and tagged fields; None if there is none."""
    decoders: tuple[Callable[[bytes, int], Struct], ...]
    """Decoders of the request's body, by the version less the lowest.

    Arguments are the frame and the position after the header.  They raise one of
    :data:`frontend.kafka.protocol.encoding.reading.MALFORMED`.
    """
    encoders: tuple[Callable[[Any, Write], None], ...]
    """Encoders of the response's body, by the version less the lowest."""

    def is_served(self, version: int) -> bool:
        """Return if requests of this version are decoded."""
        return self.version_min <= version <= self.version_max

    def is_flexible(self, version: int) -> bool:
        """Return if this version has compact lengths and tagged fields."""
        return self.flexible_min is not None and version >= self.flexible_min
