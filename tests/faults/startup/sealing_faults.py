"""Ends a process that uploads usage at a planned step.

Each file in a folder is a pending fault, such as ``1-write.before``.  A process takes the first of them; when it
reaches that step, it renames the file to ``1-write.before.done`` and is killed.

* ``write.before``, ``write.after``: around the writing of a file of the lake;
* ``write.aside``: the file exists under a temporary name, and not yet under its own;
* ``remove.before``, ``remove.after``: around the removal of a buffer whose records are in the lake.
"""

import functools
import os
import signal
from collections.abc import Callable
from typing import Any

DONE = ".done"


def install(folder: str) -> None:
    left = sorted(name for name in os.listdir(folder) if not name.endswith(DONE))
    if not left:
        return
    planned = left[0]
    step = planned.partition("-")[2]

    def at(moment: str) -> None:
        if moment == step:
            os.rename(f"{folder}/{planned}", f"{folder}/{planned}{DONE}")
            os.kill(os.getpid(), signal.SIGKILL)

    def around(owner: Any, method: str, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, method)

        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            at(f"{name}.before")
            result = original(*args, **kwargs)
            at(f"{name}.after")
            return result

        setattr(owner, method, watched)

    from billing.lake.lake import Lake
    from billing.metering.buffers import Finished

    around(Lake, "write", "write")
    around(Finished, "remove", "remove")
    replace = os.replace

    def watched_replace(*args: Any, **kwargs: Any) -> None:
        at("write.aside")
        replace(*args, **kwargs)

    os.replace = watched_replace
