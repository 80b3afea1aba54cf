"""Jobs of documents in Cassandra: the store's part :class:`~metadata_service.store.DocumentStore`.

The jobs of a tenant are a row in its space, like its roles and alarms.
"""

from __future__ import annotations

import msgspec

from metadata_service.cassandra.credentials import check_tenant, tenant_space, text
from metadata_service.cassandra.driver.records import Records, VersionedRecord, Writes
from metadata_service.documents import DocumentJobs
from metadata_service.store import ConditionFailed

_ROW = "documents"
_decode = msgspec.json.Decoder(DocumentJobs).decode


class CassandraDocuments:
    """The part of the store over ``records``."""

    def __init__(self, records: Records) -> None:
        self._records = records

    async def document_jobs(self, account: str) -> DocumentJobs:
        record = await self._records.get(tenant_space(account), _ROW)
        return DocumentJobs(account) if record is None else _decode(record)

    async def update_document_jobs(self, jobs: DocumentJobs) -> DocumentJobs:
        newer = msgspec.structs.replace(jobs, version=jobs.version + 1)

        def update(rows: dict[str, VersionedRecord]) -> tuple[Writes, DocumentJobs]:
            stored = _decode(rows[_ROW].record).version if _ROW in rows else 0
            if stored != jobs.version:
                raise ConditionFailed(
                    f"the documents of account {jobs.account} have version {stored}, not {jobs.version}"
                )
            if jobs.version:
                return {_ROW: text(newer)}, newer
            check_tenant(jobs.account, rows)
            # The tenant's row is rewritten unchanged, so that a concurrent deletion of the tenant conflicts.
            return {"tenant": rows["tenant"].record, _ROW: text(newer)}, newer

        keys = [_ROW] if jobs.version else ["tenant", _ROW]
        return await self._records.transact(tenant_space(jobs.account), keys, update)

    async def delete_document_jobs(self, account: str) -> None:
        def delete(rows: dict[str, VersionedRecord]) -> tuple[Writes, None]:
            return dict.fromkeys(rows), None

        await self._records.transact(tenant_space(account), [_ROW], delete)
