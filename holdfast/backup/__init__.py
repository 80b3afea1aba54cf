"""Backups: their creation, storage, and restore into a service.

:mod:`~holdfast.backup.take` makes them, :mod:`~holdfast.backup.restore` and :mod:`~holdfast.backup.verify` read
them; ``docs/backup.md`` describes their guarantees.
"""
