"""A process that ends with the one that started it, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

PR_SET_PDEATHSIG: Final = 1
"""Source: linux/prctl.h."""


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent is gone.  It stays so when it runs another program.

    Raises :class:`OSError`.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "prctl")
