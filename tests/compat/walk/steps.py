"""All the steps, in the order of their modules."""

from __future__ import annotations

from tests.compat.walk import dead_letters, messages, queues, refusals, resources
from tests.compat.walk.kit import STEPS

__all__ = ["STEPS", "dead_letters", "messages", "queues", "refusals", "resources"]
