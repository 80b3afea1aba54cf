"""Amazon Resource Names of queues."""

from __future__ import annotations

from typing import NamedTuple


class QueueArn(NamedTuple):
    region: str
    account: str
    name: str

    def __str__(self) -> str:
        return f"arn:aws:sqs:{self.region}:{self.account}:{self.name}"


def parse(text: str) -> QueueArn | None:
    """Parse the ARN of a queue; None for any other text."""
    parts = text.split(":")
    if len(parts) != 6 or parts[0] != "arn" or parts[2] != "sqs" or not all(parts[1:]):
        return None
    return QueueArn(parts[3], parts[4], parts[5])
