"""A step that no release has, for tests of the way forward and back: the SQLite file's next one."""

from __future__ import annotations

from metadata_service import sqlite_schema
from metadata_service.schema import Schema, Step

STEP = Step(
    forward=(
        "CREATE TABLE colours (name TEXT PRIMARY KEY)",
        "ALTER TABLE queues ADD COLUMN colour TEXT NOT NULL DEFAULT 'none'",
    ),
    back=("ALTER TABLE queues DROP COLUMN colour", "DROP TABLE colours"),
    lost=("SELECT 1 FROM colours", "SELECT 1 FROM queues WHERE colour <> 'none'"),
)
BEFORE = sqlite_schema.SCHEMA
NEXT = Schema(*BEFORE.steps, STEP, first=BEFORE.first)


def know() -> None:
    """Make this process a program of the release after."""
    sqlite_schema.SCHEMA = NEXT
