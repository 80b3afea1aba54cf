"""A schema step of no release, the SQLite file's next one, for tests of migration and rollback."""

from metadata_service.schema import Schema, Step
from metadata_service.sqlite import schema

STEP = Step(
    forward=(
        "CREATE TABLE colours (name TEXT PRIMARY KEY)",
        "ALTER TABLE queues ADD COLUMN colour TEXT NOT NULL DEFAULT 'none'",
    ),
    back=("ALTER TABLE queues DROP COLUMN colour", "DROP TABLE colours"),
    lost=("SELECT 1 FROM colours", "SELECT 1 FROM queues WHERE colour <> 'none'"),
)
BEFORE = schema.SCHEMA
NEXT = Schema(*BEFORE.steps, STEP, first=BEFORE.first)


def know() -> None:
    """Turn this process into a program of the next release."""
    schema.SCHEMA = NEXT
