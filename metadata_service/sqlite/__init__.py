"""The metadata store in SQLite."""
