"""Run all steps and print the results as JSON, for a test that runs in another virtual environment.

The target comes from the environment: the variables of AWS's own clients, and ``WALK_ACCOUNT``.
"""

from __future__ import annotations

import json
import os
import sys
import traceback

import botocore

from tests.compat.walk.kit import ServiceAddress, Walk, take
from tests.compat.walk.steps import STEPS


def main() -> None:
    """Run every step; a failed one is reported by its traceback."""
    target = ServiceAddress(
        endpoint=os.environ["AWS_ENDPOINT_URL_SQS"],
        region=os.environ["AWS_REGION"],
        account=os.environ["WALK_ACCOUNT"],
        access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
        secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
    )
    walk = Walk(target)
    failures: dict[str, str | None] = {}
    for name in STEPS:
        try:
            take(walk, name)
        except Exception:
            failures[name] = traceback.format_exc()
        else:
            failures[name] = None
    answer = {
        "botocore": botocore.__version__,
        "called": sorted(walk.called),
        "surfaces": sorted(walk.surfaces),
        "failures": failures,
    }
    json.dump(answer, sys.stdout)


main()
