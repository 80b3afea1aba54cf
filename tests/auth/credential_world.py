"""A store with two tenants, and objects over it; the clock is set by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from auth.credentials import Tenant
from auth.lookup import Credentials
from auth.tokens.jwts import TokenIssuer
from auth.tokens.service_keys import ServiceKeys
from auth.tokens.sessions import Sessions
from metadata_service.sqlite.store import SQLiteStore
from tests.auth.clock import Clock
from tests.closing import closing
from tests.metadata_service.faulty import Faults

ACCOUNT = "000000000000"
OTHER = "111111111111"


class CredentialWorld:
    """Store, clock and credentials; ``again`` makes another process on the same store."""

    def __init__(self, faults: Faults, clock: Clock) -> None:
        self.faults = faults
        self.store = faults.store
        self.clock = clock
        self.credentials = Credentials(self.store.credentials, clock=clock)
        self.sessions = Sessions(ServiceKeys(self.store.credentials, "session", clock=clock))
        self.tokens = TokenIssuer(ServiceKeys(self.store.credentials, "token", clock=clock))

    def again(self) -> CredentialWorld:
        return CredentialWorld(self.faults, self.clock)


@asynccontextmanager
async def credential_world(folder: Path) -> AsyncIterator[CredentialWorld]:
    async with closing(SQLiteStore(folder / "metadata.sqlite")) as store:
        for account in (ACCOUNT, OTHER):
            await store.credentials.put_tenant(Tenant(account, "tests"))
        yield CredentialWorld(Faults(store), Clock(1_800_000_000.0))
