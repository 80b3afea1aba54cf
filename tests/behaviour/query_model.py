"""Service model of SQS's Query protocol: wire names that the current model no longer has.

``query_model.json`` was made from botocore 1.34.0 (Apache-2.0), the last whose SQS model has protocol ``query``::

    python -m tests.behaviour.query_model botocore/data/sqs/2012-11-05/service-2.json.gz

Documentation is dropped.  The one later member, ReceiveMessage's MessageSystemAttributeNames, is added with the name
used by AWS SDKs that still supported Query: ``MessageSystemAttributeName.N``.
"""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("query_model.json")


def make(model: dict[str, Any]) -> dict[str, Any]:
    """Return the model without its documentation and with the later member."""
    shapes = model["shapes"]
    shapes["MessageSystemAttributeList"] = {
        "type": "list",
        "member": {"shape": "MessageSystemAttributeName", "locationName": "MessageSystemAttributeName"},
        "flattened": True,
    }
    shapes["ReceiveMessageRequest"]["members"]["MessageSystemAttributeNames"] = {"shape": "MessageSystemAttributeList"}
    return {"metadata": model["metadata"], "operations": _bare(model["operations"]), "shapes": _bare(shapes)}


def load() -> dict[str, Any]:
    """Load the table, in the form of botocore's ServiceModel."""
    table: dict[str, Any] = json.loads(TABLE.read_text())
    return table


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _bare(inner) for key, inner in value.items() if key != "documentation"}
    if isinstance(value, list):
        return [_bare(inner) for inner in value]
    return value


if __name__ == "__main__":
    raw = Path(sys.argv[1]).read_bytes()
    source = json.loads(gzip.decompress(raw) if sys.argv[1].endswith(".gz") else raw)
    TABLE.write_text(json.dumps(make(source), separators=(",", ":"), sort_keys=False) + "\n")
