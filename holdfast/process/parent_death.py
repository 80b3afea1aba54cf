"""Termination of a process when its parent ends in any way."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

PR_SET_PDEATHSIG: Final = 1
"""Source: linux/prctl.h."""


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent ends, also after it runs another program.

    Raises :class:`OSError`.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "prctl")
