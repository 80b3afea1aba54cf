"""``python -m tests.faults.tools.crashing_serve serve ...``: ``holdfast serve`` with planned faults."""

import os
import sys

import msgspec

from holdfast.commands.main import main
from tests.faults.tools.hooks import VARIABLE, FaultPlan, install

if __name__ == "__main__":
    install(msgspec.json.decode(os.environ[VARIABLE], type=FaultPlan))
    sys.exit(main(sys.argv[1:]))
