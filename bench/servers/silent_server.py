"""``python -m bench.servers.silent_server serve ...``: ``holdfast`` without counters and histograms, the reference for
measuring their cost.
"""

from __future__ import annotations

import sys
from unittest import mock

from frontend.request import instruments
from holdfast.commands.main import main
from telemetry.metrics import Histogram


def _nothing(*_: object) -> None: ...


if __name__ == "__main__":
    with mock.patch.object(instruments, "answered", _nothing), mock.patch.object(Histogram, "observe", _nothing):
        sys.exit(main())
