"""Jobs of documents in the SQLite file: the store's part :class:`~metadata_service.store.DocumentStore`."""

from __future__ import annotations

import sqlite3

import msgspec

from metadata_service.documents import DocumentJobs
from metadata_service.sqlite.credentials import check_tenant
from metadata_service.sqlite.schema import text
from metadata_service.sqlite.thread import Worker
from metadata_service.store import ConditionFailed

_decode = msgspec.json.Decoder(DocumentJobs).decode


class SQLiteDocuments:
    """The part of the store over the file on which ``worker`` works."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def document_jobs(self, account: str) -> DocumentJobs:
        def read(db: sqlite3.Connection) -> DocumentJobs:
            row = db.execute("SELECT record FROM document_jobs WHERE account = ?", (account,)).fetchone()
            return DocumentJobs(account) if row is None else _decode(row[0])

        return await self._worker.read(read)

    async def update_document_jobs(self, jobs: DocumentJobs) -> DocumentJobs:
        newer = msgspec.structs.replace(jobs, version=jobs.version + 1)

        def update(db: sqlite3.Connection) -> DocumentJobs:
            if jobs.version == 0:
                check_tenant(db, jobs.account)
                query = "INSERT OR IGNORE INTO document_jobs (account, version, record) VALUES (?, ?, ?)"
                changed = db.execute(query, (jobs.account, newer.version, text(newer))).rowcount
            else:
                query = "UPDATE document_jobs SET version = ?, record = ? WHERE account = ? AND version = ?"
                changed = db.execute(query, (newer.version, text(newer), jobs.account, jobs.version)).rowcount
            if not changed:
                raise ConditionFailed(f"the documents of account {jobs.account} no longer have version {jobs.version}")
            return newer

        return await self._worker.write(update)

    async def delete_document_jobs(self, account: str) -> None:
        query = "DELETE FROM document_jobs WHERE account = ?"
        await self._worker.write(lambda db: db.execute(query, (account,)).rowcount)
