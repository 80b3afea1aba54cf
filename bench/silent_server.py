"""``python -m bench.silent_server serve ...``: ``holdfast`` that counts and measures nothing, which what all of that
costs is measured against."""

from __future__ import annotations

import sys
from unittest import mock

from frontend import instruments
from holdfast.cli import main
from telemetry.metrics import Histogram


def _nothing(*_: object) -> None: ...


if __name__ == "__main__":
    with mock.patch.object(instruments, "answered", _nothing), mock.patch.object(Histogram, "observe", _nothing):
        sys.exit(main())
