"""All tests, and what they run on.

Tests start processes by the hundred.  Where the environment forbids compiled modules (``PYTHONDONTWRITEBYTECODE``, as
in many images), each would compile all modules of its role again, a third of its start; they are kept in ``.cache``
then, beside no source.
"""

import os
import sys
from pathlib import Path

if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(__file__).parents[1] / ".cache" / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
