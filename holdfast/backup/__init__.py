"""Backups: what is taken together, where it is kept, and how a service begins with it.

:mod:`~holdfast.backup.take` makes them, :mod:`~holdfast.backup.restore` and :mod:`~holdfast.backup.verify` read them;
``docs/backup.md`` says what they promise.
"""
